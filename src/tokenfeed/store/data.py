"""What views and batches need of a store: its columns, its span tables, and the reader."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from tokenfeed.errors import MissingError, TooLargeError, quantity
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
        paths = [path for part in parts for path in part.paths]
        return Data(contents, {name: first.columns[name] for name in names}, codecs, first.reader.options, paths=paths)


class ColumnSet:
    """Columns that are read together, and where each lies in the buffer they share (see `kernels/items.py`)."""

    def __init__(self, data: Data, names: tuple[str, ...], windows: Mapping[str, int]) -> None:
        """`windows` is as for `Reader.request`."""
        self.names = names
        for name in self.names:
            if name not in data.columns:
                raise MissingError(f"the store has no column {name!r}; it has {', '.join(data.columns) or 'none'}")
        self._columns = {name: data.columns[name] for name in self.names}
        sizes = {name: column.item_bytes for name, column in self._columns.items()}
        self.request = data.reader.request(sizes, **windows)
        """What the reading kernel must know of them."""
        self.kinds = [f"{name!r} is {column}" for name, column in self._columns.items()]
        """What an item of each is."""
        self._item_bytes = list(sizes.values())

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
        return np.ndarray((*shape, *column.shape), column.dtype, buffer.data, start)


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
