"""From steps of a run to batches: several steps by one reading call.

Documents that must not be learned from are masked: their samples are delivered, and `loss_mask` leaves them out.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.collate import run_collate
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.dealing import StepRule, TokenCounts
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.shares import some
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.batch import Draw, HostBatch
from tokenfeed.store.rows import Rows
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


class _Mask(NamedTuple):
    at: int
    """First sample of the run that the mask applies to."""
    indices: Ints
    """Samples that touch the documents, sorted; numbered through all sources."""
    documents: Ints
    """Documents, numbered through all sources."""

    @classmethod
    def find(cls, views: Sequence[View], at: int, number: int, documents: Sequence[int]) -> "_Mask":
        """The mask of documents of one source; `views` are those of all."""
        view, earlier = views[number], views[:number]
        if view.length is None:
            raise ArgumentError(f"samples of {view} are whole documents; skip {some(documents)} without mask=True")
        touched = view.samples_touching(documents)
        if touched.size == 0:
            raise ArgumentError(f"documents {some(documents)} cannot be masked: no sample touches these documents")
        first_document = sum(len(each.data.spans[each.spec.table]) for each in earlier)
        return cls(at, sum(map(len, earlier)) + touched, first_document + np.array(documents))


def _mask(masks: list[_Mask], table: str, rows: Rows, samples: Ints, start: int, stop: int) -> Bools:
    """(rows, length): False where the target is in a masked document.

    Spans of `table` are looked up only where a sample touches one.
    """
    length = rows.input_length(start, stop)
    mask = np.ones((stop - start, length), np.bool_)
    for at, indices, documents in masks:
        touched = (samples[start:stop] >= at) & np.isin(rows.own[start:stop], indices)
        if touched.any():
            spans = rows.spans(table).part(start, stop, length=length)
            offsets = rows.offsets[start : stop + 1] - rows.offsets[start]
            targets = spans.span_numbers(offsets).reshape(stop - start, -1)[:, 1 : length + 1]
            mask[touched] &= ~np.isin(targets[touched], documents)
    return mask


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
        masks = [_Mask.find(views, *each) for each in plan.masks]
        masking = partial(_mask, masks, views[0].spec.table) if masks else None
        return cls(views[0].join(views[1:]) if len(views) > 1 else views[0], firsts, masking)


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
