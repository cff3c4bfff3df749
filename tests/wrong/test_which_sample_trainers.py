"""Checkpoints after changes, with a trainer of somebody else. What is wrong today."""

import numpy as np
import pytest

import tokenfeed
from wrong.small_stores import load, mix

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

VOCABULARY, LENGTH = 100, 15


@pytest.fixture
def views(tmp_path):
    rng, views = np.random.default_rng(0), {}
    for name in "ab":
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "uint16"}) as writer:
            writer.append({"tokens": rng.integers(0, VOCABULARY, 50 * LENGTH + 1)})
        views[name] = tokenfeed.open(tmp_path / name).windows(LENGTH)
    return views


def train(views, folder, *, resume=None):
    """What a script trains on, step by step, which changes its weights after step 5 and saves at step 10."""
    import torch
    import transformers

    from tokenfeed.integrations.transformers import Trainer

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH + 1, **shape)
    loader, seen = load(mix(views, a=1, b=1)), []

    class Change(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 5:
                loader.amend(weights={"a": 1, "b": 7})

    class Recording(Trainer):
        def training_step(self, model, inputs, *arguments, **more):
            seen.append(inputs["input_ids"].tolist())
            return super().training_step(model, inputs, *arguments, **more)

    settings = {"per_device_train_batch_size": 4, "max_steps": 15, "save_steps": 10, "report_to": [], "use_cpu": True}
    arguments = transformers.TrainingArguments(str(folder), disable_tqdm=True, **settings)
    model = transformers.LlamaForCausalLM(config)
    trainer = Recording(model=model, args=arguments, train_dataset=loader, callbacks=[Change()])
    trainer.train(resume_from_checkpoint=resume)
    return seen


def test_transformers_resumes_after_a_change(views, tmp_path, monkeypatch):
    """transformers' Trainer resumes from a checkpoint that was taken after a change, with the rows of the whole run."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    whole = train(views, tmp_path / "run")
    assert len(whole) == 15
    assert train(views, tmp_path / "run", resume=str(tmp_path / "run" / "checkpoint-10")) == whole[10:]
