"""Legs: the steps of a run as they were finally run, or rolled back, and which rank took which sample in them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.plan.dealing import Step, TokenCounts
from tokenfeed.plan.steps import rows_of
from tokenfeed.runs.file import Start, Trail
from tokenfeed.types import Bools, Ints

__all__ = ["Leg", "StepRow", "find_legs"]


class StepRow(NamedTuple):
    """The row that delivers a sample."""

    step: int
    rank: int
    row: int
    """Row in the batch of that rank; where a step has several batches, counted through all of them."""


class Leg:
    """Steps [first_step, stop_step) of a run, as they were finally run: by one start that no later one overrides.

    Where a later start went back to an earlier step, the steps that this one had run from there on are a leg of their
    own, which is rolled back.

    Which rank took which sample follows from lengths, where ranks were balanced or had token budgets. Then the data is
    opened when it is first asked for.
    """

    def __init__(
        self,
        start: Start,
        following: "Leg | None",
        count: Callable[[Start], TokenCounts],
        rolled_back_to: int | None = None,
    ) -> None:
        """`count` gives the lengths of the data of a start."""
        self.start = start
        self.rolled_back = rolled_back_to is not None
        self.first_step = start.step if rolled_back_to is None else max(start.step, rolled_back_to)
        self.stop_step = None if following is None else following.first_step
        """None for the last leg, and for those that were rolled back."""
        self._following = following
        self._count = count

    @cached_property
    def counts(self) -> TokenCounts:
        return self._count(self.start)

    @cached_property
    def _trail(self) -> Trail:
        return Trail(self.start, self.counts)

    @cached_property
    def stop(self) -> int | None:
        """Number of samples delivered when it ends; None without end."""
        start = self.start
        if self.rolled_back:
            return start.reached
        if self._following is None:
            return start.stop
        step = self._following.first_step
        if start.rule.by_tokens:  # a start that leaves samples out notes where the last one ended
            noted = (samples for mark, samples in start.marks if mark == step)
            end = next(noted, self._following.start.samples)
        else:
            end = self.begin(step)
        return end if start.stop is None else min(end, start.stop)

    @property
    def reached(self) -> int:
        """Number of samples known to be delivered; those of the last leg that come later are planned."""
        return self.start.reached if self.stop_step is None or self.stop is None else self.stop

    def begin(self, step: int) -> int:
        """Number of samples delivered before a step."""
        start = self.start
        if start.rule.by_tokens:
            return self._trail.begin(step)
        return start.samples + (step - start.step) * start.rule.rows * start.world_size

    def holds(self, samples: Ints) -> Bools:
        """Which samples of the run it delivers."""
        inside = samples >= (self.begin(self.first_step) if self.rolled_back else self.start.samples)
        return inside if self.stop is None else inside & (samples < self.stop)

    def samples(self, step: int, rank: int | None) -> Ints:
        """The samples of a step: of one rank row by row, or of all ranks in order. None after the end of the run."""
        start, begin = self.start, self.begin(step)
        rule, world_size = start.rule, start.world_size
        if rank is not None and not 0 <= rank < world_size:
            raise ArgumentError(f"step {step} ran on {quantity(world_size, 'rank')}; there was no rank {rank}")
        stop = self.stop if self.rolled_back else start.stop
        if stop is not None and begin >= stop:
            return np.empty(0, np.int64)
        if rule.is_dealt and (rank is not None or rule.by_tokens):
            taken = self._step(begin)
            samples = np.arange(begin, taken.stop)
            if rank is not None:
                samples = np.concatenate(rule.rows_of(taken, rank, world_size, self.counts.tell))
        else:
            ranks = (rule.rows * world_size, 0, 1) if rank is None else (rule.rows, rank, world_size)
            samples = rows_of(begin, *ranks)
        return samples if stop is None else samples[samples < stop]

    def _step(self, begin: int) -> Step:
        start = self.start
        return next(start.rule.walk(begin, start.stop, start.world_size, self.counts))

    def step_of(self, sample: int) -> int:
        """The step that delivers a sample."""
        return int(self._find(np.array([sample]))[0][0])

    def _find(self, samples: Ints) -> tuple[Ints, Ints]:
        """The steps that deliver samples, and the samples before each step."""
        if self.start.rule.by_tokens:
            steps, begins = np.array([self._trail.find(each) for each in samples.tolist()], np.int64).reshape(-1, 2).T
            return steps, begins
        start = self.start
        steps, within = np.divmod(samples - start.samples, start.rule.rows * start.world_size)
        return start.step + steps, samples - within

    def place(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """(steps, ranks, rows) of samples that it delivers."""
        steps, begins = self._find(samples)
        if not self.start.rule.is_dealt:
            rows, ranks = np.divmod(samples - begins, self.start.world_size)
            return steps, ranks, rows
        ranks, rows = np.empty_like(samples), np.empty_like(samples)
        for begin in np.unique(begins).tolist():
            chosen = begins == begin
            ranks[chosen], rows[chosen] = (each[samples[chosen] - begin] for each in self._deal(begin))
        return steps, ranks, rows

    def _deal(self, begin: int) -> tuple[Ints, Ints]:
        """(rank, row) of every sample of a step."""
        world_size = self.start.world_size
        bins = self.start.rule.deal(self._step(begin), world_size, self.counts.tell)
        ranks = bins % world_size
        rows = np.empty_like(bins)
        order = np.lexsort((bins // world_size, ranks))  # stable: of one batch, in the order of the run
        counts = np.bincount(ranks, minlength=world_size)
        rows[order] = np.arange(bins.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return ranks, rows


def find_legs(starts: Sequence[Start], count: Callable[[Start], TokenCounts]) -> list[Leg]:
    """The starts that no later one overrides at once, each with the steps that it has in the end; and those steps that
    starts are known to have run, and a later one ran again.
    """
    legs: list[Leg] = []
    following: Leg | None = None
    for start in reversed(starts):
        if following is not None and _has_run(start, following.first_step):
            legs.append(Leg(start.as_begun, None, count, following.first_step))
        if following is None or start.step < following.first_step:
            legs.append(following := Leg(start, following, count))
    return legs[::-1]


def _has_run(start: Start, step: int) -> bool:
    """Whether a start is known to have run a step, or one after it."""
    if start.rule.by_tokens:
        return start.marks[-1][0] > step
    steps = max(0, step - start.step)
    return start.reached > start.samples + steps * start.rule.rows * start.world_size
