"""Documents that a run delivers without learning from them; and which documents have such a payload.

Samples stay where they are, so a run can return to a checkpoint before a loss spike, mask what caused it, and repeat
nothing. A sample that is a whole masked document is delivered, too, with nothing learned in it.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, MissingError, NotFoundError, PlanMismatchError, StateError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.plan.shares import some
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = ["Documents", "Mask", "Where", "check_where", "find_documents"]

Documents: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]] | str | os.PathLike[str]
"""Numbers of documents, or the path of a `.npy` that holds them."""
Where = Callable[[Any], bool] | Mapping[str, Any]
"""Which documents: a function that their payloads must satisfy, or fields that they must have."""

_MOST_BYTES = 120
"""Numbers that are written out in states and run files, as JSON; more of them lie in a file."""
_SLICE = 4096  # payloads that are read together: some MB, and Ctrl-C is heard between


class Mask:
    """Documents of one source, by number. Many of them lie in a `.npy`, known by its path and a digest."""

    def __init__(self, documents: Ints | None, path: str | None = None, digest: str | None = None) -> None:
        """`documents` are sorted; None where they are still to be read from `path`, and must then have this digest."""
        self.path = path
        if documents is not None:
            self.documents = documents
        self.digest = checksum(self.documents.tobytes()) if digest is None else digest

    @classmethod
    def of(cls, given: Documents) -> "Mask":
        """The mask of documents as a user gives them."""
        if isinstance(given, str | os.PathLike):
            path = Path(given).absolute()
            return cls(_read(path), str(path))
        documents = _check_numbers(given, "mask")
        if len(json.dumps(documents.tolist())) > _MOST_BYTES:
            raise ArgumentError(
                f"mask has {documents.size:,} documents, which every checkpoint would hold: save them once, "
                'np.save("masked.npy", numbers), and give the path, mask="masked.npy"'
            )
        return cls(documents)

    @cached_property
    def documents(self) -> Ints:
        """The numbers, sorted. A file is read when they are first asked for."""
        assert self.path is not None
        found = _read(Path(self.path))
        if checksum(found.tobytes()) != self.digest:
            raise PlanMismatchError(
                f"{self.path} holds other documents than when the run masked them; put that file there again"
            )
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Mask({self.path or some(self.documents.tolist())})"

    def to_json(self) -> Any:
        return self.documents.tolist() if self.path is None else {"path": self.path, "digest": self.digest}

    @classmethod
    def from_json(cls, value: Any) -> "Mask":
        match value:
            case {"path": str(path), "digest": str(digest)}:
                return cls(None, path, digest)
            case [*numbers] if all(type(each) is int and 0 <= each < 1 << 62 for each in numbers):
                return cls(np.unique(np.array(numbers, np.int64)))
        raise StateError(f"{str(value)[:80]} describes no mask")


def _read(path: Path) -> Ints:
    try:
        found = np.load(path, mmap_mode="r")
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such file of documents to mask", filename=str(path)) from error
    except (ValueError, OSError) as error:
        raise ArgumentError(f"{path} is no .npy of document numbers: {error}") from error
    return _check_numbers(found, str(path))


def _check_numbers(given: Any, told: str) -> Ints:
    """Document numbers, sorted, each once."""
    found = np.asarray(given)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not found.size:
        raise ArgumentError(f"{told} is {str(given)[:80]!r}; expected numbers of documents: mask=[17, 42]")
    numbers: Ints = np.unique(found.astype(np.int64))
    if numbers[0] < 0:
        raise ArgumentError(f"{told} names document {numbers[0]}; documents are numbered from 0 on")
    return numbers


def check_where(where: Any) -> None:
    if not callable(where) and not isinstance(where, Mapping):
        raise ArgumentError(
            f'where is {where!r}; expected fields of the payload, where={{"id": "a-17"}}, or a function of it'
        )


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
