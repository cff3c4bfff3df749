"""Random histories against the reference; and whether the simulator would notice if something were wrong."""

import itertools
import os

import numpy as np
import pytest

import tokenfeed.loader.loader
import tokenfeed.loader.reading
from simulation.command import find_violation, play_many
from simulation.history import (
    WIDE,
    History,
    Lose,
    Save,
    SkipTo,
    Start,
    Steps,
    Weigh,
    World,
    draw_history,
)
from simulation.player import play
from simulation.reference import Order, Turns
from simulation.reference import Stage as PlainStage
from simulation.shrinking import shrink
from tiers import pick
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.orders import Tiled
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.shares import Shares

HISTORIES = int(os.environ.get("HISTORIES", pick(20, 150)))


@pytest.mark.parametrize("part", range(2))
def test_histories_deliver_what_they_must(part):
    """`HISTORIES=5000` for more of them; `python tests/simulation/run.py` prints what was done."""
    half = HISTORIES // 2
    figures, failed = play_many(1, range(part * half, (part + 1) * half))
    assert not failed
    assert figures.histories == half
    assert figures.accepted > half
    assert figures.accepted > figures.refused
    assert figures.samples > 20 * half
    assert figures.traced > half
    assert figures.largest_items == 10**12


def test_every_rank_of_4096():
    world = World(WIDE, "windows", seed=3)
    figures = play(
        History(world, (Start(4096, 1), Steps(1), Save(), Start(1024, 3), Steps(1), Save(), Start(7, 6), Steps(1)))
    )
    assert figures.samples == 4096 + 3072 + 42
    assert figures.largest_world == 4096


def test_the_same_seed_is_the_same_history():
    assert draw_history(5, 17) == draw_history(5, 17)
    assert draw_history(5, 17) != draw_history(6, 17)
    code = draw_history(5, 17).to_code()
    scope: dict[str, object] = {}
    exec(code.split("\n\n")[0] + "\nplayed = " + code.split("play(", 1)[1][:-1], scope)
    assert scope["played"] == draw_history(5, 17)


def plant_rows(monkeypatch):
    """The last rank takes the samples of the one before it."""
    right = tokenfeed.loader.reading.rows_of
    monkeypatch.setattr(
        tokenfeed.loader.reading,
        "rows_of",
        lambda start, size, rank, world: right(start, size, max(0, rank - (rank + 1 == world)), world),
    )


def plant_stage(monkeypatch):
    """A changed mixture gives the last sample before the change once more."""
    right = Shares.at

    def at(self, samples):
        sources, numbers = right(self, samples)
        changed = np.asarray(samples) >= (self.changes[-1].at or 2**62)
        return sources, np.maximum(0, numbers - changed)

    monkeypatch.setattr(Shares, "at", at)


def plant_resume(monkeypatch):
    """Resuming passes over a sample."""
    right = Plan.accept

    def accept(self, state):
        plan, num_delivered = right(self, state)
        return plan, num_delivered + (state["samples"] > 0)

    monkeypatch.setattr(Plan, "accept", accept)


def plant_prefetched(monkeypatch):
    """The state counts a batch that was not delivered."""
    right = Loader.state_dict

    def state_dict(self):
        state = right(self)
        ahead = self.world_size * self.rule.size
        return {**state, "samples": state["samples"] + (ahead if self._prefetch > 1 and self._next else 0)}

    monkeypatch.setattr(Loader, "state_dict", state_dict)


def plant_acceptance(monkeypatch):
    """Checkpoints do not tell what was changed."""
    right = Plan.parts
    monkeypatch.setattr(Plan, "parts", lambda self, delivered: {**right(self, delivered), "amendments": None})


def plant_epoch(monkeypatch):
    """All epochs have one order."""
    right = Plan.locate

    def locate(self, samples):
        sources, epochs, indices = right(self, samples)
        if len(self.sources) == 1 and not self.amendments:
            indices = right(self, samples % self.sources[0].num_samples)[2]
        return sources, epochs, indices

    monkeypatch.setattr(Plan, "locate", locate)


@pytest.mark.parametrize(
    ("plant", "most"),
    [
        (plant_rows, 2),
        (plant_resume, 4),
        (plant_prefetched, 3),
        pytest.param(plant_stage, 3, marks=pytest.mark.slow),
        pytest.param(plant_acceptance, 7, marks=pytest.mark.slow),
        pytest.param(plant_epoch, 2, marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found_and_shrunk(monkeypatch, plant, most):
    plant(monkeypatch)
    found = next(
        history for number in itertools.count() if find_violation(history := draw_history(2, number)) or number > 400
    )
    assert find_violation(found)
    smallest = shrink(found, lambda history: bool(find_violation(history)))
    assert len(smallest.events) <= most, smallest.to_code()
    monkeypatch.undo()
    assert not find_violation(smallest)


def test_samples_left_out_and_changes_behind_them():
    """A checkpoint taken before any batch follows; a change of weights beside it; and the end of the last stage."""
    world = World("small", "windows")
    play(History(world, (Start(), Steps(3), SkipTo(5), Save(), Start(2, 2), Steps(2), SkipTo(1), Steps(2), Start(3))))
    back = (Start(), Steps(1), Save(), SkipTo(9), Steps(3), Start(2, 2), Steps(2), SkipTo(3), Steps(1))
    play(History(world, back))
    mixed = World("small", "windows", weights=(1.0, 2.0))
    play(History(mixed, (Start(), SkipTo(1), Steps(1), Save(), Weigh((1.0,), 0), Start(), Steps(3), Lose())))
    short = World("small", "windows", weights=(1.0,), stages=(((1.0,), 64),), ends=True)
    play(History(short, (Start(1, 6), Steps(7), SkipTo(16), Save(), Steps(2), Start(), Steps(2))))


def test_the_reference_is_of_the_same_definition():
    """Should both be wrong in one way, what is pinned elsewhere still tells; here they meet at sizes no history has."""
    for n in (1, 2, 5, 4095, 4096, 10**6 + 3, 2**62):
        for place in {0, n // 3, n - 1}:
            value = Permutation(n, 9, 4)[place]
            assert Order(9).at(n, 4, place) == value
            assert Order(9).find(n, 4, value) == place
            for block, tile in ((1, 1), (3, 2), (1000, 64)):
                value = int(Tiled(n, block, tile, 9, 4).at(np.array([place]))[0])
                assert Order(9, (block, tile)).at(n, 4, place) == value
                assert Order(9, (block, tile)).find(n, 4, value) == place
    turns = Turns([(0, [PlainStage((0.7, 0.3))])], 2)
    shares = Shares([tokenfeed.Stage({"a": 0.7, "b": 0.3})], ["a", "b"])
    sources, numbers = shares.at(np.arange(100))
    assert [turns.draw(k) for k in range(100)] == list(zip(sources.tolist(), numbers.tolist(), strict=True))
