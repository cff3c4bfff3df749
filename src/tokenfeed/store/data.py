"""What views and batches need of a store: its columns, its span tables, and the reader."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, MissingError
from tokenfeed.format.manifest import Column
from tokenfeed.kernels.items import ALIGNMENT
from tokenfeed.store.reader import Form, Reader
from tokenfeed.store.spans import SpanTable, SpanTables
from tokenfeed.types import Array, Bytes

__all__ = ["ColumnSet", "Data", "Opening", "new_bytes"]

_REMEMBERED_OUTPUTS = 8
_REMEMBERED_BYTES = 2 << 20
_INT64 = np.dtype(np.int64)
_WIDE = np.dtype(np.int32), _INT64


class Opening(Protocol):
    """A call that opens a store again, wherever this process runs."""

    def __call__(self) -> Any: ...


class Data:
    """A store's content, without the views on it."""

    tokenizer: str | None = None

    def __init__(
        self,
        columns: Mapping[str, Column],
        spans: SpanTables,
        reader: Reader,
        identify: Callable[[], str],
        *,
        paths: Sequence[str] = (),
        opening: Opening | None = None,
        stored: Mapping[str, Column] | None = None,
    ) -> None:
        self.columns = columns
        """Columns in the dtype of batches."""
        self.stored = columns if stored is None else stored
        """Columns in the dtype of files, which may be narrower."""
        self.spans = spans
        self.reader = reader
        self._identify = identify
        self.paths = list(paths)
        """Absolute paths that the store was opened from. A hint for finding it again, never its identity."""
        self.opening = opening
        """What opens the store again in another process; None for data joined from several stores."""
        self.primary = "tokens" if "tokens" in columns else next(iter(columns)) if len(columns) == 1 else None
        """Column that inputs and targets are taken from: `tokens`, or the only one; None where there is neither."""

    @cached_property
    def identity(self) -> str:
        """Checksum of what is in the store. O(shards), once."""
        return self._identify()

    @classmethod
    def join(cls, parts: Sequence["Data"], names: Iterable[str]) -> "Data":
        """Some columns of several stores, one after the other, with the span tables that all of them have.

        They must agree on what an item of these columns is.
        """
        first, *others = parts
        columns = {name: first.columns[name] for name in names}
        for name in columns:
            for number, other in enumerate(others, 1):
                for mine, theirs in ((first.columns, other.columns), (first.stored, other.stored)):
                    if mine[name] != theirs.get(name):
                        raise ArgumentError(
                            f"stores 0 and {number} cannot be read together: column {name!r} is {mine[name]} in one "
                            f"and {theirs.get(name, 'missing')} in the other"
                        )
        codecs = {
            name: table.codec
            for name, table in first.spans.items()
            if all(name in other.spans and other.spans[name].has_same_codec(table) for other in others)
        }
        reader = first.reader.join([other.reader for other in others], list(columns), list(codecs))
        tables = SpanTables({name: SpanTable(name, codec, reader) for name, codec in codecs.items()})
        return cls(columns, tables, reader, lambda: "+".join(part.identity for part in parts), stored=first.stored)

    def delivered_as(self, dtype: npt.DTypeLike | None) -> "Data":
        """The same, with the primary column in a wider dtype; None for the dtype it is stored in."""
        if dtype is None:
            return self
        if self.primary is None:
            raise ArgumentError(f"dtype={dtype} is that of `tokens` or the only column; there is neither")
        stored, wide = self.columns[self.primary], np.dtype(dtype)
        if wide == stored.dtype:
            return self
        possible = [each for each in _WIDE if stored.dtype.kind in "iu" and np.can_cast(stored.dtype, each)]
        if wide not in possible:
            others = "".join(f" or {each}" for each in possible)
            raise ArgumentError(
                f"{self.primary!r} is a column of {stored}; dtype may be {stored.dtype}{others}, not {wide}"
            )
        columns = {**self.columns, self.primary: Column(wide, stored.shape)}
        return Data(
            columns,
            self.spans,
            self.reader,
            lambda: self.identity,
            paths=self.paths,
            opening=self.opening,
            stored=self.columns,
        )

    @property
    def num_items(self) -> int:
        return int(self.reader.starts[-1])

    def column_set(self, names: Iterable[str]) -> "ColumnSet":
        """Columns to be read together; the primary one (or all, if there is none) comes along with those named."""
        wanted = dict.fromkeys(self.columns if self.primary is None else [self.primary])
        return ColumnSet(self, [*wanted, *(name for name in names if name not in wanted)])

    def one_column(self, name: str) -> "ColumnSet":
        return ColumnSet(self, [name])


class ColumnSet:
    """Columns that are read together, and where each lies in the buffer they share (see `kernels/items.py`)."""

    def __init__(self, data: Data, names: Iterable[str]) -> None:
        self.names = tuple(names)
        for name in self.names:
            if name not in data.columns:
                raise MissingError(f"the store has no column {name!r}; it has {', '.join(data.columns) or 'none'}")
        self._columns = [data.columns[name] for name in self.names]
        self._known_outputs: dict[int, tuple[Array, Bytes]] = {}
        self._inner = self._columns[0].shape if self._columns else ()
        self._item_bytes = [column.item_bytes for column in self._columns]
        self.forms = {name: _form(data.stored[name], data.columns[name]) for name in self.names}
        """What the reader must know of each."""

    def buffer_bytes(self, num_items: int) -> int:
        """The size of a buffer that holds `num_items` items of every column."""
        if len(self._columns) == 1:
            return num_items * self._item_bytes[0]
        return self._places(num_items)[-1][1] if self.names else 0

    def _places(self, num_items: int) -> list[tuple[int, int]]:
        """First byte and end of every column in a buffer of `num_items` items."""
        places, stop = [], 0
        for item_bytes in self._item_bytes:
            start = -(-stop // ALIGNMENT) * ALIGNMENT
            stop = start + num_items * item_bytes
            places.append((start, stop))
        return places

    def array(self, name: str, shape: tuple[int, ...], buffer: Bytes) -> Array:
        """One column of a buffer whose rows have that shape. A view, not a copy."""
        number = self.names.index(name)
        start, _ = self._places(math.prod(shape))[number]
        column = self._columns[number]
        return np.ndarray((*shape, *column.shape), column.dtype, buffer.data, start)

    def flat_out(self, out: Any, shape: tuple[int, ...]) -> Bytes | None:
        """The bytes of an array that can take the rows of the only column; None for anything else.

        (The short form of `check_out`. Arrays that are given again, as in a loop, are looked at once.)
        """
        known = self._known_outputs.get(id(out))
        if known is not None and known[0] is out and out.shape == shape + self._inner:
            return known[1]
        if type(out) is not np.ndarray or len(self._columns) != 1:
            return None
        column = self._columns[0]
        if out.dtype != column.dtype or not out.flags.carray or out.shape != shape + column.shape:
            return None
        flat = out.reshape(-1).view(np.uint8)
        if flat.size <= _REMEMBERED_BYTES:
            if len(self._known_outputs) >= _REMEMBERED_OUTPUTS:
                self._known_outputs.clear()
            self._known_outputs[id(out)] = out, flat
        return flat

    def check_out(self, out: Array | Mapping[str, Array], shape: tuple[int, ...]) -> dict[str, Array]:
        """The caller's arrays by column, if they can take rows of that shape."""
        given = {self.names[0]: out} if isinstance(out, np.ndarray) and self.names else out
        if not isinstance(given, Mapping):
            raise ArgumentError(f"out must be an array, or arrays by column, not {type(out).__name__}")
        if given.keys() != set(self.names):
            raise ArgumentError(f"out has {', '.join(given)}; this view reads {', '.join(self.names)}")
        for name, column in zip(self.names, self._columns, strict=True):
            array, expected = given[name], (*shape, *column.shape)
            if array.shape != expected or array.dtype != column.dtype:
                raise ArgumentError(
                    f"out for {name!r} is {array.dtype} of shape {array.shape}; expected {column.dtype} of {expected}"
                )
            if not array.flags.carray:
                raise ArgumentError(f"out for {name!r} must be C-contiguous, aligned and writeable")
        return {name: given[name] for name in self.names}


def _form(stored: Column, delivered: Column) -> Form:
    number_bytes = stored.dtype.itemsize
    sign = 1 << (8 * number_bytes - 1) if stored.dtype.kind == "i" and number_bytes < _INT64.itemsize else 0
    return Form(stored.item_bytes, delivered.item_bytes, number_bytes, sign)


def new_bytes(num_bytes: int) -> Bytes:
    return np.empty(num_bytes, np.uint8)
