"""`manifest.json` and `shard.json`: their contents, written and read as `records.py` does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError, FormatError, MissingError
from tokenfeed.format.layout import check_name
from tokenfeed.format.records import Digest, parse, reader, refuse, sign
from tokenfeed.kernels.checksum import checksum

__all__ = ["Column", "FileRecord", "Manifest", "Reference", "ShardEntry", "ShardRecord", "SpanCount", "Version"]

_LARGEST_ITEM = 1 << 31

_Split = Annotated[str, partial(check_name, "split")]


class SpanCount(NamedTuple):
    """Size of one span table in one shard."""

    spans: int
    payload_bytes: int


def _read_counts(value: Any, where: str) -> SpanCount:
    if not isinstance(value, list) or len(value) != 2:
        refuse(value, where, "two whole numbers, [spans, payload bytes]")
    return SpanCount(*(reader(int)(number, where) for number in value))


_Spans = Mapping[str, Annotated[SpanCount, _read_counts]]


@dataclass(frozen=True, slots=True)
class Column:
    """One value of fixed dtype and shape per item."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def item_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        inner = f" × {self.shape}" if self.shape else ""
        return f"{self.dtype}{inner}"


def _read_column(value: Any, where: str) -> Column:
    column: Column = reader(Column)(value, where)
    if not 0 < column.item_bytes <= _LARGEST_ITEM:
        raise FormatError(f"{where}: an item has {column.item_bytes:,} bytes; expected 1 to 2**31")
    return column


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in the manifest. `checksum` is that of its `shard.json`, which holds the checksums of its files."""

    name: Annotated[str, partial(check_name, "shard")]
    items: int
    spans: _Spans
    checksum: Digest
    split: _Split | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A list of shards that the store was sealed with: the first `shards` of the present list."""

    shards: int
    checksum: Digest
    """Checksum of theirs, which shows whether the present list still begins with the same shards."""

    @classmethod
    def of(cls, entries: Sequence[ShardEntry]) -> "Version":
        return cls(len(entries), checksum("".join(entry.checksum for entry in entries).encode()))


@dataclass(frozen=True, slots=True)
class Reference:
    """One of the stores that a combined store consists of."""

    uri: str
    """Path relative to the folder of the combined store, or absolute."""
    identity: Digest
    dtype: str | None = None
    """Dtype of a file of another system that does not record it."""
    eos: int | None = None
    version: int | None = None
    """Version of a store that had versions when it was combined."""


@dataclass(frozen=True, slots=True)
class _Table:
    codec: str | None


def _read_codecs(value: Any, where: str) -> dict[str, str | None]:
    tables = reader(Mapping[Annotated[str, partial(check_name, "span table")], _Table])(value, where)
    return {name: table.codec for name, table in tables.items()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a store. `shards` is None while it is not sealed, `stores` is None unless it is combined."""

    columns: Mapping[Annotated[str, partial(check_name, "column")], Annotated[Column, _read_column]]
    spans: Annotated[Mapping[str, str | None], _read_codecs]
    """Span tables and the names of their codecs; None for a table without payloads."""
    tokenizer: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    shards: tuple[ShardEntry, ...] | None = None
    earlier: tuple[ShardEntry, ...] | None = None
    """List of the last version, while new shards are being added to it."""
    versions: tuple[Version, ...] = ()
    """All lists that the store was sealed with, the first one first."""
    stores: tuple[Reference, ...] | None = None

    @property
    def listed(self) -> tuple[ShardEntry, ...]:
        """Shards of the last version."""
        return self.shards or self.earlier or ()

    @property
    def version(self) -> int | None:
        """Number of the version that its list is; None where it has none, or one that was changed by hand."""
        is_known = self.versions[-1:] == (Version.of(self.listed),)
        return len(self.versions) if is_known and (self.shards, self.earlier) != (None, None) else None

    def at(self, number: int, path: str) -> tuple[ShardEntry, ...]:
        """Shards of a version, counted from 1."""
        if not 1 <= number <= len(self.versions):
            there = f"versions 1 to {len(self.versions)}" if self.versions else "no versions: it was never sealed"
            raise MissingError(f"{path} has no version {number}; it has {there}")
        entries = self.listed[: self.versions[number - 1].shards]
        if Version.of(entries) != self.versions[number - 1]:
            raise CorruptionError(
                f"version {number} of {path} is lost: shards that it listed were changed or removed later. Restore "
                "them from a copy of the store, or start a new run on the present version"
            )
        return entries

    def to_json(self) -> str:
        """One line per column, table, shard, version and store, so that manifests can be compared line by line."""
        described = asdict(self) | {"spans": {name: {"codec": codec} for name, codec in self.spans.items()}}
        if self.shards is not None and self.versions == (Version.of(self.shards),):
            described["versions"] = ()  # which the list alone says
        for absent in [name for name in ("shards", "earlier", "versions", "stores") if not described[name]]:
            if described[absent] is None or absent == "versions":
                del described[absent]
        return sign("tokenfeed", described)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> "Manifest":
        manifest = parse(cls, "tokenfeed", data, path)
        shards = manifest.listed
        for entry in shards:
            _check_tables(entry.spans, manifest.spans, path)
        if len({entry.name for entry in shards}) < len(shards):
            raise FormatError(f"{path} lists a shard twice")
        if sum(each is not None for each in (manifest.shards, manifest.earlier, manifest.stores)) > 1:
            raise FormatError(f"{path} has several of shards, earlier and stores; expected one of them")
        if manifest.shards is None:
            return manifest
        return manifest if manifest.versions else replace(manifest, versions=(Version.of(manifest.shards),))


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size of a file, and XXH3-64 of its bytes (for a `.npy` file, of the bytes after the header)."""

    bytes: int
    checksum: Digest


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Content of `shard.json`. A shard exists once this file does."""

    items: int
    spans: _Spans
    files: Mapping[str, FileRecord]
    split: _Split | None = None

    def to_json(self) -> str:
        return sign("tokenfeed-shard", asdict(self))

    @classmethod
    def from_json(cls, data: bytes, path: str, tables: Mapping[str, Any]) -> "ShardRecord":
        record = parse(cls, "tokenfeed-shard", data, path)
        _check_tables(record.spans, tables, path)
        return record


def _check_tables(found: Mapping[str, Any], expected: Mapping[str, Any], path: str) -> None:
    if found.keys() != expected.keys():
        raise CorruptionError(f"{path} has span tables {sorted(found)}; the store has {sorted(expected)}")
