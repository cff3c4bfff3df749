"""What views and batches need of a store: its columns, its span tables, and the reader."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, FitError, MissingError, PlanMismatchError, TooLargeError, quantity
from tokenfeed.format.codecs import Codec
from tokenfeed.format.manifest import Column
from tokenfeed.kernels.items import ALIGNMENT
from tokenfeed.store.reader import Reader, ReadOptions
from tokenfeed.store.resolve import Content, StoreVersion
from tokenfeed.store.shards import Shard
from tokenfeed.store.spans import SpanTable, SpanTables
from tokenfeed.types import Array, Bytes, Ints

__all__ = ["ColumnSet", "Data", "new_bytes", "offsets_of"]

_MOST_ITEMS = 1 << 62

_REMEMBERED_OUTPUTS = 8
_REMEMBERED_BYTES = 2 << 20


class Data:
    """The content of one or more stores as one long array, without the views on it."""

    def __init__(
        self,
        contents: Sequence[Content],
        columns: Mapping[str, Column],
        codecs: Mapping[str, Codec | None],
        options: ReadOptions,
        *,
        paths: Sequence[str] = (),
        opening: partial[Any] | None = None,
    ) -> None:
        """Of the contents, only these columns and span tables. `opening` opens a store again in another process."""
        self.contents = contents
        self.columns = columns
        """Dtype and inner shape of every column, by name."""
        self.shards: Sequence[Shard] = [shard for content in contents for shard in content.shards]
        """What writers wrote, in the order of the store."""
        self.reader = Reader(self.shards, list(columns), list(codecs), options)
        self.num_items = int(self.reader.starts[-1])
        """Of all its shards, or of those of the split it was opened for."""
        self.spans = SpanTables({name: SpanTable(name, codec, self.reader) for name, codec in codecs.items()})
        """The span tables by name."""
        self.tokenizer = contents[0].manifest.tokenizer
        """A name for what made the tokens; where `prepare` wrote the store, `Tokenizer.identity`: the digest of the
        tokenizer, and the tokens around every document."""
        self.provenance = contents[0].manifest.provenance
        """What its first writer had to say about where it comes from."""
        self.paths = list(paths)
        """Absolute paths that the store was opened from. A hint for finding it again, never its identity."""
        self.opening = opening
        self.primary = "tokens" if "tokens" in columns else next(iter(columns)) if len(columns) == 1 else None
        """Column that inputs and targets are taken from: `tokens`, or the only one; None where there is neither."""

    @cached_property
    def identity(self) -> str:
        """Checksum of what is in the store, the same wherever it lies. O(shards), once."""
        return "+".join(content.identity for content in self.contents)

    @property
    def version(self) -> int | None:
        """Version of the store that is open; None where it is not sealed, or not one store."""
        return self.contents[0].version if len(self.contents) == 1 else None

    @property
    def versions(self) -> list[StoreVersion]:
        """Versions of the store, the first one first. `tokenfeed.open(path, version=…)` opens each."""
        return self.contents[0].versions if len(self.contents) == 1 else []

    def check_grown(self, earlier: "Data") -> None:
        """Raise a PlanMismatchError unless this is `earlier` and new shards after it."""
        told = "a store grows by new shards at its end, and nothing else"
        for what, here, there in (
            ("columns", self.columns, earlier.columns),
            ("span tables", *({name: t.codec_name for name, t in data.spans.items()} for data in (self, earlier))),
        ):
            if here != there:
                raise PlanMismatchError(f"the {what} were {there} and are now {here}: {told}")
        for number, shard in enumerate(earlier.shards):
            if number >= len(self.shards) or self.shards[number].identity != shard.identity:
                names = {each.identity for each in self.shards}
                what = "has another place" if shard.identity in names else "is gone, or has changed"
                raise PlanMismatchError(
                    f"shard {shard.name!r} of the store before it grew {what}: {told}. Give a later version of the "
                    "same store, opened for the same split"
                )

    @staticmethod
    def join(parts: Sequence["Data"], names: Iterable[str]) -> "Data":
        """Some columns of several stores, one after the other, with the span tables that all of them have."""
        first = parts[0]
        codecs = {
            name: table.codec
            for name, table in first.spans.items()
            if all(name in part.spans and part.spans[name].codec_name == table.codec_name for part in parts)
        }
        contents = [content for part in parts for content in part.contents]
        return Data(contents, {name: first.columns[name] for name in names}, codecs, first.reader.options)


class ColumnSet:
    """Columns that are read together, and where each lies in the buffer they share (see `kernels/items.py`)."""

    def __init__(self, data: Data, names: tuple[str, ...], dtype: str | None, windows: Mapping[str, int]) -> None:
        """`dtype` is that of the primary column in batches; None for the one it is stored in. `windows` is as for
        `Reader.request`.
        """
        self.names = names
        for name in self.names:
            if name not in data.columns:
                raise MissingError(f"the store has no column {name!r}; it has {', '.join(data.columns) or 'none'}")
        stored = {name: data.columns[name] for name in self.names}
        self._columns = dict(stored)
        if dtype is not None and data.primary in stored:
            self._columns[data.primary] = _widened(data.primary, stored[data.primary], np.dtype(dtype))
        self.signed = {
            name
            for name, column in self._columns.items()
            if column.item_bytes == stored[name].item_bytes and stored[name].dtype.kind + column.dtype.kind == "ui"
        }
        """Columns of unsigned numbers that are delivered as signed ones of the same width."""
        sizes = {name: _sizes(stored[name], self._columns[name]) for name in self.names}
        self.request = data.reader.request(sizes, **windows)
        """What the reading kernel must know of them."""
        self.kinds = [f"{name!r} is {stored[name]}, read as {self._columns[name]}" for name in self.names]
        """What an item of each is, in files and in batches."""
        self._item_bytes = [column.item_bytes for column in self._columns.values()]
        self._known_outputs: dict[int, tuple[Array, tuple[int, ...], dict[str, Bytes]]] = {}

    def buffer_bytes(self, num_items: int) -> int:
        """The size of a buffer that holds `num_items` items of every column."""
        if len(self._item_bytes) == 1:
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
        start, _ = self._places(math.prod(shape))[self.names.index(name)]
        column = self._columns[name]
        return self.fitting(name, np.ndarray((*shape, *column.shape), column.dtype, buffer.data, start))

    def fitting(self, name: str, array: Array) -> Array:
        """The array; a FitError where a stored value does not fit, and became a negative one of the same width."""
        if name in self.signed and array.size and array.min() < 0:
            value = int(array.min()) + (1 << 8 * array.dtype.itemsize)
            raise FitError(f"column {name!r} holds {value:,}, which {array.dtype} cannot: read it in a wider dtype")
        return array

    def outputs(self, out: Any, shape: tuple[int, ...]) -> dict[str, Bytes]:
        """The bytes of the caller's arrays by column, if they can take rows of that shape.

        An array that is given again, as in a loop, is looked at once.
        """
        known = self._known_outputs.get(id(out))
        if known is not None and known[0] is out and known[1] == shape:
            return known[2]
        given = {self.names[0]: out} if isinstance(out, np.ndarray) and self.names else out
        if not isinstance(given, Mapping):
            raise ArgumentError(f"out must be an array, or arrays by column, not {type(out).__name__}")
        if given.keys() != set(self.names):
            raise ArgumentError(f"out has {', '.join(given)}; this view reads {', '.join(self.names)}")
        for name, column in self._columns.items():
            array, expected = given[name], (*shape, *column.shape)
            if array.shape != expected or array.dtype != column.dtype:
                raise ArgumentError(
                    f"out for {name!r} is {array.dtype} of shape {array.shape}; expected {column.dtype} of {expected}"
                )
            if not array.flags.carray:
                raise ArgumentError(f"out for {name!r} must be C-contiguous, aligned and writeable")
        found = {name: given[name].reshape(-1).view(np.uint8) for name in self.names}
        if given is not out and out.nbytes <= _REMEMBERED_BYTES:
            if len(self._known_outputs) >= _REMEMBERED_OUTPUTS:
                self._known_outputs.clear()
            self._known_outputs[id(out)] = out, shape, found
        return found


def _widened(name: str, stored: Column, dtype: np.dtype[Any]) -> Column:
    kinds = (np.dtype(each) for each in ("int32", "int64"))
    wide = [each for each in kinds if stored.dtype.kind in "iu" and stored.dtype.itemsize <= each.itemsize]
    if dtype not in (stored.dtype, *wide):
        others = "".join(f" or {each}" for each in wide)
        raise ArgumentError(f"{name!r} is a column of {stored}; dtype may be {stored.dtype}{others}, not {dtype}")
    return Column(dtype, stored.shape)


def _sizes(stored: Column, delivered: Column) -> tuple[int, ...]:
    """What `items.COLUMN` says of a column, from `item_bytes` to `is_signed`."""
    sizes = math.prod(stored.shape), stored.dtype.itemsize, delivered.dtype.itemsize
    return stored.item_bytes, delivered.item_bytes, *sizes, stored.dtype.kind == "i"


def offsets_of(lengths: Ints) -> Ints:
    """Where rows of these lengths begin when they are laid end to end, and the end.

    Lengths come from files. A sum that wrapped around would be small, and the memory for it too.
    """
    if lengths.size and int(lengths.max()) >= _MOST_ITEMS // lengths.size and sum(lengths.tolist()) >= _MOST_ITEMS:
        raise TooLargeError(f"{quantity(lengths.size, 'row')} of up to {int(lengths.max()):,} items: read fewer")
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def new_bytes(num_bytes: int) -> Bytes:
    try:
        return np.empty(num_bytes, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: beyond 2**63
        raise TooLargeError(f"the samples have {num_bytes:,} bytes, which do not fit memory: read fewer") from error
