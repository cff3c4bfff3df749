"""`manifest.json` and `shard.json`: their contents, how they are written, and the checks when they are read."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

from tokenfeed.errors import CorruptionError, FormatError
from tokenfeed.format.layout import check_name
from tokenfeed.format.npy import descr_from_json, descr_to_json
from tokenfeed.kernels.checksum import checksum

__all__ = [
    "Column",
    "FileRecord",
    "Manifest",
    "Reference",
    "ShardEntry",
    "ShardRecord",
    "SpanCount",
    "check_signature",
    "sign",
]

VERSION = 1
_LARGEST = 1 << 62
_LARGEST_ITEM = 1 << 31
_CHECKSUM = re.compile("[0-9a-f]{16}")
_Value = TypeVar("_Value")


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


@dataclass(frozen=True, slots=True)
class SpanCount:
    """Size of one span table in one shard."""

    spans: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in the manifest. `checksum` is that of its `shard.json`, which holds the checksums of its files."""

    name: str
    items: int
    spans: Mapping[str, SpanCount]
    checksum: str
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """One of the stores that a combined store consists of."""

    uri: str
    """Path relative to the folder of the combined store, or absolute."""
    identity: str
    dtype: str | None = None
    """Dtype of a file of another system that does not record it."""
    eos: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a store. `shards` is None until it is sealed, `stores` is None unless it is combined."""

    columns: Mapping[str, Column]
    spans: Mapping[str, str | None]
    """Span tables and the names of their codecs; None for a table without payloads."""
    tokenizer: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    shards: tuple[ShardEntry, ...] | None = None
    stores: tuple[Reference, ...] | None = None

    def to_json(self) -> str:
        """One line per column, table, shard and store, so that manifests can be compared line by line."""
        fields: dict[str, Any] = {
            "format": "tokenfeed",
            "version": VERSION,
            "columns": {
                name: {"dtype": descr_to_json(column.dtype), "shape": column.shape}
                for name, column in self.columns.items()
            },
            "spans": {name: {"codec": codec} for name, codec in self.spans.items()},
            "tokenizer": self.tokenizer,
            "provenance": self.provenance,
        }
        if self.shards is not None:
            fields["shards"] = [_entry_to_json(entry) for entry in self.shards]
        if self.stores is not None:
            fields["stores"] = [asdict(store) for store in self.stores]
        return sign(fields)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> "Manifest":
        fields = Fields.parse(data, path, "tokenfeed")
        columns = {}
        for name, value in fields.mapping("columns").items():
            described = Fields(value, f"{path}: column {name!r}")
            shape = tuple(described.list("shape"))
            if not all(type(n) is int and 0 < n < _LARGEST for n in shape):
                raise FormatError(f"{described.where} has shape {shape!r}; expected a list of positive numbers")
            dtype = descr_from_json(described.any("dtype"), what=described.where)
            column = columns[check_name("column", name, where=path)] = Column(dtype, shape)
            if column.item_bytes > _LARGEST_ITEM:
                raise FormatError(f"{described.where}: an item has {column.item_bytes:,} bytes; the limit is 2**31")
        spans = {}
        for name, value in fields.mapping("spans").items():
            described = Fields(value, f"{path}: span table {name!r}")
            spans[check_name("span table", name, where=path)] = described.text_or_none("codec")
        shards = stores = None
        if fields.has("shards"):
            where = f"{path}: shard"
            shards = tuple(_entry_from_json(value, where, spans) for value in fields.list("shards"))
            if len({entry.name for entry in shards}) < len(shards):
                raise FormatError(f"{path} lists a shard twice")
        if fields.has("stores"):
            stores = tuple(Fields(value, f"{path}: store").record(Reference) for value in fields.list("stores"))
        if shards is not None and stores is not None:
            raise FormatError(f"{path} has both shards and stores; expected one of them")
        return cls(columns, spans, fields.text_or_none("tokenizer"), fields.mapping("provenance"), shards, stores)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size of a file, and XXH3-64 of its bytes (for a `.npy` file, of the bytes after the header)."""

    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Content of `shard.json`. A shard exists once this file does."""

    items: int
    spans: Mapping[str, SpanCount]
    files: Mapping[str, FileRecord]
    split: str | None = None

    def to_json(self) -> str:
        fields = {
            "format": "tokenfeed-shard",
            "version": VERSION,
            "items": self.items,
            "split": self.split,
            "spans": {name: [count.spans, count.payload_bytes] for name, count in self.spans.items()},
            "files": {name: asdict(file) for name, file in self.files.items()},
        }
        return sign(fields)

    @classmethod
    def from_json(cls, data: bytes, path: str, tables: Mapping[str, Any]) -> "ShardRecord":
        fields = Fields.parse(data, path, "tokenfeed-shard")
        files = {
            name: Fields(value, f"{path}: file {name!r}").record(FileRecord)
            for name, value in fields.mapping("files").items()
        }
        return cls(fields.count("items"), _span_counts(fields, tables), files, fields.split())


def sign(fields: Mapping[str, Any]) -> str:
    """A JSON object with one line per entry of its lists and objects; the last line is the checksum of the others."""
    text = "{\n" + "".join(f'"{key}": {_by_line(value)},\n' for key, value in fields.items())
    return text + _signature(text.encode())


def check_signature(data: bytes, path: str) -> None:
    """Raise CorruptionError unless every byte of a file is as `sign` wrote it."""
    length = len(_signature(b""))
    expected = _signature(data[:-length]).encode()
    if data[-length:] != expected:
        raise CorruptionError(
            f"{path} has changed since it was written: it ends in {data[-length:]!r}, but its content requires "
            f"{expected!r}. If it was changed on purpose, tokenfeed.seal(path) signs the manifest of a store again"
        )


def _signature(data: bytes) -> str:
    return f'"checksum": "{checksum(data)}"\n}}\n'


class Fields:
    """A JSON object whose fields are checked when they are read; errors name the file and the field."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where}: expected a JSON object, found {_short(value)}")
        self._value = value
        self.where = where

    @classmethod
    def parse(cls, data: bytes, path: str, kind: str) -> "Fields":
        try:
            fields = cls(json.loads(data), path)
        except (ValueError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise CorruptionError(f"{path} is not valid JSON: {error}") from error
        if fields.any("format") != kind:
            raise FormatError(f"{path}: field 'format' is {_short(fields.any('format'))}, expected {kind!r}")
        if type(fields.any("version")) is not int or fields.any("version") != VERSION:
            raise FormatError(
                f"{path} has format version {_short(fields.any('version'))}; this version of tokenfeed reads version "
                f"{VERSION}. A newer one wrote it: upgrade tokenfeed"
            )
        return fields

    def has(self, key: str) -> bool:
        return key in self._value

    def any(self, key: str) -> Any:
        if key not in self._value:
            raise FormatError(f"{self.where}: field {key!r} is missing")
        return self._value[key]

    def _wrong(self, key: str, what: str) -> FormatError:
        return FormatError(f"{self.where}: field {key!r} is {_short(self.any(key))}, expected {what}")

    def _typed(self, key: str, kind: type[_Value], what: str) -> _Value:
        value = self.any(key)
        if not isinstance(value, kind):
            raise self._wrong(key, what)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        return self._typed(key, dict, "a JSON object")

    def list(self, key: str) -> list[Any]:
        return self._typed(key, list, "a list")

    def text(self, key: str) -> str:
        return self._typed(key, str, "a string")

    def text_or_none(self, key: str) -> str | None:
        return None if self.any(key) is None else self.text(key)

    def checksum(self, key: str) -> str:
        if not _CHECKSUM.fullmatch(self.text(key)):
            raise self._wrong(key, "16 hexadecimal digits")
        return self.text(key)

    def count(self, key: str) -> int:
        if not _is_count(self.any(key)):
            raise self._wrong(key, "a whole number from 0 to 2**62")
        return int(self.any(key))

    def split(self) -> str | None:
        name = self.text_or_none("split")
        return None if name is None else check_name("split", name, where=self.where)

    def record(self, kind: type[_Value]) -> _Value:
        """A dataclass of whole numbers and strings, from the fields of the same names.

        Names that end in `checksum` or `identity` must hold checksums. Null is allowed where the dataclass allows None.
        """
        values: dict[str, Any] = {}
        made: Any = kind
        for name, annotation in _annotations(made).items():
            if type(None) in get_args(annotation) and self.any(name) is None:
                values[name] = None
            elif int in (annotation, *get_args(annotation)):
                values[name] = self.count(name)
            else:
                values[name] = self.checksum(name) if name.endswith(("checksum", "identity")) else self.text(name)
        return kind(**values)


@cache
def _annotations(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_count(value: Any) -> bool:
    """Whether `value` is a whole number in [0, 2**62)."""
    return type(value) is int and 0 <= value < _LARGEST


def _span_counts(fields: Fields, tables: Mapping[str, Any]) -> dict[str, SpanCount]:
    counts = {}
    for name, value in fields.mapping("spans").items():
        if not isinstance(value, list) or len(value) != 2 or not all(map(_is_count, value)):
            where = f"{fields.where}: spans of {name!r}"
            raise FormatError(f"{where} are {_short(value)}, expected two whole numbers, [spans, payload bytes]")
        counts[name] = SpanCount(value[0], value[1])
    if counts.keys() != tables.keys():
        raise CorruptionError(f"{fields.where} has span tables {sorted(counts)}; the store has {sorted(tables)}")
    return counts


def _entry_to_json(entry: ShardEntry) -> dict[str, Any]:
    spans = {name: [count.spans, count.payload_bytes] for name, count in entry.spans.items()}
    return {"name": entry.name, "items": entry.items, "split": entry.split, "spans": spans, "checksum": entry.checksum}


def _entry_from_json(value: Any, where: str, tables: Mapping[str, Any]) -> ShardEntry:
    fields = Fields(value, where)
    name = check_name("shard", fields.any("name"), where=where)
    return ShardEntry(
        name, fields.count("items"), _span_counts(fields, tables), fields.checksum("checksum"), fields.split()
    )


def _by_line(value: Any) -> str:
    """JSON with each element of the outermost list or object on its own line."""
    if isinstance(value, Mapping) and value:
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n]"
    return json.dumps(value)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"
    return text if len(text) <= 80 else text[:77] + "…"
