"""Shards: the files that hold the columns and span tables of one. A store is a sequence of shards."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from tokenfeed.errors import CorruptionError
from tokenfeed.format.foreign import ForeignFile
from tokenfeed.format.layout import SHARD, SHARD_SUMS, SPAN_DTYPE, SUM_DTYPE, column_file, first_sums, span_files
from tokenfeed.format.manifest import Column, ShardEntry
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.storage.folder import Folder
from tokenfeed.types import Ints

__all__ = ["ForeignShard", "NativeShard", "Shard", "check_records", "compute_anchors", "npy_part", "with_sums"]

_SPAN, _SUM = Column(SPAN_DTYPE), Column(SUM_DTYPE)
_NO_BITS: Mapping[str, int] = {}


class NativeShard:
    """A shard of format version 1. Nothing is read before a file is."""

    __slots__ = (
        *("_columns", "_entry", "_spans", "bits", "home", "is_proven", "is_remote", "is_verified", "name", "num_items"),
        "split",
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
        """`spans` gives tables and their codecs. `verify` compares everything that is read with its block checksums."""
        self.home = home
        self.name, self.num_items, self.split = entry.name, entry.items, entry.split
        self.is_remote, self.is_verified = home.local is None, verify
        self.bits: Mapping[str, int] = entry.bits or _NO_BITS
        """Bits of one number, of the columns that are packed."""
        self.is_proven = not verify
        """Whether its `shard.json` is known to be what the manifest says, or need not be."""
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
        return self._checked(self._column_part(column))

    def span_parts(self, table: str) -> tuple[Part, ...]:
        """Starts and anchors of a span table; and offsets and payload, if it has payloads."""
        return tuple(map(self._checked, self._span_parts(table)))

    def parts(self) -> dict[str, Part]:
        """The file of block checksums and all data files, by name."""
        parts = [self._column_part(column) for column in self._columns]
        parts += [part for table in self._spans for part in self._span_parts(table)]
        return with_sums(parts, lambda count: self._npy_part(SHARD_SUMS, _SUM, count))

    def _checked(self, part: Part) -> Part:
        return self.parts()[os.path.basename(part.path)] if self.is_verified else part

    def _column_part(self, column: str) -> Part:
        item = self._columns[column]
        if column not in self.bits:
            return self._npy_part(column_file(column), item, self.num_items)
        bits = self.bits[column]
        return self._npy_part(column_file(column, packed=True), *item.packed(bits, self.num_items))._replace(bits=bits)

    def _span_parts(self, table: str) -> list[Part]:
        names, count = span_files(table, payloads=self._spans[table] is not None), self._entry.spans[table]
        num_anchors = -(-self.num_items // ANCHOR_ITEMS)  # 2 bytes per 1,024 items, so all of them are kept
        sizes = (count.spans, 0.5), (num_anchors, 1.0), (count.spans + 1, 0.5)
        parts = [self._npy_part(name, _SPAN, *size) for name, size in zip(names, sizes, strict=False)]
        for payload in names[3:]:
            path, identity = self._path(payload)
            parts.append(Part(path, count.payload_bytes, identity=identity))
        return parts

    def _npy_part(self, name: str, item: Column, count: int, kept: float = 0.0) -> Part:
        path, identity = self._path(name)
        return npy_part(path, item, count, kept=kept, identity=identity)

    def _path(self, name: str) -> tuple[str, str]:
        return self.home.path(f"{self.name}/{name}"), f"{self.identity}/{name}"


class ForeignShard:
    """A file of another system. Its document boundaries, 8 bytes each, are read when they are first needed."""

    split, is_remote, is_verified, is_proven = None, False, False, True
    bits: Mapping[str, int] = {}

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


def check_records(shards: Iterable[Shard]) -> None:
    """Raise a CorruptionError if the `shard.json` of a shard to be verified is not the one that the manifest lists.

    Each is read once, those of one folder together.
    """
    unproven: dict[str, list[NativeShard]] = {}
    for shard in shards:
        if isinstance(shard, NativeShard) and not shard.is_proven:
            unproven.setdefault(str(shard.home), []).append(shard)
    for group in unproven.values():
        names = [f"{shard.name}/{SHARD}" for shard in group]
        for shard, name, data in zip(group, names, group[0].home.read_all(names), strict=True):
            if (found := checksum(data)) != shard.identity:
                raise CorruptionError(
                    f"{shard.home.path(name)} has changed since the store was sealed: its checksum is {found}, the "
                    f"manifest says {shard.identity}. Restore it from a copy, or write it again"
                )
            shard.is_proven = True


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
