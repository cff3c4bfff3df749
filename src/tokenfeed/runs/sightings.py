"""Documents, and the rows of a run that deliver them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import MissingError
from tokenfeed.runs.history import Leg
from tokenfeed.runs.origins import Origins
from tokenfeed.store.spans import SpanTable
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = ["Seen", "Sightings", "Where", "find_rows"]

Where = Callable[[Any], bool] | Mapping[str, Any]
"""Which documents: a function that their payloads must satisfy, or fields that they must have."""

_SLICE = 4096  # payloads that are read together: some MB, and Ctrl-C is heard between


class Seen(NamedTuple):
    """A row that delivers a document."""

    sample: int
    """k, its number in the run."""
    step: int
    rank: int
    row: int
    """Row in the batch of that rank."""
    epoch: int
    """Epoch of its source."""
    index: int  # type: ignore[assignment]  # tuples have a method of that name; it is not missed
    """Its number in the view of its source."""
    document: int
    source: str
    """Name of its source; empty where the run is over one view."""


class Sightings(Sequence[Seen]):
    """Rows that deliver documents. Kept as arrays: a document of 10⁸ items is in 48,829 windows of 2,048."""

    def __init__(self, columns: Ints, names: Sequence[str]) -> None:
        """`columns` are the fields of `Seen`, one array each, with a number in `names` for the source."""
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
    touching: dict[Any, list[tuple[int, Ints]]] = {}
    names: list[str] = []
    found = [np.empty((8, 0), np.int64)]
    for origins, legs in parts:
        for name in origins.choose(source, one=document is not None):
            identity = origins.identity(name)
            if identity not in touching:
                touching[identity] = list(_touching(origins.view(name), document, where))
            found += _rows_of(legs, name, touching[identity], epochs, len(names))
            names.append(name)
    rows = np.concatenate(found, axis=1)
    return Sightings(rows[:, np.lexsort((rows[6], rows[0], rows[1]))], names)


def _touching(view: View, document: int | None, where: Where | None) -> Iterator[tuple[int, Ints]]:
    """(document, samples that it is part of) for every document that is looked for."""
    if document is not None:
        yield document, view.samples_touching([document])
    elif where is not None:
        if view.span_table is None:
            raise MissingError(f"{view} has no documents to look for: its store has no span table {view.spec.table!r}")
        for number in _find_documents(view.span_table, where):
            yield number, view.samples_touching([number])


def _rows_of(
    legs: Sequence[Leg], source: str, touching: Sequence[tuple[int, Ints]], epochs: Sequence[int], number: int
) -> Iterator[Ints]:
    """Where legs with one plan deliver the samples of documents: the columns of `Sightings`."""
    if not touching:
        return
    indices = np.concatenate([samples for _, samples in touching])
    documents = np.repeat([document for document, _ in touching], [samples.size for _, samples in touching])
    for epoch in epochs:
        samples = legs[0].start.plan.find_all(indices, epoch, source=source)
        for leg in legs:
            held = leg.holds(samples)
            same = np.full((2, np.count_nonzero(held)), [[epoch], [number]])
            places = leg.place(samples[held])
            yield np.stack([samples[held], *places, same[0], indices[held], documents[held], same[1]])


def _find_documents(table: SpanTable, where: Where) -> list[int]:
    """The documents whose payloads satisfy `where`: all payloads are read and decoded, a slice at a time.

    A mapping is satisfied by payloads that are mappings with these fields, equal. Documents without payload do not
    count.
    """
    found = []
    for first in range(0, len(table), _SLICE):
        numbers = np.arange(first, min(first + _SLICE, len(table)))
        data, starts, stops = table.read(numbers)
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if start >= 0 and _satisfies(table.decode(data.data[start:stop], number), where):
                found.append(number)
    return found


def _satisfies(payload: Any, where: Where) -> bool:
    if callable(where):
        return bool(where(payload))
    missing = object()
    return isinstance(payload, Mapping) and all(payload.get(name, missing) == value for name, value in where.items())
