"""Shards: the files that hold the columns and span tables of one. A store is a sequence of shards."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from tokenfeed.format.foreign import ForeignFile
from tokenfeed.format.layout import SHARD_SUMS, SPAN_DTYPE, SUM_DTYPE, column_file, first_sums, span_files
from tokenfeed.format.manifest import Column, ShardEntry
from tokenfeed.format.npy import build_header, descr_to_json
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.spans import ANCHOR_ITEMS, OFFSETS, TABLE_FILES
from tokenfeed.storage.files import Part
from tokenfeed.storage.folder import Folder
from tokenfeed.types import Ints

__all__ = ["ForeignShard", "NativeShard", "Shard", "SpanParts", "compute_anchors", "identify"]

SpanParts = tuple[Part | Ints, ...]
"""Starts, anchors, offsets and payload of a span table, as files or as arrays in memory."""

_SPAN, _SUM = Column(SPAN_DTYPE), Column(SUM_DTYPE)


class Shard(ABC):
    """A shard as a store sees it. Nothing is read before `column_part` or `span_parts` is called."""

    __slots__ = ()

    name: str
    num_items: int
    split: str | None
    is_remote: bool
    is_verified: bool
    """Whether everything read from it is compared with its block checksums."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Checksum of the content, independent of its path."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of its files, without `shard.json`."""

    @abstractmethod
    def num_spans(self, table: str) -> int: ...

    @abstractmethod
    def column_part(self, column: str) -> Part: ...

    @abstractmethod
    def span_parts(self, table: str) -> SpanParts: ...


class NativeShard(Shard):
    """A shard of format version 1."""

    __slots__ = (
        *("_columns", "_entry", "_first_sums", "_spans", "home"),
        *("is_remote", "is_verified", "name", "num_items", "split"),
    )

    def __init__(
        self,
        home: Folder,
        entry: ShardEntry,
        columns: Mapping[str, Column],
        spans: Mapping[str, str | None],
        *,
        verify: bool = False,
    ) -> None:
        """`home` is the folder of the store; `spans` gives its tables and their codecs."""
        self.home = home
        self.name, self.num_items, self.split = entry.name, entry.items, entry.split
        self.is_remote, self.is_verified = home.local is None, verify
        self._entry = entry
        self._columns = columns
        self._spans = spans
        self._first_sums: tuple[dict[str, int], int] | None = None

    @property
    def identity(self) -> str:
        return self._entry.checksum

    @property
    def num_bytes(self) -> int:
        return sum(part.file_bytes for part in [*self._parts(), self.sums_part()])

    def num_spans(self, table: str) -> int:
        return self._entry.spans[table].spans

    def column_part(self, column: str) -> Part:
        return self._checked(self._column_part(column))

    def _column_part(self, column: str) -> Part:
        return self._npy_part(column_file(column), self._columns[column], self.num_items)

    def span_parts(self, table: str) -> tuple[Part, ...]:
        return tuple(map(self._checked, self._span_parts(table)))

    def _span_parts(self, table: str) -> tuple[Part, ...]:
        names = span_files(table)
        count = self._entry.spans[table]
        anchors = -(-self.num_items // ANCHOR_ITEMS)
        return (
            self._npy_part(names.starts, _SPAN, count.spans, kept=0.5),
            self._npy_part(names.anchors, _SPAN, anchors, kept=1.0),  # 2 bytes per 1,024 items
            self._npy_part(names.offsets, _SPAN, count.spans + 1, kept=0.5),
            self._part(names.payload, count.payload_bytes),
        )

    def sums_part(self) -> Part:
        """The file of block checksums."""
        return self._npy_part(SHARD_SUMS, _SUM, self.first_sums()[1])

    def first_sums(self) -> tuple[dict[str, int], int]:
        """Position in that file of the first checksum of each file, by name; and the number of all."""
        if self._first_sums is None:
            self._first_sums = first_sums({os.path.basename(part.path): part.file_bytes for part in self._parts()})
        return self._first_sums

    def _parts(self) -> list[Part]:
        """All data files."""
        parts = [self._column_part(column) for column in self._columns]
        for table, codec in self._spans.items():
            parts += self._span_parts(table)[: TABLE_FILES if codec is not None else OFFSETS]
        return parts

    def _checked(self, part: Part) -> Part:
        first_sum = self.first_sums()[0].get(os.path.basename(part.path)) if self.is_verified else None
        return part if first_sum is None else part._replace(sums=self.sums_part(), first_sum=first_sum)

    def _npy_part(self, name: str, item: Column, count: int, *, kept: float = 0.0) -> Part:
        header = build_header(item.dtype, item.shape, count)
        return self._part(name, len(header) + count * item.item_bytes, header, kept=kept)

    def _part(self, name: str, file_bytes: int, header: bytes = b"", *, kept: float = 0.0) -> Part:
        path, identity = self.home.path(f"{self._entry.name}/{name}"), f"{self._entry.checksum}/{name}"
        return Part(path, file_bytes, len(header), header, kept, identity)


class ForeignShard(Shard):
    """A file of another system. Its document boundaries, 8 bytes each, are read when they are first needed."""

    split, is_remote, is_verified = None, False, False

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
    def _starts(self) -> Ints:
        assert self._file.boundaries is not None
        return self._file.boundaries.find()

    @cached_property
    def _anchors(self) -> Ints:
        return compute_anchors(self._starts, self.num_items)

    def num_spans(self, table: str) -> int:
        return self._starts.size

    def column_part(self, column: str) -> Part:
        return self._file.parts[column]

    def span_parts(self, table: str) -> SpanParts:
        return self._starts, self._anchors


def compute_anchors(starts: Ints, num_items: int) -> Ints:
    """The last span that starts at or before every ANCHOR_ITEMS-th item."""
    return np.searchsorted(starts, np.arange(0, num_items, ANCHOR_ITEMS), side="right") - 1


def identify(columns: Mapping[str, Column], spans: Mapping[str, str | None], shards: Sequence[Shard]) -> str:
    """Checksum of the content of a store, independent of its path."""
    described = [[name, descr_to_json(column.dtype), column.shape] for name, column in columns.items()]
    return checksum(json.dumps([described, list(spans.items()), [shard.identity for shard in shards]]).encode())
