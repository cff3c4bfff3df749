"""Examples of trainers: killed −9 and started again they train on the rows of a run that nothing disturbed."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import killing
import tokenfeed

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
LENGTH, VOCABULARY, BATCH_SIZE, EVERY, STEPS = 16, 64, 2, 3, 8
FOR_EVER = 100_000


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    for split, num_windows in (("train", 300), ("val", 21)):
        options = {"columns": {"tokens": "uint16"}, "split": split, "sync": False}
        with tokenfeed.Writer(tmp_path / "store", mode="append", **options) as writer:
            writer.append({"tokens": np.cumsum(rng.integers(0, 3, num_windows * LENGTH + 1)) % VOCABULARY})
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Trainer:
    """A script with --steps, --every and --trace, and a pattern of the file that a checkpoint ends with."""

    def __init__(self, script, checkpoints, pattern, folder, *arguments):
        self.script = EXAMPLES / script
        self.checkpoints = checkpoints
        self.pattern = pattern
        self.folder = folder
        self.arguments = arguments

    def options(self, name, steps, *more):
        folders = (self.checkpoints, self.folder / name, "--trace", self.folder / f"{name}-trace")
        return (*self.arguments, *folders, "--steps", steps, "--every", EVERY, "--batch-size", BATCH_SIZE, *more)

    def run(self, name, world_size, steps, *more):
        killing.run(
            world_size, self.script, *self.options(name, steps, *more), output=self.folder / f"{name}-{world_size}.txt"
        )
        return killing.read_trace(self.folder / f"{name}-trace", world_size)

    def kill(self, name, world_size, *more):
        """Kill a run after its first checkpoint, which is kept for itself; a later one may be half written."""
        found = self.folder / name

        def ready():
            return any(found.glob(self.pattern)) and (self.folder / f"{name}-trace").exists()

        killing.kill_once(
            ready,
            world_size,
            self.script,
            *self.options(name, FOR_EVER, *more),
            output=self.folder / f"{name}-killed.txt",
        )

    def check(self, *more, more_of=lambda world_size: ()):
        """(notes of a run on two ranks, notes after it was killed −9 and went on with three).

        Killed, and started again on two, it trains on the very rows of the first; also in what it does twice.
        """
        expected = self.run("whole", 2, STEPS, *more, *more_of(2))
        assert sorted(expected) == list(range(STEPS))
        self.kill("killed", 2, *more, *more_of(2))
        shutil.copytree(self.folder / "killed", self.folder / "three")
        resumed = self.run("killed", 2, STEPS, *more, *more_of(2))
        for step in range(STEPS):
            for rank, notes in enumerate(resumed[step]):
                batches = expected[step][rank]
                killed = notes[: -len(batches)]  # maybe in the middle of a step
                assert notes[len(killed) :] == batches, (step, rank)
                assert killed == batches[: len(killed)], (step, rank)
        return expected, self.run("three", 3, STEPS, *more, *more_of(3))


def assert_next_in_line(trace, first_step, rows_per_step):
    """Samples of all ranks of a step are those that follow the checkpoint, each once."""
    start = first_step * rows_per_step[0]
    for step in sorted(trace):
        if step < first_step:
            continue
        samples = sorted(sample for notes in trace[step] for rows in notes for sample in rows)
        assert samples == list(range(start, start + rows_per_step[1])), step
        start += rows_per_step[1]


@pytest.mark.slow
def test_accelerate(store, tmp_path):
    """Two batches per update."""
    sizes = ("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16)
    trainer = Trainer("accelerate/train.py", "--checkpoint", "step-*/random_states_0.pkl", tmp_path, store, *sizes)
    _, three = trainer.check()
    assert_next_in_line(three, min(three), (8, 12))


@pytest.mark.slow
def test_lightning(store, tmp_path):
    sizes = ("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16, "--epoch", 5)
    trainer = Trainer("lightning/train.py", "--checkpoint", "*.ckpt", tmp_path, store, *sizes)
    _, three = trainer.check(more_of=lambda world_size: ("--devices", world_size))
    assert_next_in_line(three, min(three), (4, 6))
    assert "over 21 windows" in (tmp_path / "whole-2.txt").read_text()


@pytest.mark.slow
def test_transformers(store, tmp_path):
    sizes = ("--length", LENGTH - 1, "--vocabulary", VOCABULARY, "--width", 16)
    trainer = Trainer(
        "transformers/train.py", "--checkpoint", "checkpoint-*/trainer_state.json", tmp_path, store, *sizes
    )
    _, three = trainer.check()
    windows = tokenfeed.open(store, split="train").windows(LENGTH - 1)
    order = tokenfeed.Loader(windows, STEPS * 6, seed=42, rank=0, world_size=1)
    rows = next(order).tokens.tolist()
    first = min(three)
    for step, notes in three.items():
        start = first * 4 + (step - first) * 6
        assert sorted(row for rank in notes for row in rank[0]) == sorted(rows[start : start + 6]), step


@pytest.mark.slow
def test_nanogpt(tmp_path):
    """Evaluation draws from the training data too, on one rank alone, and changes nothing."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train", 300), ("val", 40)):
        rng.integers(0, VOCABULARY, count * LENGTH + 1).astype(np.uint16).tofile(tmp_path / "data" / f"{name}.bin")
    sizes = ("--length", LENGTH, "--vocabulary", VOCABULARY)
    trainer = Trainer("nanogpt/train.py", "--out", "ckpt-*.pt", tmp_path, tmp_path / "data", *sizes)
    expected, three = trainer.check()
    windows = tokenfeed.open(tmp_path / "data" / "train.bin").windows(LENGTH)
    loader = tokenfeed.Loader(windows, STEPS * 6, seed=1337, rank=0, world_size=1)
    rows = [zlib.crc32(row.astype(np.int64).tobytes()) for row in next(loader).inputs]
    for step, notes in expected.items():
        assert sorted(row for rank in notes for row in rank[0]) == sorted(rows[step * 4 : step * 4 + 4])
    first = min(three)
    for step, notes in three.items():
        start = first * 4 + (step - first) * 6
        assert sorted(row for rank in notes for row in rank[0]) == sorted(rows[start : start + 6]), step


def write_text(folder):
    folder.mkdir()
    for number in range(3):
        texts = [f"Document {number}.{row} speaks of {row} things. " * (row % 30 + 1) for row in range(200)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet", row_group_size=20)
    tokenfeed.Tokenizer.train(texts, vocab_size=300).save(folder.parent / "tokenizer")


def test_nanochat(tmp_path):
    """Rank 0 saves for all ranks; what goes on with three ranks is what a stream makes of the states of two."""
    write_text(tmp_path / "text")
    files = (tmp_path / "text", tmp_path / "tokenizer", "--length", 64)
    trainer = Trainer("nanochat/train.py", "--checkpoint", "meta_*.json", tmp_path, *files)
    _, three = trainer.check()
    first = min(three)
    states = json.loads((tmp_path / "three" / f"meta_{first:06}.json").read_text())["dataloader_state_dict"]
    assert len(states["tokenfeed"]) == 2
    assert set(states) == {"tokenfeed", "pq_idx", "rg_idx", "epoch"}
    for rank in range(3):
        feed = tokenfeed.stream(
            sorted(map(str, (tmp_path / "text").glob("*.parquet"))),
            tmp_path / "tokenizer",
            batch_size=BATCH_SIZE,
            length=64,
            val="last",
            sharding="per_file",
            overflow="crop",
            rank=rank,
            world_size=3,
        )
        feed.load_state_dict(states["tokenfeed"])
        for step in range(first, STEPS):
            rows = [zlib.crc32(row.astype(np.int64).tobytes()) for row in next(feed).inputs]
            assert three[step][rank] == [rows], (step, rank)
