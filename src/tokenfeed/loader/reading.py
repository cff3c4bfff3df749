"""From steps of a run to batches: several steps by one reading call."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from tokenfeed.loader.masking import Masks
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.steps import BatchSizes, rows_of
from tokenfeed.store.batch import Draw, HostBatch
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = ["StepReader", "Steps", "announced", "make_steps"]


class Steps(NamedTuple):
    """Consecutive steps: the samples that the run has delivered before the first, and the batch size of each.

    Row j of rank r in a step that begins at K is sample K + j·W + r, and the next step begins at K + B·W. So rows of
    consecutive steps are one progression, whatever their batch sizes: K + i·W + r for i = 0, 1, 2, …
    """

    start: int
    sizes: list[int]


def make_steps(
    start: int, stop: int | None, batch_sizes: BatchSizes, world_size: int, together: int
) -> Generator[Steps, None, None]:
    """The steps from `start` samples on, to `stop` or without end, so many `together`.

    The first step comes alone, so that it comes soon.
    """
    count = 1
    while stop is None or start < stop:
        steps = Steps(start, [])
        while len(steps.sizes) < count and (stop is None or start < stop):
            size = batch_sizes.at(start)
            steps.sizes.append(size)
            start += size * world_size
        yield steps
        count = together


def announced(coming: Iterator[Steps], announce: Callable[[Steps], None], ahead: int) -> Iterator[Steps]:
    """The same steps; each is announced when it is `ahead` places from its turn, though the first ones at once."""
    waiting: deque[Steps] = deque()
    for number, steps in enumerate(coming):
        announce(steps)
        waiting.append(steps)
        if len(waiting) > min(ahead, number // 2):
            yield waiting.popleft()
    yield from waiting


class StepReader:
    """Reads the batches of steps. Threads may share it."""

    def __init__(
        self,
        plan: Plan,
        view: View,
        masks: Masks | None,
        *,
        rank: int,
        world_size: int,
        stop: int | None,
        collate: Callable[[HostBatch], Any] | None,
    ) -> None:
        """`view` has the samples of all sources, one source after the other."""
        self._plan = plan
        self._view = view
        self._masks = masks
        self._rank = rank
        self._world_size = world_size
        self._stop = stop
        self._collate = collate
        self._source_names = tuple(source.name for source in plan.sources)
        self._is_joined = len(plan.sources) > 1
        self.use_buffers(Buffers())
        self.num_bytes = 0
        self.seconds = 0.0
        self.collate_seconds = 0.0

    def use_buffers(self, buffers: Buffers) -> None:
        """Read into other memory. No thread may be reading; a lock that a fork left behind is replaced."""
        self._buffers = buffers
        self._lock = threading.Lock()

    def announce(self, steps: Steps) -> None:
        """Begin to fetch what steps will read."""
        with contextlib.suppress(Exception):  # an error is raised when the steps have their turn
            sources, _, indices = self._plan.locate(self._samples_of(steps))
            self._view.announce(self._joined(sources, indices))

    def _samples_of(self, steps: Steps) -> Ints:
        samples = rows_of(steps.start, sum(steps.sizes), self._rank, self._world_size)
        return samples if self._stop is None else samples[samples < self._stop]

    def _joined(self, sources: Ints, indices: Ints) -> Ints:
        """Numbers of samples in the view that joins all sources."""
        return indices + self._plan.starts[sources] if self._is_joined else indices

    def __call__(self, steps: Steps) -> list[HostBatch]:
        """The batches of steps, read by one call."""
        began = time.perf_counter()
        samples = self._samples_of(steps)
        sources, epochs, indices = self._plan.locate(samples)
        rows = self._view.load(self._joined(sources, indices), self._buffers.take)
        draw = Draw(samples, epochs, sources, indices, self._source_names, self._plan.state, self._masks)
        batches, delivered, first = [], steps.start, 0
        for size in steps.sizes:
            delivered += size * self._world_size
            last = min(first + size, samples.size)
            end = delivered if self._stop is None else min(delivered, self._stop)
            batches.append(HostBatch(rows, first, last, draw=draw, num_delivered=end))
            first = last
        collating = 0.0 if self._collate is None else _collate_all(batches, self._collate)
        with self._lock:
            self.num_bytes += rows.num_bytes
            self.seconds += time.perf_counter() - began
            self.collate_seconds += collating
        return batches


def _collate_all(batches: list[HostBatch], collate: Callable[[HostBatch], Any]) -> float:
    """Give every batch its data. Returns the seconds that this took."""
    began = time.perf_counter()
    for batch in batches:
        batch.data = collate(batch)
    return time.perf_counter() - began
