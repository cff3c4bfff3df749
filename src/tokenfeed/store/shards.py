"""Shards: the files that hold the columns and span tables of one. A store is a sequence of shards."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from tokenfeed.format.foreign import ForeignFile
from tokenfeed.format.layout import SHARD_SUMS, SPAN_DTYPE, SUM_DTYPE, column_file, first_sums, span_files
from tokenfeed.format.manifest import Column, ShardEntry
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.storage.folder import Folder
from tokenfeed.types import Ints

__all__ = ["ForeignShard", "NativeShard", "Shard", "compute_anchors", "npy_part", "with_sums"]

_SPAN, _SUM = Column(SPAN_DTYPE), Column(SUM_DTYPE)


class NativeShard:
    """A shard of format version 1. Nothing is read before a file is."""

    __slots__ = ("_columns", "_entry", "_spans", "home", "is_remote", "name", "num_items", "split")

    def __init__(
        self, home: Folder, entry: ShardEntry, columns: Mapping[str, Column], spans: Mapping[str, str | None]
    ) -> None:
        """`spans` gives tables and their codecs."""
        self.home = home
        self.name, self.num_items, self.split = entry.name, entry.items, entry.split
        self.is_remote = home.local is None
        self._entry = entry
        self._columns = columns
        self._spans = spans

    @property
    def identity(self) -> str:
        """Checksum of the content, independent of its path."""
        return self._entry.checksum

    @property
    def num_bytes(self) -> int:
        """Size of its files, without `shard.json`."""
        return sum(part.file_bytes for part in self.parts().values())

    def num_spans(self, table: str) -> int:
        return self._entry.spans[table].spans

    def column_part(self, column: str) -> Part:
        return self._npy_part(column_file(column), self._columns[column], self.num_items)

    def parts(self) -> dict[str, Part]:
        """The file of block checksums and all data files, by name."""
        parts = [self.column_part(column) for column in self._columns]
        parts += [part for table in self._spans for part in self.span_parts(table)]
        return with_sums(parts, lambda count: self._npy_part(SHARD_SUMS, _SUM, count))

    def span_parts(self, table: str) -> tuple[Part, ...]:
        """Starts and anchors of a span table; and offsets and payload, if it has payloads."""
        names, count = span_files(table, payloads=self._spans[table] is not None), self._entry.spans[table]
        num_anchors = -(-self.num_items // ANCHOR_ITEMS)  # 2 bytes per 1,024 items, so all of them are kept
        sizes = (count.spans, 0.5), (num_anchors, 1.0), (count.spans + 1, 0.5)
        parts = [self._npy_part(name, _SPAN, *size) for name, size in zip(names, sizes, strict=False)]
        for payload in names[3:]:
            path, identity = self._path(payload)
            parts.append(Part(path, count.payload_bytes, identity=identity))
        return tuple(parts)

    def _npy_part(self, name: str, item: Column, count: int, kept: float = 0.0) -> Part:
        path, identity = self._path(name)
        return npy_part(path, item, count, kept=kept, identity=identity)

    def _path(self, name: str) -> tuple[str, str]:
        return self.home.path(f"{self.name}/{name}"), f"{self.identity}/{name}"


class ForeignShard:
    """A file of another system. Its document boundaries, 8 bytes each, are read when they are first needed."""

    split, is_remote = None, False

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        self.name, self.num_items = file.name, file.num_items

    @property
    def num_bytes(self) -> int:
        return sum(part.file_bytes for part in self._file.parts.values())

    @cached_property
    def identity(self) -> str:
        return self._file.identity()

    @cached_property
    def _spans(self) -> tuple[Ints, Ints]:
        assert self._file.boundaries is not None
        starts = self._file.boundaries.find()
        return starts, compute_anchors(starts, self.num_items)

    def num_spans(self, table: str) -> int:
        return self._spans[0].size

    def column_part(self, column: str) -> Part:
        return self._file.parts[column]

    def span_parts(self, table: str) -> tuple[Ints, ...]:
        """Starts and anchors, in memory."""
        return self._spans


Shard = NativeShard | ForeignShard


def npy_part(path: str, item: Column, count: int, *, kept: float = 0.0, identity: str = "") -> Part:
    """A `.npy` file of `count` items."""
    header = build_header(item.dtype, item.shape, count)
    return Part(path, len(header) + count * item.item_bytes, len(header), header, kept, identity)


def with_sums(parts: Sequence[Part], describe_sums: Callable[[int], Part]) -> dict[str, Part]:
    """The file of block checksums, which is `describe_sums(count)`; and files, each with its place in it; by name."""
    names = [os.path.basename(part.path) for part in parts]
    firsts, count = first_sums({name: part.file_bytes for name, part in zip(names, parts, strict=True)})
    sums = describe_sums(count)
    placed = [part._replace(sums=sums, first_sum=firsts[name]) for name, part in zip(names, parts, strict=True)]
    return {os.path.basename(part.path): part for part in (sums, *placed)}


def compute_anchors(starts: Ints, num_items: int) -> Ints:
    """The last span that starts at or before every ANCHOR_ITEMS-th item."""
    return np.searchsorted(starts, np.arange(0, num_items, ANCHOR_ITEMS), side="right") - 1
