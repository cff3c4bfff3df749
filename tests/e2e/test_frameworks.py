"""Lightning by its own launcher: trained, stopped, resumed; the samples and weights of a run that was not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tokenfeed
import torchrun

pytestmark = pytest.mark.timeout(300)

EXAMPLES = Path(__file__).parents[2] / "examples"
LENGTH, VOCABULARY, BATCH_SIZE, NUM_VALIDATION = 16, 64, 2, 21
SIZES = ("--length", LENGTH, "--vocabulary", VOCABULARY, "--width", 16, "--batch-size", BATCH_SIZE)


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    for split, num_windows in (("train", 300), ("val", NUM_VALIDATION)):
        options = {"columns": {"tokens": "uint16"}, "split": split, "sync": False}
        with tokenfeed.Writer(tmp_path / "store", mode="append", **options) as writer:
            writer.append({"tokens": np.cumsum(rng.integers(0, 3, num_windows * LENGTH + 1)) % VOCABULARY})
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run_program(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=200, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_trace(folder):
    """[rank][line]: (step, samples)."""
    ranks = [path.read_text().splitlines() for path in sorted(folder.iterdir())]
    return [[tuple(json.loads(line).values()) for line in lines] for lines in ranks]


def flat(trace):
    """All samples of all ranks."""
    return sorted(sample for lines in trace for _, samples in lines for sample in samples)


def assert_same(weights, expected):
    """Up to the last bits, which hang on where memory happens to lie; other samples would differ by 1e-3."""
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-5, msg=name)


@pytest.mark.slow
def test_lightning(store, tmp_path):
    """Stopped within what Lightning calls an epoch, and gone on beyond it."""
    script = EXAMPLES / "lightning/train.py"

    def options(name, devices):
        folders = ("--checkpoint", tmp_path / name, "--trace", tmp_path / f"{name}-trace", "--devices", devices)
        return (store, *folders, "--steps", 6, "--every", 3, "--epoch", 4, *SIZES)

    def weights_of(name):
        return torch.load(tmp_path / name / "step=000000006.ckpt", weights_only=True)["state_dict"]

    output = run_program(sys.executable, script, *options("expected", 2))
    assert f"over {NUM_VALIDATION} windows" in output
    expected = read_trace(tmp_path / "expected-trace")
    assert flat(expected) == list(range(6 * 2 * BATCH_SIZE))

    for name, devices in (("two", 2), ("one", 1)):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "expected" / "step=000000003.ckpt", tmp_path / name)
        torchrun.run(devices, script, *options(name, devices), output=tmp_path / "output")
    assert read_trace(tmp_path / "two-trace") == [lines[3:] for lines in expected]
    assert_same(weights_of("two"), weights_of("expected"))
    first = 3 * 2 * BATCH_SIZE
    assert flat(read_trace(tmp_path / "one-trace")) == list(range(first, first + 3 * BATCH_SIZE))
