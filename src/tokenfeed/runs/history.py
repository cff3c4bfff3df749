"""Starts of a run, and the steps, ranks and rows that deliver its samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tokenfeed.plan.plan import Plan
from tokenfeed.plan.steps import BatchSizes, Stretch
from tokenfeed.types import Bools, Ints

__all__ = ["Leg", "Paths", "Start", "StepRow", "find_legs", "find_step"]

Paths = Mapping[str, Sequence[str]]
"""Where the data of each source lay when the run began; the source of a run over one view has an empty name."""


@dataclass(frozen=True)
class Start:
    """A start or resume: from `step` on, the run went on after `samples` samples, on so many ranks."""

    step: int
    samples: int
    world_size: int
    batch_sizes: BatchSizes
    stop: int | None
    """Number of samples at which a finite loader ends."""
    time: float
    plan: Plan
    stores: Paths = field(default_factory=dict)
    """Where the data of each source lay."""


class StepRow(NamedTuple):
    """The row that delivers a sample."""

    step: int
    rank: int
    row: int
    """Row in the batch of that rank."""


class Leg:
    """Steps [first_step, stop_step) of a run, as they were finally run: by one start that no later one overrides."""

    def __init__(self, start: Start, stop_step: int | None) -> None:
        self.start = start
        self.first_step = start.step
        self.stop_step = stop_step
        """None for the last leg."""

    @cached_property
    def stop(self) -> int | None:
        """Number of samples delivered when it ends; None without end."""
        start = self.start
        if self.stop_step is None:
            return start.stop
        end = start.batch_sizes.after(start.samples, self.stop_step - start.step, start.world_size)
        return end if start.stop is None else min(end, start.stop)

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Its parts of equal batch size. O(stages of the batch size)."""
        found = self.start.batch_sizes.stretches(self.start.samples, self.start.world_size)
        found = [each._replace(step=self.first_step + each.step) for each in found]
        return [each for each in found if self.stop_step is None or each.step < self.stop_step]

    def holds(self, samples: Ints) -> Bools:
        """Which samples of the run it delivers."""
        inside = samples >= self.start.samples
        return inside if self.stop is None else inside & (samples < self.stop)

    def place(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """(steps, ranks, rows) of samples that it delivers."""
        first_steps, begins, sizes = np.array(self.stretches, np.int64).T
        which = np.searchsorted(begins, samples, side="right") - 1
        steps, within = np.divmod(samples - begins[which], sizes[which] * self.start.world_size)
        rows, ranks = np.divmod(within, self.start.world_size)
        return first_steps[which] + steps, ranks, rows


def find_legs(starts: Sequence[Start]) -> list[Leg]:
    """The starts that no later one overrides at once, each with the steps that it has in the end."""
    legs: list[Leg] = []
    for start in reversed(starts):
        stop_step = legs[-1].first_step if legs else None
        if stop_step is None or start.step < stop_step:
            legs.append(Leg(start, stop_step))
    return legs[::-1]


def find_step(starts: Sequence[Start], num_delivered: int, plan: Plan) -> int:
    """The step that comes after so many samples of a plan; 0 where no start lies before."""
    for start in reversed(starts):
        delivered = plan.recount(num_delivered, start.plan)
        if start.samples <= delivered:
            return start.step + start.batch_sizes.steps_between(start.samples, delivered, start.world_size)
    return 0
