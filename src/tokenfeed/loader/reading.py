"""From steps of a run to batches: several steps by one reading call."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.loader.collate import run_collate
from tokenfeed.loader.masking import Masks
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.dealing import StepRule, TokenCounts
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.batch import Draw, HostBatch
from tokenfeed.store.rows import Rows
from tokenfeed.store.subset import join_views
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["Joined", "StepReader", "Steps", "announced", "deal_steps", "make_steps"]


class Steps(NamedTuple):
    """Batches of one rank that are read by one call."""

    start: int
    """First sample of the run in their steps, over all ranks."""
    samples: Ints
    """Samples of the rank, batch after batch."""
    batches: list[tuple[int, int, tuple[int, int]]]
    """(rows, samples of the run delivered with it, samples that all ranks together take in its step) of each; the last
    have fewer rows where none are left.
    """


def make_steps(
    start: int,
    stop: int | None,
    batch_size: int,
    rank: int,
    world_size: int,
    together: int,
    accumulate: int = 1,
    since: int = 0,
) -> Generator[Steps, None, None]:
    """The steps from `start` samples on, to `stop` or without end, so many `together`; samples are dealt in turn.

    Row j of rank r in a step that begins at K is sample K + j·W + r, and the next step begins at K + B·W. So rows of
    consecutive steps are one progression: K + i·W + r for i = 0, 1, 2, …

    The first step comes alone, so that it comes soon. `accumulate` steps are one training step, counted from sample
    `since` on.
    """
    count, width = 1, batch_size * world_size
    while stop is None or start < stop:
        first = start
        batches: list[tuple[int, int, tuple[int, int]]] = []
        while len(batches) < count and (stop is None or start < stop):
            begun = start if accumulate == 1 else start - (start - since) % (width * accumulate)
            done = begun + width * accumulate
            start += width
            if stop is not None:
                batches.append((batch_size, min(start, stop), (begun, min(done, stop))))
            else:
                batches.append((batch_size, start, (begun, done)))
        samples = rows_of(first, batch_size * len(batches), rank, world_size)
        yield Steps(first, samples if stop is None else samples[samples < stop], batches)
        count = together


def deal_steps(
    rule: StepRule,
    start: int,
    stop: int | None,
    rank: int,
    world_size: int,
    together: int,
    counts: TokenCounts,
    skip: int = 0,
) -> Generator[Steps, None, None]:
    """The same where the samples of a step are dealt by their lengths, without the first `skip` batches.

    Only the last batch of a training step advances the state: the gradients of one that was not finished are lost.
    """
    held: list[tuple[tuple[int, int], Ints, int]] = []
    for step in rule.walk(start, stop, world_size, counts):
        parts = rule.rows_of(step, rank, world_size, counts.tell)
        for part, samples in enumerate(parts, 1):
            if step.start == start and part <= skip:
                continue
            held.append(((step.start, step.stop), samples, step.stop if part == len(parts) else step.start))
            if len(held) >= together or step.start == start:
                yield _join(held)
                held = []
    if held:
        yield _join(held)


def _join(batches: list[tuple[tuple[int, int], Ints, int]]) -> Steps:
    samples = [each for _, each, _ in batches]
    told = [(each.size, end, taken) for taken, each, end in batches]
    return Steps(batches[0][0][0], np.concatenate(samples), told)


def announced(coming: Iterator[Steps], announce: Callable[[Steps], None], ahead: int) -> Iterator[Steps]:
    """The same steps; each is announced when it is `ahead` places from its turn, though the first ones at once."""
    waiting: deque[Steps] = deque()
    for number, steps in enumerate(coming):
        announce(steps)
        waiting.append(steps)
        if len(waiting) > min(ahead, number // 2):
            yield waiting.popleft()
    yield from waiting


class Joined(NamedTuple):
    """The views that a plan is over, as one."""

    view: View
    """Samples of all sources, one source after the other."""
    first_samples: Ints
    """Number in that view of the first sample of each source."""
    masks: Callable[[Rows, Ints, int, int], Bools] | None
    """Tells which targets of rows count, from (rows, their samples, start, stop); None where all do."""

    @classmethod
    def of(cls, plan: Plan) -> "Joined":
        views = plan.views
        firsts = np.cumsum([0, *(len(view) for view in views)])[:-1]
        return cls(join_views(views), firsts, Masks(plan, firsts) if plan.masks else None)


class StepReader:
    """Reads the batches of steps. Threads may share it."""

    def __init__(
        self,
        plan: Plan,
        joined: Joined,
        *,
        collate: Callable[[HostBatch], Any] | None,
        block_bytes: int = 0,
    ) -> None:
        """`block_bytes` is that of `announce`."""
        self._plan = plan
        self._joined = joined
        self._collate = collate
        self._block_bytes = block_bytes
        self._source_names = tuple(source.name for source in plan.sources)
        self._is_joined = len(plan.sources) > 1
        self._counted = (0, 0), 0
        self.use_buffers(Buffers())
        self.work = {"bytes": 0, "read_seconds": 0.0, "collate_seconds": 0.0}

    def use_buffers(self, buffers: Buffers) -> None:
        """Read into other memory. No thread may be reading; a lock that a fork left behind is replaced."""
        self._buffers = buffers
        self._lock = threading.Lock()

    def announce(self, steps: Steps) -> None:
        """Begin to fetch what steps will read."""
        with contextlib.suppress(Exception):  # an error is raised when the steps have their turn
            numbers, _ = self._draw(steps.samples)
            self._joined.view.announce(numbers, block_bytes=self._block_bytes)

    def _draw(self, samples: Ints) -> tuple[Ints, Draw]:
        """The numbers of samples in the view that joins all sources, and what they are."""
        sources, epochs, indices = self._plan.locate(samples)
        numbers = indices + self._joined.first_samples[sources] if self._is_joined else indices
        told = self._source_names, self._plan.state, self._joined.masks, self.count_targets
        return numbers, Draw(samples, epochs, sources, indices, *told)

    def count_targets(self, start: int, stop: int) -> int:
        """How many targets of samples [start, stop) of the run count. Those of the last step are remembered."""
        taken, number = self._counted
        if taken != (start, stop):
            numbers, draw = self._draw(np.arange(start, stop))
            rows = self._joined.view.rows(numbers)
            number = HostBatch(rows, 0, len(rows), draw).num_targets
            self._counted = (start, stop), number
        return number

    def __call__(self, steps: Steps) -> list[HostBatch]:
        """The batches of steps, read by one call."""
        began = time.perf_counter()
        numbers, draw = self._draw(steps.samples)
        rows = self._joined.view.load(numbers, self._buffers.take)
        batches, first = [], 0
        for size, end, taken in steps.batches:
            last = min(first + size, numbers.size)
            batch = HostBatch(rows, first, last, draw, end)
            batch.step = taken
            batches.append(batch)
            first = last
        read = time.perf_counter()
        if self._collate is not None:
            for batch in batches:
                batch.data = run_collate(self._collate, batch)
        now = time.perf_counter()
        with self._lock:
            self.work["bytes"] += rows.num_bytes
            self.work["read_seconds"] += now - began
            self.work["collate_seconds"] += now - read
        return batches
