"""Samples that a run must not see: ranges of the run, and samples or documents of its data.

A run numbers the samples it delivers k = 0, 1, 2, … without gaps, whatever it skips. A range is a jump. Samples and
documents are left out of every epoch of their source, from the amendment on that skips them. Both change only what
comes later, so a run can return to a checkpoint before a loss spike, skip what caused it, and repeat nothing.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError
from tokenfeed.plan.rounding import some
from tokenfeed.store.store import open_store
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = [
    "Range",
    "Ranges",
    "Skip",
    "Where",
    "check_skips",
    "check_where",
    "explain_missing",
    "find_documents",
]

Range = tuple[int, int]
Where = Callable[[Any], bool] | Mapping[str, Any]
"""Which documents: a function that their payloads must satisfy, or fields that they must have."""

_FIELDS = {"samples": list, "documents": list, "indices": list, "source": str, "mask": bool}
_SLICE = 4096  # payloads that are read together: some MB, and Ctrl-C is heard between


@dataclass(frozen=True, slots=True)
class Skip:
    """Samples not to see, for `amend(skip=…)`: `samples`, a range of the run; or `documents` or `indices` of its data.

    A range counts in the run as it was before it was amended.

    >>> Skip(samples=(81_000, 82_000))   # what steps around a loss spike would have delivered
    >>> Skip(documents=[17, 4711])       # every sample that touches these documents
    >>> Skip(where={"id": "a-17"})       # documents by their payload: fields, or a function of it
    >>> Skip(indices=[5])                # sample 5 of the view
    >>> Skip(documents=[17], source="web")
    >>> Skip(documents=[17], mask=True)  # samples stay, and `batch.loss_mask` leaves the document out
    """

    samples: Range | None = None
    documents: Sequence[int] = ()
    indices: Sequence[int] = ()
    source: str | None = None
    """Name of the source that `documents` or `indices` count in; required in a mixture of several sources."""
    mask: bool = False
    """Whether samples that touch `documents` are delivered with these documents masked, instead of dropped."""
    where: Where | None = None
    """Which documents, by their payloads: all of the source are read to find them."""

    def __post_init__(self) -> None:
        for name in ("documents", "indices"):
            numbers = _whole(name, getattr(self, name), "a list of whole numbers", f"{name}=[17, 42]")
            object.__setattr__(self, name, tuple(sorted(set(numbers))))
        if self.where is not None:
            check_where(self.where)
        if self.samples is not None:
            given = _whole("samples", self.samples, "a range (start, stop) of the run", "samples=(450, 470)")
            start, stop = given if len(given) == 2 else (0, 0)
            object.__setattr__(self, "samples", tuple(given))
            others = self.documents or self.indices or self.source is not None or self.where is not None
            if not 0 <= start < stop or others:
                raise ArgumentError(
                    f"{self}: samples is a range (start, stop) of the run with 0 <= start < stop, and stands alone"
                )
        elif not self.documents and not self.indices and self.where is None:
            raise ArgumentError("a Skip needs samples, documents, indices or where")
        if self.mask and (self.indices or (not self.documents and self.where is None)):
            raise ArgumentError(f"{self}: mask=True goes with documents or where, and with nothing else")

    def resolve(self, view: View) -> "Skip":
        """The same skip with the numbers of its documents, and unless it masks them, of the samples that touch them."""
        documents = self.documents
        if self.where is not None:
            documents = (*documents, *find_documents(view, self.where))
            if not documents:
                raise ArgumentError(f"{self} skips nothing: {explain_missing(view, self.where)}")
        found = replace(self, documents=documents, where=None)
        if not documents or self.mask:
            return found
        touched = view.samples_touching(documents).tolist()
        if not touched and not self.indices:
            raise ArgumentError(f"{found}: no sample of {view} touches these documents")
        return replace(found, indices=(*self.indices, *touched))

    def __repr__(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        told = {name: _shorten(value) for name, value in given.items() if value not in ((), None, False)}
        return f"Skip({', '.join(f'{name}={value}' for name, value in told.items())})"

    def to_json(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _FIELDS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}

    @classmethod
    def from_json(cls, value: Any) -> "Skip":
        told = f"{str(value)[:80]} describes no skip"
        if not isinstance(value, dict) or any(type(each) is not _FIELDS.get(name) for name, each in value.items()):
            raise ArgumentError(told)
        numbers = [each for part in value.values() for each in (part if isinstance(part, list) else [part])]
        if not all(isinstance(each, str | bool) or (type(each) is int and 0 <= each < 1 << 62) for each in numbers):
            raise ArgumentError(f"{told}: its numbers are whole, from 0 to 2**62")
        return cls(**value)


def _whole(name: str, given: Any, expected: str, example: str) -> list[int]:
    try:
        return [operator.index(number) for number in given]
    except TypeError:
        raise ArgumentError(f"{name} is {given!r}; expected {expected}: Skip({example})") from None


def check_skips(skip: Any) -> tuple[Skip, ...]:
    """One skip or several, if they are some."""
    given = tuple(skip) if isinstance(skip, Iterable) else (skip,)
    if not all(isinstance(each, Skip) for each in given):
        raise ArgumentError(f"skip is {skip!r}; expected a Skip, or a list of them: skip=Skip(documents=[17])")
    return given


def check_where(where: Any) -> None:
    if not callable(where) and not isinstance(where, Mapping):
        raise ArgumentError(
            f'where is {where!r}; expected fields of the payload, where={{"id": "a-17"}}, or a function of it'
        )


def _shorten(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 8:
        return f"[{', '.join(map(str, value[:8]))}, … {len(value) - 8:,} more]"
    return repr(value)


def find_documents(view: View, where: Where) -> list[int]:
    """The documents of a view whose payloads satisfy `where`: all are read and decoded, a slice at a time.

    A mapping is satisfied by payloads that are mappings with these fields, equal. Documents without payload do not
    count.
    """
    return [number for number, payload in _payloads(view) if _satisfies(payload, where)]


def _payloads(view: View) -> Iterator[tuple[int, Any]]:
    table = view.span_table
    if table is None:
        raise MissingError(f"{view} has no documents to look for: its store has no span table {view.spec.table!r}")
    for first in range(0, len(table), _SLICE):
        numbers = np.arange(first, min(first + _SLICE, len(table)))
        data, starts, stops = table.read(numbers)
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if start >= 0:
                yield number, table.decode(data.data[start:stop], number)


def _satisfies(payload: Any, where: Where) -> bool:
    if callable(where):
        return bool(where(payload))
    missing = object()
    return isinstance(payload, Mapping) and all(payload.get(name, missing) == value for name, value in where.items())


def explain_missing(view: View, where: Where) -> str:
    """Why no document of a view satisfies `where`: no such field, another split of its store, or nowhere."""
    if isinstance(where, Mapping):
        names = {name for _, payload in _payloads(view) if isinstance(payload, Mapping) for name in payload}
        unknown = sorted(set(where) - names)
        if unknown:
            return f"no payload has a field {unknown[0]!r}; there are {some(sorted(names, key=str))}"
    place = view.paths if len(view.paths) > 1 else view.paths[0]
    for split in filter(None, open_store(place, split="all").splits):
        part = open_store(place, split=split)
        if part.identity != view.identity and find_documents(part.documents(view.spec.table), where):
            return f"it is in split {split!r} of the store, which is not this one"
    return "no document has such a payload"


class Ranges(list[Range]):
    """Skipped ranges of a run, in the numbers that it has without skips: sorted, those that touch or overlap as one.

    (10, 15) and (50, 60):  k = 9 → 9, 10 → 15, 44 → 49, 45 → 60
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        merged: list[Range] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                start, last = merged.pop()
                stop = max(stop, last)
            merged.append((start, stop))
        super().__init__(merged)
        self._starts, self._stops = np.array(merged, np.int64).reshape(-1, 2).T
        self._skipped = np.concatenate([[0], np.cumsum(self._stops - self._starts)])

    def jump(self, samples: Ints) -> Ints:
        """k → its number in the run without skips."""
        jumps = self._starts - self._skipped[:-1]
        return np.asarray(samples + self._skipped[np.searchsorted(jumps, samples, side="right")])

    def jump_back(self, numbers: Ints) -> Ints:
        """Undo `jump`; −1 for numbers that are skipped, and for those that are −1."""
        before = np.searchsorted(self._starts, numbers, side="right")
        skipped = (before > 0) & (numbers < np.append(0, self._stops)[before])
        return np.where(skipped | (numbers < 0), -1, numbers - self._skipped[before])

    def retreat(self, number: int) -> int:
        """The first k that `jump` takes to `number` or beyond it."""
        return number - sum(min(stop, number) - start for start, stop in self if start < number)
