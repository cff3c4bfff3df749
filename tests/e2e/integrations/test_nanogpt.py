"""The example's `get_batch` as nanoGPT calls it: training, and evaluation in between."""

import runpy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

Batches = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "nanogpt/get_batch.py"))["Batches"]

LENGTH = 8


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 50), ("val", 9)):
        np.arange(count * LENGTH + 1, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    return tmp_path


def train(get_batch, steps, *, evaluate=()):
    """nanoGPT's loop: a batch is fetched before anything is saved. (rows trained on, states, what was evaluated)."""
    rows, states, evaluated = [], [], []
    x, y = get_batch("train")
    for step in range(steps):
        if step in evaluate:
            with torch.no_grad():
                evaluated.append([get_batch(split)[0].tolist() for split in ("train", "val", "train")])
        states.append(get_batch.state_dict())
        rows.append((x.tolist(), y.tolist()))
        x, y = get_batch("train")
    return rows, states, evaluated


def test_a_resumed_run_is_the_run(folder):
    rows, states, _ = train(Batches(folder, LENGTH, 4), 20)
    assert all(y == (np.array(x) + 1).tolist() for x, y in rows)
    inputs, targets = Batches(folder, LENGTH, 4)("train")
    assert inputs.dtype == targets.dtype == torch.int64
    for step in (0, 7, 19):
        resumed = Batches(folder, LENGTH, 4)
        resumed.load_state_dict(states[step])
        assert resumed.state_dict() == states[step]
        assert train(resumed, 20 - step)[0] == rows[step:]


def test_evaluation_takes_nothing_from_training(folder):
    rows, _, (first, second) = train(Batches(folder, LENGTH, 4), 20, evaluate=(3, 11))
    assert rows == train(Batches(folder, LENGTH, 4), 20)[0]
    assert first == second
    assert first[0] != first[2]
