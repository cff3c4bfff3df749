"""The work of a loader: from steps of a run to batches, several steps in one reading call."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from tokenfeed.loader.batch import LoadedBatch, MasksOf, Reading
from tokenfeed.loader.feed import Buffers
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.steps import BatchSizes, rows_of
from tokenfeed.store.batch import Batch
from tokenfeed.store.data import Bytes
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = ["Job", "Work", "announced", "make_jobs"]


class Job(NamedTuple):
    """Consecutive steps: how many samples the run has delivered before the first, and the batch size of each.

    Row j of rank r in a step that begins at K is sample K + j·W + r, and the next step begins at K + B·W. So rows of
    consecutive steps are one progression, whatever their batch sizes: K + i·W + r for i = 0, 1, 2, …
    """

    start: int
    sizes: list[int]


def make_jobs(
    start: int, stop: int | None, batch_sizes: BatchSizes, world_size: int, steps_per_job: int
) -> Generator[Job, None, None]:
    """The steps from `start` samples on, to `stop` or without end. The first job is one step, so that it comes soon."""
    steps = 1
    while stop is None or start < stop:
        job = Job(start, [])
        while len(job.sizes) < steps and (stop is None or start < stop):
            size = batch_sizes.at(start)
            job.sizes.append(size)
            start += size * world_size
        yield job
        steps = steps_per_job


def announced(jobs: Iterator[Job], announce: Callable[[Job], None], ahead: int) -> Iterator[Job]:
    """The same jobs; each is announced when it is `ahead` jobs from its turn, though the first ones at once."""
    waiting: deque[Job] = deque()
    for number, job in enumerate(jobs):
        announce(job)
        waiting.append(job)
        if len(waiting) > min(ahead, number // 2):
            yield waiting.popleft()
    yield from waiting


class Work:
    """Makes batches of jobs. Threads may share it."""

    def __init__(
        self,
        plan: Plan,
        view: View,
        rank: int,
        world_size: int,
        stop: int | None,
        buffers: Buffers,
        collate: Callable[[Batch], Any] | None,
        masks: MasksOf | None = None,
    ) -> None:
        self._plan = plan
        self._view = view
        self._rank = rank
        self._world_size = world_size
        self._stop = stop
        self.buffers = buffers
        self._collate = collate
        self._masks = masks
        self._lock = threading.Lock()
        self.num_bytes = 0
        self.seconds = 0.0
        self.collate_seconds = 0.0

    def use_buffers(self, buffers: Buffers) -> None:
        """Where no thread works. One that a fork left behind may hold the lock for ever, so there is a new one."""
        self.buffers = buffers
        self._lock = threading.Lock()

    def announce(self, job: Job) -> None:
        """Begin to fetch what a job will read."""
        with contextlib.suppress(Exception):  # whatever is wrong is told when the job has its turn
            sources, _, indices = self._plan.locate(self._samples_of(job))
            self._view.announce(indices + self._plan.starts[sources])

    def _samples_of(self, job: Job) -> Ints:
        samples = rows_of(job.start, sum(job.sizes), self._rank, self._world_size)
        return samples if self._stop is None else samples[samples < self._stop]

    def __call__(self, job: Job) -> list[LoadedBatch]:
        began = time.perf_counter()
        taken, collating = 0, 0.0

        def allocate(num_bytes: int) -> Bytes:
            nonlocal taken
            taken += num_bytes
            return self.buffers.take(num_bytes)

        samples = self._samples_of(job)
        sources, epochs, indices = self._plan.locate(samples)
        rows = self._view.read(indices + self._plan.starts[sources], allocate=allocate)
        reading = Reading(self._plan.state, rows, samples, epochs, self._masks)
        batches, delivered, first = [], job.start, 0
        for size in job.sizes:
            delivered += size * self._world_size
            last = min(first + size, samples.size)
            end = delivered if self._stop is None else min(delivered, self._stop)
            batch = LoadedBatch(reading, first, last, end, None)
            if self._collate is not None:
                collate_began = time.perf_counter()
                batch.data = self._collate(rows.part(first, last))
                collating += time.perf_counter() - collate_began
            batches.append(batch)
            first = last
        with self._lock:
            self.num_bytes += taken
            self.seconds += time.perf_counter() - began
            self.collate_seconds += collating
        return batches
