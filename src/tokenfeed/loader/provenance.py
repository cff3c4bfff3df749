"""From rows of a run to the data behind them, and from a document to the rows it is in.

A plan knows samples by number alone. Here are the views that it was made over, opened again and checked to be the same.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError, NotAStoreError, PlanMismatchError, StateError
from tokenfeed.plan.mixture import MixturePlan
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Ints, jump_back
from tokenfeed.store.batch import Batch, Sample
from tokenfeed.store.documents import DocumentBatch, Documents
from tokenfeed.store.packed import Packed, PackedBatch
from tokenfeed.store.reader import Location
from tokenfeed.store.spans import Span, SpanTable
from tokenfeed.store.store import Store, open_store
from tokenfeed.store.windows import WindowBatch, Windows

__all__ = [
    "AnyPlan",
    "Hints",
    "Origins",
    "Places",
    "RowTrace",
    "Seen",
    "Sightings",
    "Where",
    "make_view",
    "open_data",
]

AnyPlan = Plan | MixturePlan
Hints = Mapping[str, Sequence[str]]
"""Where the data of each source lay when the run began; the name of the source of a run over one view is empty."""
Places = Mapping[str, Any] | Any
"""Where the data of each source is now: a path, a `Store` or a view by name, or only that where there is one source."""
Where = Callable[[Any], bool] | Mapping[str, Any]
"""Which documents: what their payloads must fulfil, or the fields that they must have."""

_WINDOWS = re.compile(r"windows\((?P<length>[0-9]+)(, extra=(?P<extra>[0-9]+))?(, group=(?P<group>[0-9]+))?\)")
_DOCUMENTS = re.compile(r"documents\('(?P<table>[A-Za-z0-9_-]+)'\)")
_PACKED = re.compile(r"packed\((?P<length>[0-9]+)(, '(?P<table>[A-Za-z0-9_-]+)')?\) by algorithm [0-9]+")
_SLICE = 4096  # payloads that are read together: some MB, and Ctrl-C is heard between


def make_view(store: Store, description: str) -> Any:
    """The view of a store that describes itself so: `windows(2048)`, `documents('documents')`, …"""
    view: Any = None
    if match := _WINDOWS.fullmatch(description):
        extra, group = match["extra"] or "1", match["group"]
        view = store.windows(int(match["length"]), extra=int(extra), group=None if group is None else int(group))
    elif match := _DOCUMENTS.fullmatch(description):
        view = store.documents(match["table"])
    elif match := _PACKED.fullmatch(description):
        view = store.packed(int(match["length"]), table=match["table"] or "documents")
    else:
        raise StateError(
            f"the run is over {description!r}, which this tokenfeed cannot make of a store; expected windows, "
            "documents or packed. Open the view yourself and give it as stores={source: view}"
        )
    return _check_description(view, description)


def _check_description(view: Any, description: str) -> Any:
    if view.description != description:
        raise PlanMismatchError(
            f"the run is over {description!r}; this view is {view.description!r}, whose samples are others"
        )
    return view


def document_table(description: str) -> str:
    """The span table that documents of a view are numbered in."""
    match = _DOCUMENTS.fullmatch(description) or _PACKED.fullmatch(description)
    return (match and match["table"]) or "documents"


class Origins:
    """The views that a plan is over, each opened when it is first asked for, and checked to be what the plan is of."""

    def __init__(self, plan: AnyPlan, hints: Hints, places: Places | None, opened: dict[Any, Any]) -> None:
        """Views opened by `hints` are kept in `opened`, which several may share."""
        self.plan = plan
        self._hints = hints
        self._opened = opened
        sources = plan.sources if isinstance(plan, MixturePlan) else ()
        self._identities = {each.name: (each.data, each.view) for each in sources}
        if isinstance(plan, Plan):
            self._identities = {"": (plan.data, plan.view)}
        self._places = self._by_name(places)

    def _by_name(self, places: Places | None) -> Mapping[str, Any]:
        if places is None or isinstance(places, Mapping):
            return places or {}
        if len(self._identities) > 1:
            raise ArgumentError(f"of which source is {places}? Give stores={{name: …}}; there are {self._told}")
        return dict.fromkeys(self._identities, places)

    @property
    def _told(self) -> str:
        return ", ".join(self._identities)

    @property
    def names(self) -> list[str | None]:
        """The sources; None for that of a plan over one view."""
        return [name or None for name in self._identities]

    def choose(self, source: str | None, *, one: bool) -> list[str | None]:
        """The source of that name; without a name all, or if it must be `one`, the only one."""
        if source is None and one and len(self._identities) > 1:
            raise ArgumentError(f"of which source? Document numbers count in each; there are {self._told}")
        if source is not None and (isinstance(self.plan, Plan) or source not in self._identities):
            has = "one view, and sources have no names" if isinstance(self.plan, Plan) else self._told
            raise ArgumentError(f"there is no source {source!r}; the run has {has}")
        return self.names if source is None else [source]

    def identity(self, source: str | None) -> tuple[str, str]:
        """Which data, and what is a sample of it."""
        return self._identities[source or ""]

    def table(self, source: str | None) -> str:
        """The name of the span table that documents of a source are numbered in."""
        return document_table(self.identity(source)[1])

    def view(self, source: str | None) -> Any:
        """The view of a source. Opening reads the manifest, and the identity is O(shards); then it is at hand."""
        name = source or ""
        identity, description = self.identity(source)
        given = self._places.get(name)
        told = f"the data of source {name!r}" if name else "the data"
        if given is None:
            key = (name, identity, description, tuple(self._hints.get(name, ())))
            if key not in self._opened:
                self._opened[key] = self._open_hinted(name, told, identity, description)
            return self._opened[key]
        if hasattr(given, "description"):
            _check_identity(given.identity, identity, told, given)
            return _check_description(given, description)
        return make_view(open_data(given, identity, told), description)

    def _open_hinted(self, name: str, told: str, identity: str, description: str) -> Any:
        paths = list(self._hints.get(name, ()))
        remedy = f"say where it is: stores={{{name!r}: path}}, or --store {name + '=' if name else ''}PATH"
        if not paths:
            raise MissingError(f"the run file does not tell where {told} lies; {remedy}")
        try:
            store = open_data(paths if len(paths) > 1 else paths[0], identity, told)
        except NotAStoreError as error:
            raise NotAStoreError(
                f"{told} was in {', '.join(paths)} when the run began, and is not there now ({error}); {remedy}"
            ) from error
        return make_view(store, description)


def open_data(place: Any, identity: str, told: str) -> Store:
    """The store at a path, or the split of it, that has this identity."""
    if isinstance(place, Store):
        _check_identity(place.identity, identity, told, place)
        return place
    if not isinstance(place, str | os.PathLike | Sequence):
        raise ArgumentError(f"{told} is to be found in {place!r}; expected a path, paths, a Store or a view")
    store = open_store(place)
    if store.identity != identity:
        for split in store.splits:
            part = open_store(place, split=split)
            if part.identity == identity:
                return part
    _check_identity(store.identity, identity, told, place)
    return store


def _check_identity(found: str, expected: str, told: str, where: Any) -> None:
    if found != expected:
        raise PlanMismatchError(
            f"{told} had identity {expected} when the run began; what is at {where} has {found}. It has changed, or is "
            "another store: give the one that the run was over"
        )


class _Rows:
    """The rows of one step that come from one source: looked up together, when the first of them is asked for."""

    def __init__(self, origins: Origins, source: str | None) -> None:
        self._origins = origins
        self._source = source
        self.indices: list[int] = []

    @cached_property
    def view(self) -> Any:
        return self._origins.view(self._source)

    @cached_property
    def batch(self) -> Batch:
        return _unread(self.view, np.array(self.indices, np.int64))

    def documents(self, place: int) -> Sequence[Span]:
        table = self._origins.table(self._source)
        spans: Sequence[Span] = self.batch.spans_of(table)[place] if table in self.batch.tables else []
        return spans


def _unread(view: Any, indices: Ints) -> Batch:
    """Samples as a batch of which no column is read before it is asked for."""
    if isinstance(view, Windows):
        return WindowBatch(view, indices, {})
    if isinstance(view, Packed):
        return PackedBatch(view, indices, view.rows.find(indices))
    if isinstance(view, Documents):
        first_items, lengths = view._table.locate(indices)
        return DocumentBatch(view, indices, first_items, np.concatenate(([0], np.cumsum(lengths))))
    batch: Batch = view.read(indices)
    return batch


@dataclass(frozen=True, slots=True)
class RowTrace:
    """Where a row that was delivered comes from.

    What is in it is looked up in the store on first use, for all rows of the step together: no tokens are read for
    `locations` and `documents`.
    """

    sample: int
    """k, its number in the run."""
    rank: int
    row: int
    """In the batch of that rank."""
    epoch: int
    """Of a mixture, that of the source."""
    index: int
    """Its number in the view of the source."""
    source: str | None
    """None where the run is over one view."""
    _rows: _Rows = field(repr=False, compare=False)
    _place: int = field(repr=False, compare=False)

    @property
    def locations(self) -> list[Location]:
        """Which items of which shards it is made of."""
        found: list[Location] = self._rows.view.locate(self.index)
        return found

    @property
    def documents(self) -> Sequence[Span]:
        """The documents in it: number, items [start, stop) of the row, and payload, which is decoded when asked for."""
        return self._rows.documents(self._place)

    @property
    def content(self) -> Sample:
        """The row itself, with its columns and spans; each is read when it is asked for."""
        return self._rows.batch[self._place]


def trace_rows(origins: Origins, samples: Sequence[int], ranks: Sequence[int], rows: Sequence[int]) -> list[RowTrace]:
    """Rows of one step by their numbers in the run. O(1) each; nothing is opened."""
    by_source: dict[str | None, _Rows] = {}
    traced = []
    for trace, rank, row in zip(origins.plan.trace(samples), ranks, rows, strict=True):
        together = by_source.setdefault(trace.source, _Rows(origins, trace.source))
        place = len(together.indices)
        together.indices.append(trace.index)
        traced.append(RowTrace(trace.sample, rank, row, trace.epoch, trace.index, trace.source, together, place))
    return traced


class Seen(NamedTuple):
    """A row in which a document was delivered."""

    sample: int
    """k, its number in the run."""
    step: int
    rank: int
    row: int
    """In the batch of that rank."""
    epoch: int
    """Of a mixture, that of the source."""
    index: int  # type: ignore[assignment]  # tuples have a method of that name; it is not missed
    """Its number in the view of the source."""
    document: int
    source: str | None
    """None where the run is over one view."""


class Sightings(Sequence[Seen]):
    """Rows in which documents were delivered. Kept as arrays: a document of 10⁸ items is in 48,829 windows of 2,048."""

    def __init__(self, columns: Ints, names: Sequence[str | None]) -> None:
        """`columns` are those of `Seen`, one below the other, with a number in `names` for the source."""
        self._columns = columns
        self._names = names

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Sightings(self._columns[:, place], self._names)
        *fields, source = self._columns[:, place].tolist()
        return Seen._make([*fields, self._names[source]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self[:4]))}{', …' if len(self) > 4 else ''}] ({len(self):,} rows)"


def find_documents(table: SpanTable, where: Where) -> list[int]:
    """The documents whose payloads fulfil `where`: all payloads are read and decoded, a slice at a time.

    A mapping is fulfilled by payloads that are mappings with these fields, equal. Documents without payload are not
    looked at.
    """
    found = []
    for first in range(0, len(table), _SLICE):
        numbers = np.arange(first, min(first + _SLICE, len(table)))
        data, starts, stops = table.read(numbers)
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if start >= 0 and _fulfils(table.decode(data.data[start:stop], number), where):
                found.append(number)
    return found


def _fulfils(payload: Any, where: Where) -> bool:
    if callable(where):
        return bool(where(payload))
    missing = object()
    return isinstance(payload, Mapping) and all(payload.get(name, missing) == value for name, value in where.items())


def find_samples(plan: AnyPlan, source: str | None, indices: Ints, epoch: int) -> Ints:
    """The k at which samples of a source are delivered in one of its epochs, −1 where never: `plan.find` for many.

    100 ns each; with samples skipped, some 20 µs each.
    """
    own = plan.plans[plan.source_number(source or "")] if isinstance(plan, MixturePlan) else plan
    positions = epoch * own.num_samples + own._places(epoch, indices)
    numbers = jump_back(own._removals.to_numbers(positions), own._ranges)
    if isinstance(plan, MixturePlan):
        numbers = jump_back(plan.schedule.find(plan.source_number(source or ""), numbers), plan._ranges)
    return numbers
