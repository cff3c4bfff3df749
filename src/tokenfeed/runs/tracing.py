"""Rows of a run, traced to the shards and documents in them; documents, and the rows that deliver them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.plan.masks import Where, find_documents
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.run_order import Trace
from tokenfeed.runs.legs import Leg
from tokenfeed.runs.origins import Origins
from tokenfeed.store.batch import HostBatch, Sample
from tokenfeed.store.reader import Location
from tokenfeed.store.spans import Span
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["RowTrace", "Seen", "Sightings", "find_rows", "trace_rows"]


@dataclass(frozen=True, slots=True)
class _Row(Trace):
    step: int
    rank: int
    row: int
    """Row in the batch of that rank; where a step has several batches, counted through all of them."""
    planned: bool
    """Whether the run is not known to have got there: it would deliver the row if it goes on."""
    rolled_back: bool
    """Whether the run went back to an earlier checkpoint after it, and ran the step again."""


@dataclass(frozen=True, slots=True)
class Seen(_Row):
    """A row that delivers a document, or is planned to."""

    document: int
    masked: bool
    """Whether `loss_mask` leaves the document out of the loss."""


class _SourceRows:
    """The rows of one step that come from one source: looked up together, when the first of them is asked for."""

    def __init__(self, origins: Origins, source: str) -> None:
        self.plan = origins.plan
        self.indices: list[int] = []
        self._origins, self._source = origins, source

    @cached_property
    def view(self) -> View:
        return self._origins.view(self._source)

    @cached_property
    def batch(self) -> HostBatch:
        return self.view.unread(self.indices)


@dataclass(frozen=True, slots=True)
class RowTrace(_Row):
    """Where a row comes from.

    Its content is looked up in the store on first use, for all rows of the step together: no tokens are read for
    `locations` and `documents`.
    """

    _rows: _SourceRows = field(repr=False, compare=False)
    _place: int = field(repr=False, compare=False)

    @property
    def view(self) -> View:
        """The view that it is a sample of: number `index`."""
        return self._rows.view

    @property
    def locations(self) -> list[Location]:
        """Which items of which shards it is made of."""
        return self._rows.view.locate(self.index)

    @property
    def tokenizer(self) -> str | None:
        """What made its tokens, as in `Store.tokenizer`."""
        return self._rows.view.tokenizer

    @property
    def documents(self) -> Sequence[Span]:
        """The documents in it: number, items [start, stop) of the row, and payload, which is decoded when asked for."""
        table = self._rows.view.span_table
        return [] if table is None else self._rows.batch.spans[table.name][self._place]

    @property
    def masked(self) -> list[int]:
        """Numbers of the documents in it that `loss_mask` leaves out of the loss."""
        numbers = np.array([each.number for each in self.documents], np.int64)
        found: list[int] = numbers[_are_masked(self._rows.plan, self.source, self.sample, numbers)].tolist()
        return found

    @property
    def content(self) -> Sample:
        """The row itself, with its columns and spans; each is read when it is asked for."""
        return self._rows.batch[self._place]


def trace_rows(origins: Origins, leg: Leg, samples: Sequence[int]) -> list[RowTrace]:
    """Samples of the run that a leg delivers. O(1) each; nothing is opened."""
    by_source: dict[str, _SourceRows] = {}
    traced = []
    places = np.stack(leg.place(np.array(samples, np.int64))).T.tolist()
    for trace, (step, rank, row) in zip(origins.plan.trace(samples), places, strict=True):
        k, source = trace.sample, trace.source
        rows = by_source.setdefault(source, _SourceRows(origins, source))
        rows.indices.append(trace.index)
        told = step, rank, row, k >= leg.reached, leg.rolled_back
        traced.append(RowTrace(k, trace.epoch, trace.index, source, *told, rows, len(rows.indices) - 1))
    return traced


def _are_masked(plan: Plan, source: str, samples: Ints | int, documents: Ints) -> Bools:
    """Which documents are masked in samples of the run that come from a source."""
    masked = np.zeros(documents.shape, np.bool_)
    for begin, number, mask in plan.masks:
        if plan.sources[number].name == source:
            masked |= (samples >= begin) & np.isin(documents, mask.documents)
    return masked


class Sightings(Sequence[Seen]):
    """Rows that deliver documents. Kept as arrays: a document of 10⁸ items is in 48,829 windows of 2,048."""

    def __init__(self, columns: Ints, names: Sequence[str], why: str = "") -> None:
        """`columns` are the fields of `Seen`, one array each, with a number in `names` for the source."""
        self._columns = columns
        self._names = names
        self.why = why
        """Why there are none: no document has such a payload, or these epochs deliver none."""

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    @property
    def num_planned(self) -> int:
        """How many of them the run is not known to have delivered."""
        return int(self._columns[7].sum())

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Sightings(self._columns[:, place], self._names)
        sample, epoch, index, source, step, rank, row, planned, back, document, masked = self._columns[
            :, place
        ].tolist()
        told = bool(planned), bool(back), document, bool(masked)
        return Seen(sample, epoch, index, self._names[source], step, rank, row, *told)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self[:4]))}{', …' if len(self) > 4 else ''}] ({len(self):,} rows)"


class _Touching(NamedTuple):
    """Samples that touch documents, one row for each pair."""

    documents: Ints
    samples: Ints

    @classmethod
    def of(cls, view: View, documents: Sequence[int]) -> "_Touching":
        found = [view.samples_touching([each]) for each in documents]
        pairs = np.repeat(np.array(documents, np.int64), [each.size for each in found])
        return cls(pairs, np.concatenate([np.empty(0, np.int64), *found]))


def find_rows(
    parts: Sequence[tuple[Origins, Sequence[Leg]]],
    document: int | None,
    where: Where | None,
    source: str | None,
    epochs: Sequence[int],
) -> Sightings:
    """Every row in which legs deliver a document, or those that `where` chooses; `parts` are legs by their plan."""
    if any(source in origins.names for origins, _ in parts):  # it may have been added on the way
        parts = [part for part in parts if source in part[0].names]
    chosen: dict[Any, tuple[list[int], _Touching]] = {}
    names: list[str] = []
    views: list[View] = []
    found = [np.empty((11, 0), np.int64)]
    for origins, legs in parts:
        for name in origins.choose(source, one=document is not None):
            view = origins.view(name)
            identity = view.identity, view.spec.sample
            if identity not in chosen:
                documents = _known(document, view) if where is None else find_documents(view, where)
                chosen[identity] = documents, _Touching.of(view, documents)
            documents, touching = chosen[identity]
            for epoch in epochs if documents else ():
                samples = origins.plan.find_all(touching.samples, epoch, source=name)
                found += (_rows_of(leg, name, touching, samples, epoch, len(names)) for leg in legs)
            names.append(name)
            views.append(view)
    count = sum(len(documents) for documents, _ in chosen.values())
    if document is not None and not count:
        views[-1].samples_touching([document])  # says how many there are
    rows = np.concatenate(found, axis=1)
    why = f"no row of these epochs delivers {'it' if count == 1 else f'any of {count:,} documents'}"
    if not count and where is not None:
        why = "no document has such a payload"
    why = "" if rows.size else why
    return Sightings(rows[:, np.lexsort((rows[9], rows[0], rows[4]))], names, why)


def _known(document: int | None, view: View) -> list[int]:
    """The document, unless it came with a later growth of the store."""
    table = view.span_table
    return [] if document is None or (table is not None and document >= len(table)) else [document]


def _rows_of(leg: Leg, source: str, touching: _Touching, samples: Ints, epoch: int, number: int) -> Ints:
    """Where a leg delivers samples of an epoch that touch documents: the columns of `Sightings`."""
    held = leg.holds(samples)
    given, documents = samples[held], touching.documents[held]
    told = given >= leg.reached, leg.rolled_back, documents, _are_masked(leg.start.plan, source, given, documents)
    columns = given, epoch, touching.samples[held], number, *leg.place(given), *told
    return np.stack([np.broadcast_to(each, given.shape).astype(np.int64) for each in columns])
