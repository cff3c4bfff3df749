"""The real Trainer of transformers and SFTTrainer of TRL: a resumed run has the samples of one that was not stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, StateError

pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytest.importorskip("trl", reason="trl is not installed: pip install trl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments  # noqa: E402

from tokenfeed.integrations.transformers import Samples, Trainer, as_inputs, find_checkpoint  # noqa: E402

LENGTH, VOCABULARY = 15, 100


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("transformers") / "store"
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, sync=False) as writer:
        for number in range(40):
            writer.append({"tokens": rng.integers(0, VOCABULARY, rng.integers(5, 40))}, documents=number)
    store = tokenfeed.open(path)
    store.pack(LENGTH)
    return store


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def make_model():
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH + 1, **shape))


def settings(folder, **changes):
    options = {"per_device_train_batch_size": 3, "max_steps": 24, "save_steps": 5, "gradient_accumulation_steps": 2}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_steps": 1000}
    return {"output_dir": str(folder), **options, **quiet, **changes}


def recording(kind):
    class Recording(kind):
        seen = None

        def training_step(self, model, inputs, *arguments, **more):
            loss = super().training_step(model, inputs, *arguments, **more)
            self.seen = [*(self.seen or []), (inputs["input_ids"].tolist(), float(loss))]
            return loss

    return Recording


def train(folder, data, *, resume=None, **changes):
    trainer = recording(Trainer)(model=make_model(), args=TrainingArguments(**settings(folder, **changes)), **data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def views(store):
    windows, packed = store.windows(LENGTH), store.packed(LENGTH)
    return {"windows": windows, "packed": packed, "mixture": tokenfeed.mix({"a": (windows, 0.5), "b": (windows, 0.5)})}


@pytest.mark.parametrize("kind", ["windows", "packed", "mixture"])
@pytest.mark.parametrize("ignore", [False, True])
def test_a_resumed_run_is_the_run(kind, ignore, store, tmp_path):
    """Across the end of an epoch, where accumulation ends early; and whether or not the Trainer wants to skip."""
    view = views(store)[kind]
    whole = train(tmp_path / "whole", {"train_dataset": view})
    assert whole.state.epoch > 1 or kind == "mixture"
    resumed = train(
        tmp_path / "again",
        {"train_dataset": view},
        resume=str(tmp_path / "whole" / "checkpoint-5"),
        ignore_data_skip=ignore,
    )
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    assert len(whole.seen) - len(resumed.seen) == 10
    assert resumed.state.epoch == whole.state.epoch


def test_it_is_the_loader(store, tmp_path):
    """Every sample in the order of a Loader, and the loss that of the model over inputs and targets."""
    view = store.windows(LENGTH)
    trainer = train(tmp_path, {"train_dataset": view}, max_steps=4, gradient_accumulation_steps=1)
    loader = tokenfeed.Loader(view, 3, seed=trainer.args.seed, rank=0, world_size=1)
    for (rows, _), batch in zip(trainer.seen, loader, strict=False):
        assert rows == batch.column("tokens").tolist()
    batch = next(tokenfeed.torch.to_device(loader, "cpu"))
    given = as_inputs(batch)
    model = make_model()
    ours = torch.nn.functional.cross_entropy(model(batch.inputs).logits.flatten(0, 1), batch.targets.flatten())
    assert torch.allclose(model(**given).loss, ours, atol=1e-5)


def test_masks_become_labels(store):
    batch = store.packed(LENGTH).read([0, 1, 2])
    given = as_inputs(batch)
    counted = given["labels"][:, 1:] != -100
    assert (counted.numpy() == batch.loss_mask).all()
    assert (given["labels"][:, 1:][counted].numpy() == batch.targets[batch.loss_mask]).all()
    assert (given["labels"][:, 0] == -100).all()


def test_what_is_logged(store, tmp_path):
    """With every loss of the Trainer: what the data does. The run file does not hear of it."""
    view, run = store.windows(LENGTH), tmp_path / "run.jsonl"
    data = tokenfeed.mix({"web": (view, 0.75), "code": (view, 0.25)})
    with tokenfeed.Loader(data, 4, accumulate=2, run=run, rank=0, world_size=1) as loader:
        options = {"train_dataset": loader, "eval_dataset": view}
        trainer = train(tmp_path, options, max_steps=4, logging_steps=2, per_device_train_batch_size=4)
        lines = [json.loads(line) for line in run.read_text().splitlines()]
        assert not any("reached" in line for line in lines)
    logged = [each for each in trainer.state.log_history if "loss" in each]
    assert [each["step"] for each in logged] == [2, 4]
    for each in logged:
        assert {"data/wait_share", "data/tokens_per_second", "data/epochs/web"} <= each.keys()
    assert logged[-1]["data/samples"] == 4 * 2 * 4
    assert "data/samples" not in trainer.evaluate()


def test_a_checkpoint_that_was_not_finished(store, tmp_path):
    """Killed while it saves, the Trainer leaves a folder without its own state: resume=True takes the one before."""
    view = {"train_dataset": store.windows(LENGTH)}
    whole = train(tmp_path, view, max_steps=15)
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-15")
    state = tmp_path / "checkpoint-15" / "trainer_state.json"
    state.write_text(state.read_text()[:-10])
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")
    resumed = train(tmp_path, view, resume=True, max_steps=15)
    assert resumed.seen == whole.seen[10:]
    assert find_checkpoint(tmp_path / "none") is None


def test_documents_apart(store):
    """What one document holds does not change what the model says of another."""
    view = store.windows(LENGTH)
    rows = as_inputs(view.read([3]), separate_documents=True)
    starts = np.flatnonzero(rows["position_ids"][0] == 0)
    assert starts.size > 1, "the row holds the end of one document and the beginning of another"
    model = make_model().eval()
    cut = int(starts[1])
    whole = model(**rows).logits[:, cut:]
    alone = model(input_ids=rows["input_ids"][:, cut:]).logits
    assert torch.allclose(whole, alone, atol=1e-5)


@pytest.mark.parametrize("separate", [False, True])
def test_rows_of_one_document_each(separate, store):
    """Padded to the longest; every target counts once, and no padding does."""
    batch = store.documents().read([0, 1, 2])
    given = as_inputs(batch, separate_documents=separate)
    for row, length in enumerate(batch.lengths.tolist()):
        assert given["labels"][row, 1:length].tolist() == batch.targets[row, : length - 1].tolist()
        assert (given["labels"][row, length:] == -100).all()
        assert given["input_ids"][row, 1:length].tolist() == given["labels"][row, 1:length].tolist()


def test_evaluation_sees_every_sample(store, tmp_path):
    view = store.windows(LENGTH)
    trainer = train(tmp_path, {"train_dataset": view, "eval_dataset": view}, max_steps=1)
    metrics = trainer.evaluate()
    loss = make_loss(trainer.model, Samples(view))
    assert metrics["eval_loss"] == pytest.approx(loss, abs=1e-4)


def make_loss(model, samples):
    with torch.no_grad():
        rows = samples.__getitems__(list(range(len(samples))))
        return float(model(**{name: torch.stack([row[name] for row in rows]) for name in rows[0]}).loss)


def test_a_loader_of_ones_own(store, tmp_path):
    view = store.windows(LENGTH)
    loader = tokenfeed.Loader(view, 3, seed=7, rank=0, world_size=1, accumulate=2)
    seen = train(tmp_path / "a", {"train_dataset": loader}, max_steps=4).seen
    assert seen[0][0] == next(iter(tokenfeed.Loader(view, 3, seed=7, rank=0, world_size=1))).column("tokens").tolist()
    with pytest.raises(ArgumentError, match="give both the same, or give a view"):
        train(tmp_path / "b", {"train_dataset": loader}, per_device_train_batch_size=2)
    with pytest.raises(ArgumentError, match=r"accumulate=2, and the trainer's is 4 \(gradient_accumulation_steps\)"):
        train(tmp_path / "c", {"train_dataset": loader}, gradient_accumulation_steps=4)


def test_what_is_refused(store, tmp_path):
    view = store.windows(LENGTH)
    with pytest.raises(ArgumentError, match="dataloader_num_workers is 2"):
        train(tmp_path, {"train_dataset": view}, dataloader_num_workers=2)
    with pytest.raises(ArgumentError, match="the model takes 16: make rows of length 15"):
        train(tmp_path, {"train_dataset": store.windows(LENGTH + 1)})
    with pytest.raises(ArgumentError, match="leave epochs out"):
        train(tmp_path, {"train_dataset": tokenfeed.Loader(view, 3, epochs=1, rank=0, world_size=1)})
    with pytest.raises(ArgumentError, match="lengths differ"):
        train(tmp_path, {"train_dataset": view, "eval_dataset": store.documents()})
    plain = transformers.Trainer
    (tmp_path / "plain").mkdir()
    trainer = plain(
        model=make_model(),
        args=TrainingArguments(**settings(tmp_path / "plain", max_steps=5)),
        train_dataset=Samples(view),
    )
    trainer.train()
    with pytest.raises(StateError, match="began without tokenfeed"):
        train(tmp_path, {"train_dataset": view}, resume=str(tmp_path / "plain" / "checkpoint-5"))


def test_trl(store, tmp_path):
    import tokenizers
    import trl

    from tokenfeed.integrations.trl import SFTTrainer

    words = tokenizers.models.WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), eos_token="1", pad_token="2")

    def fine_tune(folder, resume=None):
        arguments = trl.SFTConfig(**settings(folder), bf16=False)
        options = {"train_dataset": store.packed(LENGTH), "processing_class": tokenizer}
        trainer = recording(SFTTrainer)(model=make_model(), args=arguments, **options)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.seen

    whole = fine_tune(tmp_path / "whole")
    resumed = fine_tune(tmp_path / "again", str(tmp_path / "whole" / "checkpoint-5"))
    assert resumed == whole[10:]


PROGRAM = """
import json, sys
from pathlib import Path
sys.path[:0] = {tests!r}
import test_transformers as here
import tokenfeed
folder, resume = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
view = tokenfeed.open({store!r}).windows(here.LENGTH)
changes = {{"max_steps": 6, "save_steps": 3, "gradient_accumulation_steps": 1}}
trainer = here.train(folder, {{"train_dataset": view}}, resume=resume, **changes)
(folder / f"seen-{{trainer.args.process_index}}.json").write_text(json.dumps([rows for rows, _ in trainer.seen]))
"""


def test_two_processes_then_three(store, tmp_path):
    """Each step's rows are those of the plan, whoever reads them; a checkpoint of two processes goes on with three."""
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(tests=[str(path) for path in (sys.path[0], Path(__file__).parent)], store=store.paths[0])
    )

    def launch(processes, folder, *resume):
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        done = subprocess.run(
            [*words, str(program), str(folder), *resume], capture_output=True, text=True, env=os.environ
        )
        assert done.returncode == 0, done.stderr[-4000:]
        ranks = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(processes)]
        return [sorted(row for rows in step for row in rows) for step in zip(*ranks, strict=True)]

    two = launch(2, tmp_path / "two")
    three = launch(3, tmp_path / "three", str(tmp_path / "two" / "checkpoint-3"))
    view = store.windows(LENGTH)
    loader = tokenfeed.Loader(view, 1, seed=42, rank=0, world_size=1)
    order = [next(loader).column("tokens").tolist()[0] for _ in range(6 * 3 * 3)]
    assert two == [sorted(order[step * 6 : step * 6 + 6]) for step in range(6)]
    assert three == [sorted(order[18 + step * 9 : 27 + step * 9]) for step in range(3)]


def test_flat_batches_are_those_of_the_padding_free_collator(store):
    """Its rows are whole documents, whose last tokens predict nothing; ours leave these out. The loss is the same."""
    batch = next(tokenfeed.torch.to_device(tokenfeed.Loader(store.documents(), 4, rank=0, world_size=1), "cpu"))
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    features = [{"input_ids": batch.host[row].tokens.tolist()} for row in range(4)]
    theirs, flat = collate(features), batch.flat
    predicts = torch.cat([theirs["labels"][0, 1:] != -100, torch.tensor([False])])
    for ours, its in ((flat.inputs, theirs["input_ids"]), (flat.position_ids, theirs["position_ids"])):
        assert ours.tolist() == its[0, predicts].tolist()
    assert flat.targets.tolist() == theirs["labels"][0, 1:][predicts[:-1]].tolist()
    cut = collate([{"input_ids": each["input_ids"][:-1]} for each in features])
    assert flat.cu_seqlens.tolist() == cut["cu_seq_lens_q"].tolist()
    assert flat.max_seqlen == cut["max_length_q"]
    model = make_model()
    given = {"input_ids": flat.inputs[None], "position_ids": flat.position_ids[None], "use_cache": False}
    loss = model(**given, labels=flat.targets[None], shift_labels=flat.targets[None]).loss
    expected = model(**{name: theirs[name] for name in ("input_ids", "position_ids", "labels")}, use_cache=False).loss
    assert torch.allclose(loss, expected, atol=1e-5)


def test_weights_are_refused(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"tokens": "uint16", "weight": "float32"}) as writer:
        writer.append({"tokens": np.arange(20), "weight": np.ones(20)})
    view = tokenfeed.open(tmp_path).windows(LENGTH, loss_weights="weight")
    with pytest.raises(ArgumentError, match="no loss_weights"):
        as_inputs(view.read([0]))
