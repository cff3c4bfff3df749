"""`examples/torch/train_ddp.py` on ranks of the CPU: killed −9 and resumed, on as many ranks and on others.

A run is a row of *legs*: each time, all ranks are started. What led to the final weights is every leg up to the
checkpoint from which the next one resumed; what a leg did behind it is lost, and done again.
"""

import importlib.util
import json
import random
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import tokenfeed
from tiers import slow
from torchrun import Torchrun

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).parents[2] / "examples" / "torch/train_ddp.py"
LENGTH, VOCABULARY, WIDTH, LAYERS = 16, 64, 16, 1
BATCH_SIZE, ACCUMULATE, EVERY = 2, 4, 5  # of four checkpoints in a row, three are between micro-steps
NUM_WINDOWS = 120
MORE_THAN_IT_WILL_GET_TO = 20_000  # steps; but finite, should nobody be there to kill it
PATIENCE_SECONDS = 240


@pytest.fixture
def store(tmp_path):
    """Tokens that can be learned, in several shards."""
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, shard_bytes=5_000, sync=False) as writer:
        writer.append({"tokens": np.cumsum(rng.integers(0, 3, NUM_WINDOWS * LENGTH + 1)) % VOCABULARY})
    return tmp_path / "store"


class Step(NamedTuple):
    """What the ranks of one micro-step trained on, rank by rank."""

    samples: list[list[int]]
    indices: list[list[int]]


class Legs:
    """A run in a folder of its own."""

    def __init__(self, store, folder):
        self.store = store
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.steps: list[Step] = []
        """Those that led to the newest checkpoint, as the ranks noted them."""
        self._number = 0

    def newest(self):
        return max(self.checkpoints.glob("step-*.pt"), default=None)

    def newest_step(self):
        newest = self.newest()
        return 0 if newest is None else int(newest.stem.removeprefix("step-"))

    def checkpoint(self):
        return torch.load(self.newest(), weights_only=True)

    def run(self, world_size, *, to):
        """A leg that runs to its end."""
        with self._launch(world_size, to) as launched:
            assert launched.wait(PATIENCE_SECONDS) == 0, launched.output()[-5000:]
        assert self.newest_step() == to
        self._note(world_size)

    def run_and_kill(self, world_size, *, between_micro_steps=False):
        """A leg that is killed at some moment after its second checkpoint."""
        began = time.monotonic()
        enough = self.newest_step() + 2 * EVERY
        with self._launch(world_size, MORE_THAN_IT_WILL_GET_TO) as launched:
            while self.newest_step() < enough:
                assert launched.poll() is None, launched.output()[-5000:]
                assert time.monotonic() - began < PATIENCE_SECONDS, launched.output()[-5000:]
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.5))
            assert launched.poll() is None, launched.output()[-5000:]
        assert launched.poll() == -9
        if between_micro_steps and self.newest_step() % ACCUMULATE == 0:
            self.newest().unlink()  # as if it had been killed before that one
        self._note(world_size)

    def _launch(self, world_size, steps):
        self._number += 1
        self.folder.mkdir(exist_ok=True)
        options = ["--checkpoint", self.checkpoints, "--trace", self._trace(), "--steps", steps]
        options += ["--accumulate", ACCUMULATE, "--every", EVERY, "--batch-size", BATCH_SIZE, "--length", LENGTH]
        options += ["--vocabulary", VOCABULARY, "--width", WIDTH, "--layers", LAYERS]
        return Torchrun(world_size, SCRIPT, self.store, *options, output=self.folder / "output")

    def _trace(self):
        return self.folder / f"trace-{self._number}"

    def _note(self, world_size):
        """Add the steps of the last leg that are in the newest checkpoint."""
        first, stop = len(self.steps) + 1, self.newest_step() + 1
        ranks = []
        for rank in range(world_size):
            noted = {}
            for line in (self._trace() / f"rank-{rank}.jsonl").read_text().splitlines()[: stop - first]:
                line = json.loads(line)
                noted[line["step"]] = line
            assert list(noted) == list(range(first, stop)), f"rank {rank} skipped or repeated a step"
            ranks.append(noted)
        for step in range(first, stop):
            self.steps.append(Step(*([rank[step][name] for rank in ranks] for name in ("samples", "indices"))))

    def samples(self):
        """In the order of the run: row 0 of every rank, row 1 of every rank, …"""
        return [sample for step in self.steps for row in zip(*step.samples, strict=True) for sample in row]

    def indices(self):
        return [index for step in self.steps for row in zip(*step.indices, strict=True) for index in row]


def replay(store, steps):
    """The weights that these steps lead to, without loader, ranks and checkpoints."""
    spec = importlib.util.spec_from_file_location("train_ddp", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    torch.manual_seed(0)
    model = script.GPT(VOCABULARY, LENGTH, WIDTH, LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = tokenfeed.open(store).windows(NUM_WINDOWS * LENGTH).read([0]).tokens[0].astype(np.int64)
    for number, step in enumerate(steps, start=1):
        rows = [tokens[index * LENGTH : (index + 1) * LENGTH + 1] for indices in step.indices for index in indices]
        window = torch.from_numpy(np.stack(rows))
        (model(window[:, :-1], window[:, 1:]) / ACCUMULATE).backward()
        if number % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    return flat(model.state_dict())


def flat(weights):
    return torch.cat([weight.flatten() for weight in weights.values()])


def test_two_ranks_then_one_then_three(store, tmp_path):
    """Killed twice. Every sample exactly once, as planned, and the weights are those that they lead to."""
    run = Legs(store, tmp_path / "run")
    run.run_and_kill(2)
    run.run_and_kill(1)
    resumed_at = len(run.samples())
    steps_of_last_leg = 2 * EVERY + max(0, NUM_WINDOWS - resumed_at) // (3 * BATCH_SIZE)
    run.run(3, to=len(run.steps) + steps_of_last_leg)

    samples, indices = run.samples(), run.indices()
    assert samples == list(range(len(samples)))
    assert run.checkpoint()["loader"]["samples"] == len(samples)
    assert {len(step.samples) for step in run.steps} == {1, 2, 3}
    assert sorted(indices[:NUM_WINDOWS]) == list(range(NUM_WINDOWS))

    plan = tokenfeed.Plan.of(tokenfeed.open(store).windows(LENGTH), seed=0)
    assert indices == plan.locate(np.arange(len(samples)))[2].tolist()
    record = tokenfeed.Run(run.checkpoints / "run.jsonl")
    assert [start.world_size for start in record.starts] == [2, 1, 3]
    traced = [row for step in range(len(run.steps)) for row in record.trace(step)]
    assert [(row.sample, row.index) for row in traced] == list(zip(samples, indices, strict=True))

    start, end, reached = replay(store, []), replay(store, run.steps), flat(run.checkpoint()["model"])
    # The order of sums makes 3e-7; a single wrong row makes 9e-4 five steps before the end, and more the earlier it is.
    assert (reached - end).norm() < 1e-4 * (end - start).norm()


@pytest.mark.parametrize("world_size", [1, *slow(3)])
def test_between_micro_steps_to_the_bit(store, tmp_path, world_size):
    """Killed and resumed on as many ranks: the samples and weights, bit for bit, of a run that nobody disturbed.

    Three ranks: the sum of two numbers does not depend on their order, that of three does.
    """
    killed, undisturbed = Legs(store, tmp_path / "killed"), Legs(store, tmp_path / "undisturbed")
    killed.run_and_kill(world_size, between_micro_steps=True)
    assert all(gradient.abs().sum() > 0 for gradient in killed.checkpoint()["gradients"])
    end = killed.newest_step() + 4 * ACCUMULATE
    killed.run(world_size, to=end)
    undisturbed.run(world_size, to=end)

    assert killed.steps == undisturbed.steps
    ours, theirs = killed.checkpoint(), undisturbed.checkpoint()
    assert ours["loader"] == theirs["loader"]
    for name, weight in theirs["model"].items():
        assert torch.equal(ours["model"][name], weight), name
