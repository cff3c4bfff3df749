"""Every program in examples/ does what it says, started as its page says, with a model that is tiny."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
import torchrun
from servers import free_port
from tokenfeed import observe

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
LENGTH, VOCABULARY, NUM_VALIDATION = 16, 64, 21
SIZES = ("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16)


def test_no_example_without_a_run():
    """Every example is named by a test that is about examples."""
    tests = "".join(test.read_text() for test in HERE.parent.rglob("test_*.py"))
    names = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert {name for name in names if f'"{name}"' not in tests} == set()


@pytest.fixture
def store(tmp_path):
    """Tokens to train on, and a number of validation windows that no number of ranks divides."""
    rng = np.random.default_rng(0)
    for split, num_windows in (("train", 300), ("val", NUM_VALIDATION)):
        options = {"columns": {"tokens": "uint16"}, "split": split, "sync": False}
        with tokenfeed.Writer(tmp_path / "store", mode="append", **options) as writer:
            writer.append({"tokens": np.cumsum(rng.integers(0, 3, num_windows * LENGTH + 1)) % VOCABULARY})
    return tmp_path / "store"


def run_command_line(world_size, script, *arguments):
    """What torchrun prints, started anew as people start it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", world_size, script]
    return run_program(*command, *arguments)


def run_program(*words, **environment):
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses_of(output):
    """{step: loss}, of the process that speaks."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+)\b.*: loss (\d+\.\d+)", output)}


def assert_close(losses, expected):
    """The order of sums makes 1e-6; other samples make more than 1e-4, as between any two steps here."""
    assert losses.keys() == expected.keys()
    for step, loss in losses.items():
        assert math.isclose(loss, expected[step], abs_tol=2e-5), (step, losses, expected)
    in_order = sorted(expected.values())
    assert all(after - before > 1e-4 for before, after in itertools.pairwise(in_order)), in_order


@pytest.mark.slow
def test_train_fsdp_resumes_on_other_numbers_of_ranks(store, tmp_path):
    script, options = EXAMPLES / "torch/train_fsdp.py", ("--layers", 1, "--batch-size", 8, "--every", 4, *SIZES)
    expected = run_command_line(2, script, store, "--checkpoint", tmp_path / "2", "--steps", 8, *options)
    assert list(losses_of(expected)) == list(range(1, 9))
    for world_size in (1, 4):
        resumed = tmp_path / f"{world_size}"
        shutil.copytree(tmp_path / "2" / "step-000000004", resumed / "step-000000004")
        arguments = ("--checkpoint", resumed, "--steps", 8, *options)
        output = torchrun.run(world_size, script, store, *arguments, output=tmp_path / "output")
        assert_close(losses_of(output), {step: loss for step, loss in losses_of(expected).items() if step > 4})
        assert_same_validation(output, expected)
        starts = tokenfeed.Run(resumed / "run.jsonl").starts
        assert [(start.world_size, start.samples) for start in starts] == [(world_size, 4 * 8)]


def assert_same_validation(output, expected):
    """Every window once, on every number of ranks."""
    found, there = (
        re.findall(r"validation: loss (\S+) over (\d+) windows of (\d+)", text) for text in (output, expected)
    )
    assert {(int(seen), int(number)) for _, seen, number in found + there} == {(NUM_VALIDATION, NUM_VALIDATION)}
    assert math.isclose(float(found[0][0]), float(there[0][0]), abs_tol=2e-5)


@pytest.mark.slow
def test_train_tensor_parallel_gives_a_group_the_same_rows(store, tmp_path):
    script, options = (
        EXAMPLES / "torch/train_tensor_parallel.py",
        ("--layers", 1, "--batch-size", 4, "--steps", 3, *SIZES),
    )
    alone = run_command_line(2, script, store, "--tensor-parallel", 2, *options)
    both = torchrun.run(4, script, store, "--tensor-parallel", 2, *options, output=tmp_path / "output")
    assert_close(losses_of(both), losses_of(alone))
    rows = {
        (int(step), int(group), int(rank)): [int(sample) for sample in samples.split(", ")]
        for step, group, rank, samples in re.findall(r"step (\d+), group (\d+), rank (\d+): .*samples \[(.*)\]", both)
    }
    assert len(rows) == 3 * 4
    for step in range(1, 4):
        groups = [rows[step, 0, 0], rows[step, 1, 2]]
        assert [rows[step, 0, 1], rows[step, 1, 3]] == groups
        assert sorted(groups[0] + groups[1]) == list(range(4 * (step - 1), 4 * step))


def test_stream_checkpoint_fits_any_number_of_ranks(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(3):
        texts = [f"Document {number}.{row} speaks of {row} things. " * (row % 30) for row in range(200)]
        pq.write_table(pa.table({"text": texts}), tmp_path / "text" / f"{number}.parquet", row_group_size=20)
    tokenfeed.Tokenizer.train([texts[-1]], vocab_size=300).save(tmp_path / "tokenizer")
    script, files = EXAMPLES / "torch/stream_checkpoint.py", (tmp_path / "text", tmp_path / "tokenizer")

    def run(world_size, folder, steps):
        arguments = ("--checkpoint", tmp_path / folder, "--steps", steps)
        output = torchrun.run(world_size, script, *files, *arguments, output=tmp_path / "output")
        return dict(re.findall(r"row (\d+): checksum (\w+)", output))

    expected = run(1, "uninterrupted", 9)
    assert len(set(expected.values())) == len(expected) == 9 * 4
    assert {**run(2, "resumed", 3), **run(4, "resumed", 6), **run(1, "resumed", 9)} == expected


@pytest.mark.slow
def test_train_jax_on_one_process_and_on_two(store, tmp_path):
    script = EXAMPLES / "jax/train.py"
    options = ("--batch-size", 8, "--steps", 6, "--every", 3, *SIZES)
    expected = run_program(sys.executable, script, store, "--checkpoint", tmp_path / "1", *options)
    (tmp_path / "2").mkdir()
    shutil.copy(tmp_path / "1" / "step-000000003.npz", tmp_path / "2")
    together = ("--checkpoint", tmp_path / "2", "--coordinator", f"localhost:{free_port()}", "--processes", 2)
    words = [str(word) for word in (sys.executable, script, store, *together, *options, "--process")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen([*words, "1"], stdout=subprocess.PIPE, text=True, env=environment) as other:
        try:
            outputs = [run_program(*words, "0"), other.communicate(timeout=60)[0]]
        finally:
            other.kill()
    for output in outputs:
        assert_close(losses_of(output), {step: loss for step, loss in losses_of(expected).items() if step > 3})
        assert_same_validation(output, expected)
    samples = [
        [int(k) for line in re.findall(r"samples \[(.*)\]", output) for k in line.split(", ")] for output in outputs
    ]
    assert samples == [list(range(24, 48, 2)), list(range(25, 48, 2))]


def test_online_mixing(tmp_path):
    """The source that is harder to learn gets a larger share; two ranks agree."""
    noise = np.random.default_rng(0).integers(0, 100, 20_000)
    for name, tokens in (("web", noise), ("code", np.arange(20_000) % 100)):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "uint16"}, sync=False) as writer:
            writer.append({"tokens": tokens})
    script = EXAMPLES / "online_mixing/train.py"
    assert len(script.read_text().splitlines()) <= 40
    torchrun.run(2, script, tmp_path, output=tmp_path / "output")
    plan = tokenfeed.Run(tmp_path / "run.jsonl").plan()
    assert len(plan.amendments) == 9  # the last was made after the last batch
    web, code = plan.ledger(1600)
    assert web.samples > code.samples > 200
    assert web.target == pytest.approx(web.samples, abs=1)


def check_demo(*words, cwd):
    """It learns by the text and by the store; the page answers; tokenfeed leaves nothing behind but DIR."""
    output = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", *words, "--out", "kept"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(cwd)},
    ).stdout
    before, between, after = (float(bits) for bits in re.findall(r"(\d+\.\d+) bits per byte", output))
    assert 0 < after < between < before < 8
    assert " 0 tokens lost" in output
    assert re.search(r"the page answers \(200\): http://127\.0\.0\.1:[0-9]+/\?token=", output)
    assert tokenfeed.open(cwd / "kept" / "store").num_items > 10_000
    assert observe.read_snapshots(cwd / "kept" / "run.jsonl")[-1].ended
    assert tokenfeed.Run(cwd / "kept" / "run.jsonl").trace(0)
    return [path.name for path in cwd.iterdir() if not path.name.startswith("torchinductor")]


def test_the_demo_of_my_text(tmp_path):
    (tmp_path / "text").mkdir()
    texts = [f"Document {row} speaks of {row % 7} things. " * (row % 30 + 1) for row in range(2000)]
    (tmp_path / "text" / "0.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert sorted(check_demo("text", "--seconds", "2", cwd=tmp_path)) == ["kept", "text"]


@pytest.mark.slow
def test_the_demo(tmp_path):
    assert check_demo("--seconds", "6", cwd=tmp_path) == ["kept"]
    module = tokenfeed.open(tmp_path / "kept" / "store").documents()[0].spans["documents"][0].payload["module"]
    assert module.endswith(".py")
