"""What token budgets and balanced steps must do, in plain Python; and all ranks of a run in one process."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import tokenfeed


def cut(tokens: Sequence[int], budget: int) -> list[list[int]]:
    """The samples of every step: as many of the next as have `budget` tokens together, at least one."""
    steps: list[list[int]] = []
    left = 0
    for sample, count in enumerate(tokens):
        if not steps or count > left:
            steps.append([])
            left = budget
        steps[-1].append(sample)
        left -= count
    return steps


def assign(costs: Sequence[int], alone: Sequence[bool], num_bins: int, most_rows: int, rounds: int) -> list[int]:
    """The twin of `kernels.balance.deal`: the bin of every sample."""
    held: list[list[int]] = [[] for _ in range(num_bins)]
    closed = [False] * num_bins
    bins = [0] * len(costs)

    def load(number: int) -> int:
        return sum(costs[each] for each in held[number])

    for sample, is_alone in enumerate(alone):
        room = [each for each in range(num_bins) if not closed[each] and len(held[each]) < most_rows]
        number = min(room, key=lambda each: (load(each), len(held[each]), each))
        held[number].append(sample)
        closed[number] = bool(is_alone)
    mean = sum(costs) // num_bins
    for _ in range(rounds):
        largest = max(range(num_bins), key=load)  # of equal ones the first
        high = load(largest)
        if closed[largest] or high - mean <= mean // 2048:
            break
        best: tuple[int, int, int | None, int] | None = None
        for number in range(num_bins):
            if closed[number] or number == largest:
                continue
            low = load(number)
            for given in sorted(held[largest]):
                backs: list[int | None] = [*sorted(held[number])]
                for back in [*backs, *([None] if len(held[number]) < most_rows else [])]:
                    moved = costs[given] - (0 if back is None else costs[back])
                    worse = max(high - moved, low + moved)
                    if worse < (high if best is None else best[0]):
                        best = worse, given, back, number
        if best is None:
            break
        _, given, back, number = best
        held[largest].remove(given)
        held[number].append(given)
        if back is not None:
            held[number].remove(back)
            held[largest].append(back)
    for number, samples in enumerate(held):
        for sample in samples:
            bins[sample] = number
    return bins


def write(path: Any, lengths: Sequence[int]) -> tokenfeed.Store:
    """A store with documents of these lengths, whose items are all different, after those that it has."""
    with tokenfeed.Writer(
        path, columns={"tokens": "int32"}, spans={"documents": "json"}, shard_bytes=2000, sync=False, mode="append"
    ) as writer:
        at = 0
        for number, length in enumerate(lengths):
            writer.append({"tokens": np.arange(at, at + length)}, documents={"number": number})
            at += length
    return tokenfeed.open(path)


class Ranks:
    """The loaders of all ranks."""

    def __init__(self, view: Any, world_size: int, state: Any = None, **options: Any) -> None:
        self.loaders = [
            tokenfeed.Loader(view, rank=rank, world_size=world_size, **{"prefetch": 0, **options})
            for rank in range(world_size)
        ]
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)

    def batch(self) -> list[Any]:
        """The next batch of every rank. All have the same state."""
        batches = [next(loader) for loader in self.loaders]
        states = [batch.state for batch in batches] + [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return batches

    def step(self) -> list[list[Any]]:
        """The next training step: batch after batch, of every rank."""
        before = self.loaders[0].state_dict()
        batches = []
        while not batches or batches[-1][0].state == before:
            batches.append(self.batch())
        return batches


def samples_of(step: list[list[Any]]) -> list[int]:
    """The samples of a step, in the order of the run; each may be there once."""
    return sorted(int(sample) for batches in step for batch in batches for sample in batch.samples)
