"""The Trainer of transformers: its losses are those of the data, and conversations do not see each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from chatting import CONVERSATIONS, plain, save_model
from tokenfeed.errors import ArgumentError

pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments  # noqa: E402

from tokenfeed.integrations.transformers import Trainer, as_inputs  # noqa: E402

LENGTH, ROWS, VOCABULARY = 31, 63, 100


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def make_model(vocabulary=VOCABULARY, longest=256):
    """A model that has learned nothing, and is sure of it: its loss differs from row to row."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"vocab_size": vocabulary, "max_position_embeddings": longest, "initializer_range": 0.3}
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()


def make_trainer(folder, model, **data):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    sizes = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 4, "max_steps": 1}
    return Trainer(model=model, args=TrainingArguments(output_dir=str(folder), **sizes, **quiet), **data)


def rows_of(store):
    """Packed rows of which some hold few targets that count."""
    return tokenfeed.open(store).packed(LENGTH)


def evaluate(store, folder):
    """The loss that the Trainer reports, on every rank the same."""
    return make_trainer(folder, make_model(), eval_dataset=rows_of(store)).evaluate()["eval_loss"]


@pytest.fixture
def store(tmp_path):
    """63 rows. Early documents fill their rows, late ones are short and their tokens seldom vary."""
    path, rng = tmp_path / "store", np.random.default_rng(0)
    with tokenfeed.Writer(path, columns={"tokens": "uint16", "loss_mask": "bool"}, spans={"documents": None}) as writer:
        for number in range(ROWS):
            tokens = rng.integers(0, VOCABULARY if number < 40 else 5, LENGTH + 1)
            learned = np.arange(LENGTH + 1) > number % 29
            writer.append({"tokens": tokens, "loss_mask": learned})
    store = tokenfeed.open(path)
    store.pack(LENGTH)
    return path


PROGRAM = """
import json, sys
from pathlib import Path
sys.path[:0] = {path!r}
import test_evaluating as here
folder = Path(sys.argv[2])
loss = here.evaluate(sys.argv[1], folder)
(folder / f"loss-{{here.os.environ['RANK']}}.json").write_text(json.dumps(loss))
here.torch.distributed.barrier()
here.os._exit(0)  # at the end of the interpreter, threads of gloo may abort the process
"""


def evaluate_on(ranks, store, folder):
    """The losses that the ranks report; `torchrun` starts them."""
    program = folder / "program.py"
    program.write_text(PROGRAM.format(path=[str(Path(__file__).parent), *sys.path]))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run([*words, program, store, folder], capture_output=True, text=True, env=os.environ)
    if done.returncode and "ArgumentError" in done.stderr:
        raise ArgumentError(done.stderr[-1000:])
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return [json.loads((folder / f"loss-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 5: the Trainer takes means of means, and repeats rows to fill up"
)
def test_the_loss_is_the_mean_over_all_targets(ranks, store, tmp_path):
    """`Trainer.evaluate()` gives the mean over all targets that count, on any number of ranks, or it is refused."""
    rows = rows_of(store)
    if len(rows) != ROWS:
        raise LookupError(f"there are {len(rows)} rows")
    with torch.no_grad():
        expected = float(make_model()(**as_inputs(rows.read(range(ROWS)))).loss)
    try:
        losses = [evaluate(store, tmp_path)] if ranks == 1 else evaluate_on(ranks, store, tmp_path)
    except ArgumentError:
        return
    assert losses == pytest.approx([expected] * ranks, abs=1e-4)


CHAT_LENGTH = 150


@pytest.fixture
def packed_chat(tmp_path):
    """(rows of several conversations each, the size of the vocabulary)."""
    model = save_model(tmp_path / "model", "bytes", plain("chatml"))
    conversations = [CONVERSATIONS[name] for name in ("two turns", "system", "four turns")] * 4
    lines = [json.dumps({"messages": messages}) + "\n" for messages in conversations]
    (tmp_path / "chat.jsonl").write_text("".join(lines))
    tokenfeed.prepare(tmp_path / "chat.jsonl", tmp_path / "chat", tokenizer=model, chat=True, workers=0, val=None)
    store = tokenfeed.open(tmp_path / "chat")
    store.pack(CHAT_LENGTH)
    return store.packed(CHAT_LENGTH), tokenfeed.Tokenizer.load(model).vocab_size


def by_as_inputs(rows, model, folder):
    return as_inputs(rows.read([0, 1]))


def by_trainer(rows, model, folder):
    trainer = make_trainer(folder, model, train_dataset=rows)
    return next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize("make_inputs", [by_as_inputs, by_trainer])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="floor 5: attention crosses packed conversations")
def test_packed_conversations_do_not_see_each_other(make_inputs, packed_chat, tmp_path):
    """What a model says of a conversation does not depend on those before it in its row, or such rows are refused."""
    rows, vocabulary = packed_chat
    model = make_model(vocabulary, CHAT_LENGTH + 1)
    try:
        given = make_inputs(rows, model, tmp_path)
    except ArgumentError:
        return
    document = conversations_of(rows)[given["input_ids"][0].numpy()[:CHAT_LENGTH].tobytes()]
    cut, stop = np.flatnonzero(document == 1)[[0, -1]] + [0, 1]
    with torch.no_grad():
        packed = model.eval()(**given).logits[0, cut:stop]
        alone = model(input_ids=given["input_ids"][:1, cut:stop]).logits[0]
    assert float((packed - alone).abs().max()) <= 1e-3


def conversations_of(rows):
    """For each row, by its bytes, which of its conversations every input belongs to, counted from 0."""
    batch = rows.read(range(len(rows)))
    inputs = batch.inputs.astype(np.int64)
    return {inputs[row].tobytes(): np.cumsum(batch.position_ids[row] == 0) - 1 for row in range(len(inputs))}
