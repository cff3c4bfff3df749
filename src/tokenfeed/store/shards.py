"""Shards: where the columns and span tables of one lie. A store is a sequence of these, whoever wrote them."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.format.foreign import ForeignFile
from tokenfeed.format.layout import SPAN_DTYPE, SPAN_HEADER_BYTES, column_file, span_files
from tokenfeed.format.manifest import Column, ShardEntry
from tokenfeed.format.npy import build_header, descr_to_json
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.storage.folder import Folder

__all__ = ["ForeignShard", "NativeShard", "Shard", "SpanParts", "compute_anchors", "identify"]

SpanParts = tuple[Part | npt.NDArray[np.int64], ...]
"""Starts, anchors, offsets and payload of a span table: files, or arrays in memory."""


class Shard(Protocol):
    """What a store asks of a shard. Nothing is read before `column_part` or `span_parts` is called."""

    @property
    def name(self) -> str: ...

    @property
    def num_items(self) -> int: ...

    @property
    def split(self) -> str | None: ...

    @property
    def identity(self) -> str:
        """A checksum of what is in the shard, wherever it lies."""

    @property
    def is_remote(self) -> bool:
        """Whether its files lie elsewhere."""

    def num_spans(self, table: str) -> int: ...

    def column_part(self, column: str) -> Part: ...

    def span_parts(self, table: str) -> SpanParts: ...


class NativeShard:
    """A shard of format version 1."""

    __slots__ = ("_columns", "_entry", "home")

    def __init__(self, home: Folder, entry: ShardEntry, columns: Mapping[str, Column]) -> None:
        """`home` is the folder of the store."""
        self.home = home
        self._entry = entry
        self._columns = columns

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def num_items(self) -> int:
        return self._entry.items

    @property
    def split(self) -> str | None:
        return self._entry.split

    @property
    def identity(self) -> str:
        return self._entry.checksum

    @property
    def is_remote(self) -> bool:
        return self.home.local is None

    def _part(self, name: str, file_bytes: int, header: bytes = b"", *, kept: float = 0.0) -> Part:
        path, identity = self.home.path(f"{self._entry.name}/{name}"), f"{self._entry.checksum}/{name}"
        return Part(path, file_bytes, len(header), header, kept, identity)

    def num_spans(self, table: str) -> int:
        return self._entry.spans[table].spans

    def column_part(self, column: str) -> Part:
        described = self._columns[column]
        header = build_header(described.dtype, described.shape, self.num_items)
        return self._part(column_file(column), len(header) + self.num_items * described.item_bytes, header)

    def span_parts(self, table: str) -> SpanParts:
        names = span_files(table)
        count = self._entry.spans[table]
        anchors = -(-self.num_items // ANCHOR_ITEMS)
        return (
            self._span_part(names.starts, count.spans, kept=0.5),
            self._span_part(names.anchors, anchors, kept=1.0),  # 2 bytes for every 1,024 items
            self._span_part(names.offsets, count.spans + 1, kept=0.5),
            self._part(names.payload, count.payload_bytes),
        )

    def _span_part(self, name: str, count: int, *, kept: float) -> Part:
        header = build_header(SPAN_DTYPE, (), count)
        return self._part(name, SPAN_HEADER_BYTES + count * SPAN_DTYPE.itemsize, header, kept=kept)


class ForeignShard:
    """A file of another system. Its document boundaries are read, 8 bytes each, when they are first needed."""

    def __init__(self, file: ForeignFile) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def num_items(self) -> int:
        return self._file.num_items

    @property
    def split(self) -> str | None:
        return None

    @property
    def is_remote(self) -> bool:
        return False

    @cached_property
    def identity(self) -> str:
        return self._file.identity()

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        assert self._file.document_starts is not None
        return self._file.document_starts()

    @cached_property
    def _anchors(self) -> npt.NDArray[np.int64]:
        return compute_anchors(self._starts, self.num_items)

    def num_spans(self, table: str) -> int:
        return self._starts.size

    def column_part(self, column: str) -> Part:
        return self._file.parts[column]

    def span_parts(self, table: str) -> SpanParts:
        return self._starts, self._anchors


def compute_anchors(starts: npt.NDArray[np.int64], num_items: int) -> npt.NDArray[np.int64]:
    """For every ANCHOR_ITEMS-th item, the last span that starts at or before it."""
    return np.searchsorted(starts, np.arange(0, num_items, ANCHOR_ITEMS), side="right") - 1


def identify(columns: Mapping[str, Column], spans: Mapping[str, str | None], shards: Sequence[Shard]) -> str:
    """A checksum of what a store holds, wherever it lies."""
    described = [[name, descr_to_json(column.dtype), column.shape] for name, column in columns.items()]
    return checksum(json.dumps([described, list(spans.items()), [shard.identity for shard in shards]]).encode())
