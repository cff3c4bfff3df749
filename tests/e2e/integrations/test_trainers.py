"""Every trainer, killed −9 at random moments and started again, trains on the samples of a run that nothing disturbed.

KILL_ROUNDS says how often it is killed: in turns within a save and between two. Then it goes on with three processes.
"""

import itertools
import json
import os
import random
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import killing
import tokenfeed
from tiers import pick, slow

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
LOOPS = Path(__file__).with_name("loops.py")
LENGTH, VOCABULARY, BATCH_SIZE, EVERY = 16, 64, 2, 3
FOR_EVER = 1_000_000
ROUNDS = int(os.environ.get("KILL_ROUNDS", pick(1, 2)))


def write_store(folder):
    rng = np.random.default_rng(0)
    for split, num_windows in (("train", 300), ("val", 21)):
        options = {"columns": {"tokens": "uint16"}, "split": split, "sync": False}
        with tokenfeed.Writer(folder / "data", mode="append", **options) as writer:
            writer.append({"tokens": np.cumsum(rng.integers(0, 3, num_windows * LENGTH + 1)) % VOCABULARY})


def write_bins(folder):
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train", 300), ("val", 40)):
        rng.integers(0, VOCABULARY, count * LENGTH + 1).astype(np.uint16).tofile(folder / "data" / f"{name}.bin")


def write_conversations(folder):
    """A model to tune, and rows of whole documents."""
    import tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = tokenizers.models.WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), eos_token="1", pad_token="2")
    tokenizer.save_pretrained(folder / "model")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape)).save_pretrained(folder / "model")
    with tokenfeed.Writer(folder / "data", columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
        for number in range(60):
            writer.append({"tokens": np.random.default_rng(number).integers(0, VOCABULARY, 5 + number % 9)})
    tokenfeed.open(folder / "data").pack(LENGTH)


def write_text(folder):
    (folder / "data").mkdir()
    for number in range(3):
        texts = [f"Document {number}.{row} speaks of {row} things. " * (row % 30 + 1) for row in range(200)]
        pq.write_table(pa.table({"text": texts}), folder / "data" / f"{number}.parquet", row_group_size=20)
    tokenfeed.Tokenizer.train(texts, vocab_size=300).save(folder / "tokenizer")


def numbers(folder, count):
    """Trainers that note the numbers of samples."""
    return list(range(count))


def rows_of(view, seed, count, make=lambda batch: batch.inputs.tolist()):
    """The first samples of a run, by one rank."""
    return make(next(tokenfeed.Loader(view, count, seed=seed, rank=0, world_size=1, prefetch=0)))


def windows_of(folder, length=LENGTH):
    return tokenfeed.open(folder / "data", split="train").windows(length)


def as_input_ids(batch):
    from tokenfeed.integrations.transformers import as_inputs

    return as_inputs(batch)["input_ids"].tolist()


def crc_of(batch):
    return [zlib.crc32(row.astype(np.int64).tobytes()) for row in batch.inputs]


@dataclass(frozen=True)
class Trainer:
    script: Path
    whole: str
    """Pattern of what there is once a checkpoint is complete."""
    write: Callable[[Path], None]
    """Writes data into a folder; the trainer is given `data` there."""
    order: Callable[[Path, int], list[Any]] | None = numbers
    """What is noted of the first samples of a run. A stream has no order for any number of ranks."""
    arguments: Sequence[Any] = ("--length", LENGTH, "--vocabulary", VOCABULARY)
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    """Folders beside `data` that the script is given before and after it."""
    accumulate: int = 1
    of_ranks: Callable[[int], Sequence[Any]] = lambda world_size: ()
    package: str | None = None


TRAINERS = {
    "nanogpt": Trainer(
        LOOPS,
        "ckpt-*.pt",
        write_bins,
        before=("=nanogpt",),
        arguments=("--length", LENGTH),
        order=lambda folder, count: rows_of(
            tokenfeed.open(folder / "data" / "train.bin").windows(LENGTH), 1337, count, crc_of
        ),
    ),
    "nanochat": Trainer(
        EXAMPLES / "nanochat/train.py",
        "meta_*.json",
        write_text,
        order=None,
        after=("tokenizer",),
        arguments=("--length", 64),
    ),
    "accelerate": Trainer(
        EXAMPLES / "accelerate/train.py",
        "step-*[0-9]",
        write_store,
        arguments=("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16),
        accumulate=2,
    ),
    "lightning": Trainer(
        EXAMPLES / "lightning/train.py",
        "*.ckpt",
        write_store,
        arguments=("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16, "--epoch", 5),
        of_ranks=lambda world_size: ("--devices", world_size),
    ),
    "transformers": Trainer(
        EXAMPLES / "transformers/train.py",
        "checkpoint-*/trainer_state.json",
        write_store,
        arguments=("--length", LENGTH - 1, "--vocabulary", VOCABULARY, "--width", 16),
        order=lambda folder, count: rows_of(windows_of(folder, LENGTH - 1), 42, count, as_input_ids),
    ),
    "trl": Trainer(
        EXAMPLES / "trl/train.py",
        "checkpoint-*/trainer_state.json",
        write_conversations,
        before=("model",),
        arguments=("--length", LENGTH),
        order=lambda folder, count: rows_of(tokenfeed.open(folder / "data").packed(LENGTH), 42, count, as_input_ids),
    ),
    "jax": Trainer(
        EXAMPLES / "jax/train.py",
        "step-*.npz",
        write_store,
        arguments=("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16),
        of_ranks=lambda world_size: (
            *("--coordinator", "127.0.0.1:{port}", "--processes", world_size, "--process", "{rank}"),
            *("--batch-size", BATCH_SIZE * world_size),
        ),
    ),
    "orbax": Trainer(
        LOOPS,
        "[0-9]*",  # Orbax writes into a folder of another name
        write_store,
        before=("=orbax",),
        arguments=("--length", LENGTH),
        order=lambda folder, count: rows_of(windows_of(folder), 0, count),
        package="orbax.checkpoint",
    ),
    "megatron": Trainer(
        LOOPS,
        "iter_*.json",
        write_store,
        before=("=megatron",),
        arguments=("--length", LENGTH),
        order=lambda folder, count: rows_of(tokenfeed.mix({"web": (windows_of(folder), 1)}), 0, count),
    ),
    "torchtitan": Trainer(
        LOOPS,
        "step-*/.metadata",
        write_store,
        before=("=torchtitan",),
        arguments=("--length", LENGTH),
        order=lambda folder, count: rows_of(windows_of(folder), 0, count),
        package="torchtitan.components.checkpoint",
    ),
}
FAST = "nanogpt"


class Runs:
    """Runs of a trainer in one folder, by name: checkpoints in NAME, what was trained on in NAME-trace."""

    def __init__(self, trainer, folder):
        self.trainer = trainer
        self.folder = folder
        trainer.write(folder)

    def _words(self, name, world_size, steps):
        known = self.trainer
        given = [word[1:] if word[0] == "=" else self.folder / word for word in (*known.before, "data", *known.after)]
        folders = ("--checkpoint", self.folder / name, "--trace", self.folder / f"{name}-trace")
        sizes = ("--steps", steps, "--every", EVERY, "--batch-size", BATCH_SIZE)
        return (known.script, *given, *known.arguments, *folders, *sizes, *known.of_ranks(world_size))

    def run(self, name, world_size, steps):
        """{step: notes of every rank}, once it has ended."""
        killing.run(world_size, *self._words(name, world_size, steps), output=self.folder / f"{name}.txt")
        return killing.read_trace(self.folder / f"{name}-trace", world_size)

    def kill(self, name, world_size, within, rng):
        """Kill a run that has written a new checkpoint: within the next save, or some steps later."""
        found = self.folder / name
        before = set(found.glob(self.trainer.whole))
        known: set[Path] = set()
        steps_more = rng.randrange(2 * EVERY)
        stop = 0

        def ready():
            nonlocal known, stop
            if not known and set(found.glob(self.trainer.whole)) - before:
                known = set(found.rglob("*"))
                stop = self.last_step(name) + steps_more
            if not known:
                return False
            if not within:
                return self.last_step(name) >= stop
            if set(found.rglob("*")) <= known:
                return False
            time.sleep(rng.uniform(0, 0.02))
            return True

        words = self._words(name, world_size, FOR_EVER)
        killing.kill_once(ready, world_size, *words, output=self.folder / f"{name}-killed.txt")

    def last_step(self, name):
        """The last step that rank 0 noted."""
        path = self.folder / f"{name}-trace" / "rank-0.jsonl"
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return json.loads(lines[-1])["step"]


def attempts(notes, batches):
    """Notes on a step that was taken several times: each time from its first batch on, maybe killed before its last."""
    starts = [number for number, note in enumerate(notes) if note == batches[0]]
    return [notes[start:stop] for start, stop in itertools.pairwise([*starts, len(notes)])]


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("name", [FAST, *slow(*(name for name in TRAINERS if name != FAST))])
def test_killed_and_started_again(name, tmp_path):
    trainer = TRAINERS[name]
    if trainer.package and find_spec(trainer.package.partition(".")[0]) is None:
        pytest.skip(f"NOT TESTED, {trainer.package} cannot be imported. `make trainers` installs it")
    seed = int(os.environ.get("KILL_SEED", random.randrange(10**6)))
    print(f"KILL_SEED={seed}")  # to be seen with a failure
    rng, runs = random.Random(seed), Runs(trainer, tmp_path)
    for number in range(ROUNDS):
        runs.kill("killed", 2, within=number % 2 == 0, rng=rng)
    shutil.copytree(tmp_path / "killed", tmp_path / "three")
    steps = runs.last_step("killed") + EVERY + 2

    whole, resumed = runs.run("whole", 2, steps), runs.run("killed", 2, steps)
    assert sorted(whole) == sorted(resumed) == list(range(steps))
    for step, rank in itertools.product(range(steps), range(2)):
        batches = whole[step][rank]
        assert len(batches) == trainer.accumulate
        *killed, last = attempts(resumed[step][rank], batches)
        assert last == batches, (step, rank)
        assert sum(map(len, killed)) + len(last) == len(resumed[step][rank]), (step, rank)
        assert all(each == batches[: len(each)] for each in killed), (step, rank)

    three = runs.run("three", 3, steps)
    first, rows = min(three), BATCH_SIZE * trainer.accumulate
    assert first > 0
    if trainer.order is None:
        return assert_dealt_again(tmp_path, first, three)
    order = trainer.order(tmp_path, 3 * rows * steps)
    for trace, world_size, start in ((whole, 2, 0), (three, 3, first * 2 * rows)):
        for step, notes in trace.items():
            found = sorted(row for rank in notes for batch in rank for row in batch)
            begin = start + (step - min(trace)) * world_size * rows
            assert found == sorted(order[begin : begin + world_size * rows]), (world_size, step)
    return None


def assert_dealt_again(folder, first, three):
    """nanochat: rank 0 saves for all ranks; three of them go on with what a stream makes of the states of two."""
    states = json.loads((folder / "three" / f"meta_{first:06}.json").read_text())["dataloader_state_dict"]
    assert set(states) == {"tokenfeed", "pq_idx", "rg_idx", "epoch"}
    for rank in range(3):
        feed = tokenfeed.stream(
            sorted(map(str, (folder / "data").glob("*.parquet"))),
            folder / "tokenizer",
            batch_size=BATCH_SIZE,
            length=64,
            val="last",
            sharding="per_file",
            overflow="crop",
            rank=rank,
            world_size=3,
        )
        feed.load_state_dict(states["tokenfeed"])
        for step in sorted(three):
            assert three[step][rank] == [crc_of(next(feed))], (step, rank)


def test_the_table_of_lines_is_true():
    """Every trainer in at most five lines beside the import; the table says how many, and the example marks them."""
    page = (ROOT / "docs" / "guides" / "trainers.md").read_text()
    lines = [line for line in page.splitlines() if "| `examples/" in line]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    wanted = ["nanochat", "transformers", "TRL", "Lightning", "Accelerate", "torchtitan", "JAX"]
    assert len(rows) == len(wanted)
    assert {name.lower() for name in wanted} <= TRAINERS.keys()
    for trainer, (name, _, count, example, _) in zip(wanted, rows, strict=True):
        assert name.startswith(trainer)
        code = (ROOT / example.strip("`")).read_text().splitlines()
        marked = [line for line in code if line.rstrip().endswith("# tokenfeed")]
        assert len(marked) == int(count) <= 5, (name, marked)
        assert sum(line.rstrip().endswith("# import") for line in code) == 1, name


@pytest.mark.parametrize(
    "name", ["litgpt/data.py", "megatron/provider.py", "nanogpt/get_batch.py", "orbax/checkpoint.py"]
)
def test_examples_to_copy_are_short_and_named(name):
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40
    assert f"`examples/{name}`" in (ROOT / "docs" / "guides" / "trainers.md").read_text()
