"""Samples and documents that a run must not see.

They are left out, or masked, in every epoch of their source, from the amendment on that skips them. That changes only
what comes later, so a run can return to a checkpoint before a loss spike, skip what caused it, and repeat nothing.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, MissingError
from tokenfeed.store.view import View

__all__ = ["Skip", "Where", "check_skips", "check_where", "find_documents"]

Where = Callable[[Any], bool] | Mapping[str, Any]
"""Which documents: a function that their payloads must satisfy, or fields that they must have."""

_FIELDS = {"documents": list, "indices": list, "source": str, "mask": bool}
_SLICE = 4096  # payloads that are read together: some MB, and Ctrl-C is heard between


@dataclass(frozen=True, slots=True)
class Skip:
    """What not to see, for `amend(skip=…)`: `documents` or `indices` of the data.

    >>> Skip(documents=[17, 4711], mask=True)  # samples stay, and `batch.loss_mask` leaves the documents out
    >>> Skip(documents=[17, 4711])             # of `store.documents()`, where a document is a sample of its own
    >>> Skip(where={"id": "a-17"}, mask=True)  # documents by their payload: fields, or a function of it
    >>> Skip(indices=[5])                      # sample 5 of the view
    >>> Skip(indices=[5], source="web")
    """

    documents: Sequence[int] = ()
    indices: Sequence[int] = ()
    source: str | None = None
    """Name of the source that `documents` or `indices` count in; required in a mixture of several sources."""
    mask: bool = False
    """Whether samples that touch `documents` are delivered with these documents masked. Samples of more than one
    document are never dropped for one of them."""
    where: Where | None = None
    """Which documents, by their payloads: all of the source are read to find them."""

    def __post_init__(self) -> None:
        for name in ("documents", "indices"):
            numbers = _whole(name, getattr(self, name))
            object.__setattr__(self, name, tuple(sorted(set(numbers))))
        if self.where is not None:
            check_where(self.where)
        if not self.documents and not self.indices and self.where is None:
            raise ArgumentError("a Skip needs documents, indices or where")
        if self.mask and (self.indices or (not self.documents and self.where is None)):
            raise ArgumentError(f"{self}: mask=True goes with documents or where, and with nothing else")

    def resolve(self, view: View) -> "Skip":
        """The same skip with the numbers of its documents, and unless it masks them, of the samples that they are."""
        documents = self.documents
        if self.where is not None:
            documents = (*documents, *find_documents(view, self.where))
            if not documents:
                raise ArgumentError(f"{self} skips nothing: no document has such a payload")
        found = replace(self, documents=documents, where=None)
        if not documents or self.mask:
            return found
        if view.length is not None:
            raise ArgumentError(f"{found}: samples of {view} hold other documents, too; mask it, with mask=True")
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


def _whole(name: str, given: Any) -> list[int]:
    try:
        return [operator.index(number) for number in given]
    except TypeError:
        raise ArgumentError(f"{name} is {given!r}; expected a list of whole numbers: Skip({name}=[17, 42])") from None


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
    table = view.span_table
    if table is None:
        raise MissingError(f"{view} has no documents to look for: its store has no span table {view.spec.table!r}")
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
