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


@pytest.mark.slow
def test_trl(store, tmp_path):
    """Killed −9 and resumed, the weights are those of a run that was not."""
    import tokenizers
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = tokenizers.models.WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), eos_token="1", pad_token="2")
    tokenizer.save_pretrained(tmp_path / "model")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape)).save_pretrained(tmp_path / "model")
    with tokenfeed.Writer(tmp_path / "rows", columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
        for number in range(60):
            writer.append({"tokens": np.random.default_rng(number).integers(0, VOCABULARY, 5 + number % 9)})
    tokenfeed.open(tmp_path / "rows").pack(LENGTH)
    sizes = ("--length", LENGTH, "--batch-size", 2, "--every", 3)

    def options(name, steps):
        return (tmp_path / "model", tmp_path / "rows", "--checkpoint", tmp_path / name, "--steps", steps, *sizes)

    script = EXAMPLES / "trl/train.py"
    killing.run(1, script, *options("whole", 6), output=tmp_path / "output")
    ready = lambda: any((tmp_path / "killed").glob("checkpoint-3/trainer_state.json"))  # noqa: E731
    killing.kill_once(ready, 1, script, *options("killed", FOR_EVER), output=tmp_path / "output")
    for later in (tmp_path / "killed").glob("checkpoint-*"):
        if later.name != "checkpoint-3":
            shutil.rmtree(later)
    killing.run(1, script, *options("killed", 6), output=tmp_path / "output")
    found, expected = (load_file(tmp_path / n / "checkpoint-6" / "model.safetensors") for n in ("killed", "whole"))
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, rtol=0, atol=1e-6, err_msg=name)


def write_text(folder):
    folder.mkdir()
    for number in range(3):
        texts = [f"Document {number}.{row} speaks of {row} things. " * (row % 30 + 1) for row in range(200)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet", row_group_size=20)
    tokenfeed.Tokenizer.train(texts, vocab_size=300).save(folder.parent / "tokenizer")


@pytest.mark.slow
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


def write_litdata(folder, count):
    """A chunk as litdata's `optimize` writes it for TokensLoader; that the real one does is in test_litdata.py."""
    folder.mkdir()
    documents = [np.random.default_rng(number).integers(0, VOCABULARY, 40) for number in range(count)]
    offsets = 4 * (count + 2) + 2 * np.cumsum([0, *map(len, documents)])
    chunk = np.array([count, *offsets], np.uint32).tobytes() + np.concatenate(documents).astype(np.uint16).tobytes()
    (folder / "chunk-0-0.bin").write_bytes(chunk)
    entry = {"filename": "chunk-0-0.bin", "chunk_size": count, "chunk_bytes": len(chunk), "dim": 40 * count}
    config = {"data_format": ["no_header_numpy:5"], "compression": None}
    (folder / "index.json").write_text(json.dumps({"chunks": [entry], "config": config}))


@pytest.mark.slow
def test_litdata(tmp_path):
    write_litdata(tmp_path / "chunks", 100)
    sizes = ("--length", LENGTH, "--vocabulary", VOCABULARY)
    trainer = Trainer("litdata/train.py", "--checkpoint", "step-*.pt", tmp_path, tmp_path / "chunks", *sizes)
    _, three = trainer.check()
    assert_next_in_line(three, min(three), (4, 6))


def test_the_table_of_lines_is_true():
    """Every trainer in at most five lines beside the import; the table says how many, and the example marks them."""
    page = (ROOT / "docs" / "guides" / "trainers.md").read_text()
    lines = [line for line in page.splitlines() if "| `examples/" in line]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    wanted = ["nanochat", "nanoGPT", "transformers", "TRL", "Lightning", "Accelerate", "torchtitan", "Megatron"]
    wanted += ["JAX", "litdata", "MosaicML"]
    assert len(rows) == len(wanted)
    for trainer, (name, _, count, example, _) in zip(wanted, rows, strict=True):
        assert name.startswith(trainer)
        code = (ROOT / example.strip("`")).read_text().splitlines()
        marked = [line for line in code if line.rstrip().endswith("# tokenfeed")]
        assert len(marked) == int(count) <= 5, (name, marked)
        assert sum(line.rstrip().endswith("# import") for line in code) == 1, name
