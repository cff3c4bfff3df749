"""Legs: the steps of a run that one start ran, and which rank took which sample in them.

Two starts, of which the second went back from step 7 to step 4:

    first start    0 1 2 3 4 5 6      steps 0 to 3 count; steps 4 to 6 were rolled back
    second start           4 5 …      counts, from step 4 on

That makes three legs. A start tells its step and its sample, since neither follows from the other where samples were
left out: the gap between two legs belongs to none.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.plan.dealing import Step, TokenCounts
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.steps import count_steps
from tokenfeed.runs.file import Start, Trail
from tokenfeed.types import Ints

__all__ = ["Leg", "StepRow", "find_legs"]


class StepRow(NamedTuple):
    """The row that delivers a sample."""

    step: int
    rank: int
    row: int
    """Row in the batch of that rank; where a step has several batches, counted through all of them."""


class Leg:
    """Steps [first_step, stop_step) of a run, as one start ran them.

    Which rank took which sample follows from lengths, where ranks were balanced or had token budgets. Then the data is
    opened when it is first asked for.
    """

    def __init__(
        self,
        number: int,
        start: Start,
        first_step: int,
        following: "Leg | None",
        rolled_back: bool,
        count: Callable[[Start], TokenCounts],
    ) -> None:
        """`following` is the leg that counts after it; `count` gives the lengths of the data of a start."""
        self.number = number
        """Number of the start, in the order of the run file."""
        self.first_step = first_step
        self.rolled_back = rolled_back
        self._begun = start
        self._following = following
        self._count = count

    @cached_property
    def start(self) -> Start:
        """The start; where it was rolled back, with the plan of its time."""
        return self._begun.as_begun if self.rolled_back else self._begun

    @property
    def plan(self) -> Plan:
        return self.start.plan

    @cached_property
    def width(self) -> int:
        """Samples of a step; under a token budget, tokens."""
        return self._begun.rule.rows * self._begun.world_size

    @property
    def stop_step(self) -> int | None:
        """The step after its last one; None for the last leg that counts."""
        if self.rolled_back:
            return _known_stop(self._begun)
        return None if self._following is None else self._following.first_step

    @cached_property
    def first_sample(self) -> int:
        return self.begin(self.first_step)

    @cached_property
    def stop(self) -> int | None:
        """Number of samples delivered when it ends; None without end."""
        start = self._begun
        if self.rolled_back:
            return start.reached
        if self._following is None:
            return start.stop
        step = self._following.first_step
        if start.rule.by_tokens:  # a start that leaves samples out notes where the one before it ended
            noted = (samples for mark, samples in start.marks if mark == step)
            end = next(noted, self._following.first_sample)
        else:
            end = self.begin(step)
        return end if start.stop is None else min(end, start.stop)

    @property
    def reached(self) -> int:
        """Number of samples known to be delivered; those of the last leg that come later are planned."""
        stop = None if self.stop_step is None else self.stop
        return self._begun.reached if stop is None else stop

    @cached_property
    def _counts(self) -> TokenCounts:
        return self._count(self.start)

    @cached_property
    def _trail(self) -> Trail:
        return Trail(self._begun, self._counts)

    def begin(self, step: int) -> int:
        """Number of samples delivered before a step."""
        start = self._begun
        if step == start.step:
            return start.samples
        if start.rule.by_tokens:
            return self._trail.begin(step)
        return start.samples + (step - start.step) * self.width

    def samples(self, step: int, rank: int | None = None) -> Ints:
        """The samples of a step: of one rank row by row, or of all ranks in order. None after the end of the run."""
        start, rule, begin = self._begun, self._begun.rule, self.begin(step)
        world_size = start.world_size
        if rank is not None and not 0 <= rank < world_size:
            raise ArgumentError(f"step {step} ran on {quantity(world_size, 'rank')}; there was no rank {rank}")
        stop = self.stop if self.rolled_back else start.stop
        if stop is not None and begin >= stop:
            return np.empty(0, np.int64)
        if rule.is_dealt and rank is not None:
            samples = np.concatenate(rule.rows_of(self._take(begin), rank, world_size, self._counts.tell))
        else:
            end = self._take(begin).stop if rule.by_tokens else begin + self.width
            samples = np.arange(begin + (rank or 0), end, 1 if rank is None else world_size)
        return samples if stop is None else samples[samples < stop]

    def place(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """(steps, ranks, rows) of samples that it delivers."""
        steps, begins = self._find_steps(samples)
        if not self._begun.rule.is_dealt:
            rows, ranks = np.divmod(samples - begins, self._begun.world_size)
            return steps, ranks, rows
        ranks, rows = np.empty_like(samples), np.empty_like(samples)
        for begin in np.unique(begins).tolist():
            chosen = begins == begin
            ranks[chosen], rows[chosen] = (each[samples[chosen] - begin] for each in self._deal(begin))
        return steps, ranks, rows

    def step_of(self, sample: int) -> int:
        """The step that delivers a sample."""
        return int(self._find_steps(np.array([sample]))[0][0])

    def estimate_step(self, sample: int) -> int:
        """The step that delivers a sample; under a token budget as if all steps were alike. Opens nothing."""
        if not self._begun.rule.by_tokens:
            return self.step_of(sample)
        marks = self._begun.marks
        step, before = marks[max(0, bisect_right(marks, sample, key=lambda mark: mark[1]) - 1)]
        return step + int((sample - before) / self.estimate_rows())

    def estimate_rows(self) -> float:
        """Samples of a step; under a token budget their mean, as far as the run file tells."""
        if not self._begun.rule.by_tokens:
            return self.width
        (first, before), (last, after) = self._begun.marks[0], self._begun.marks[-1]
        return max(1.0, (after - before) / max(1, last - first))

    def _find_steps(self, samples: Ints) -> tuple[Ints, Ints]:
        """The steps that deliver samples, and the samples before each step."""
        start = self._begun
        if start.rule.by_tokens:
            steps, begins = np.array([self._trail.find(each) for each in samples.tolist()], np.int64).reshape(-1, 2).T
            return steps, begins
        steps, within = np.divmod(samples - start.samples, self.width)
        return start.step + steps, samples - within

    def _take(self, begin: int) -> Step:
        """The step that begins at a sample, with its lengths."""
        start = self._begun
        return next(start.rule.walk(begin, start.stop, start.world_size, self._counts))

    def _deal(self, begin: int) -> tuple[Ints, Ints]:
        """(rank, row) of every sample of a step."""
        world_size = self._begun.world_size
        bins = self._begun.rule.deal(self._take(begin), world_size, self._counts.tell)
        ranks = bins % world_size
        rows = np.empty_like(bins)
        order = np.lexsort((bins // world_size, ranks))  # stable: of one batch, in the order of the run
        counts = np.bincount(ranks, minlength=world_size)
        rows[order] = np.arange(bins.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return ranks, rows


def find_legs(starts: Sequence[Start], count: Callable[[Start], TokenCounts]) -> list[Leg]:
    """All legs in the order of their starts: those that count, and those that were rolled back. O(starts)."""
    legs: list[Leg] = []
    following: Leg | None = None
    for number, start in reversed(list(enumerate(starts))):
        if following is not None and _known_stop(start) > following.first_step:
            back = max(start.step, following.first_step)
            legs.append(Leg(number, start, back, following, True, count))
        if following is None or start.step < following.first_step:
            legs.append(following := Leg(number, start, start.step, following, False, count))
    return legs[::-1]


def _known_stop(start: Start) -> int:
    """The step after the last one that a start is known to have run."""
    if start.rule.by_tokens:
        return start.marks[-1][0]
    return start.step + count_steps(start.reached - start.samples, start.rule.rows * start.world_size)
