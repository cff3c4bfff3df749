"""The stores that are measured. Made once under `bench/.data/`, and used again; `make clean` removes them."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tokenfeed
from tokenfeed.format.layout import (
    MANIFEST,
    SHARD,
    SHARD_SUMS,
    SPAN_DTYPE,
    SUM_DTYPE,
    column_file,
    first_sums,
    span_files,
)
from tokenfeed.format.manifest import Column, FileRecord, Manifest, ShardEntry, ShardRecord, SpanCount
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.store.shards import compute_anchors

__all__ = [
    "FULL",
    "QUICK",
    "Scale",
    "make_many_documents",
    "make_once",
    "make_one_file",
    "make_sharded",
    "make_small_shards",
    "make_sparse",
]

_FOLDER = Path(__file__).parent / ".data"
_MEAN_DOCUMENT = 800
_PAYLOAD_BYTES = 160
_UINT16 = np.dtype("<u2")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    name: str
    num_items: int
    """Tokens of the stores that are read; two bytes each."""
    shard_bytes: int
    sparse_shards: int
    sparse_items: int
    write_bytes: int
    """Bytes written in each repetition."""
    repetitions: float
    """How often things are repeated, relative to a full run."""


FULL = Scale("full", (1 << 30) + 12345, 1 << 28, 10_000, 10**12, 1 << 30, 1.0)
QUICK = Scale("quick", 1 << 24, 1 << 23, 100, 10**10, 1 << 25, 0.1)


def make_once(name: str, scale: Scale, make: Callable[[Path], None]) -> Path:
    path = _FOLDER / scale.name / name
    if not path.exists():
        unfinished = path.with_name(f".{name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(path)
    return path


def _documents(num_items: int) -> Iterator[tuple[npt.NDArray[Any], list[int], list[bytes]]]:
    """Random tokens, document lengths and payloads, some 30 MB of tokens at a time."""
    rng = np.random.default_rng(0)
    left = num_items
    while left > 0:
        lengths = rng.geometric(1 / _MEAN_DOCUMENT, size=20_000)
        lengths = lengths[: np.searchsorted(np.cumsum(lengths), left) + 1]
        count = int(lengths.sum())
        payload = rng.bytes(_PAYLOAD_BYTES * lengths.size)
        payloads = [payload[i : i + _PAYLOAD_BYTES] for i in range(0, len(payload), _PAYLOAD_BYTES)]
        yield rng.integers(0, 50_000, count, np.uint16), lengths.tolist(), payloads
        left -= count


def make_sharded(scale: Scale) -> Path:
    """Documents of 800 tokens on average, each with a payload of 160 bytes, in several shards."""

    def make(path: Path) -> None:
        columns, spans = {"tokens": "uint16"}, {"documents": "bytes"}
        with tokenfeed.Writer(
            path, columns=columns, spans=spans, shard_bytes=scale.shard_bytes, name="shard"
        ) as writer:
            for tokens, lengths, payloads in _documents(scale.num_items):
                writer.append({"tokens": tokens}, lengths=lengths, documents=payloads)

    return make_once("sharded", scale, make)


def make_small_shards(scale: Scale) -> Path:
    """The same tokens in shards of 256 KiB."""

    def make(path: Path) -> None:
        with tokenfeed.Writer(path, columns={"tokens": "uint16"}, shard_bytes=1 << 18, name="shard") as writer:
            for tokens, _, _ in _documents(scale.num_items):
                for first in range(0, tokens.size, 1 << 14):
                    writer.append({"tokens": tokens[first : first + (1 << 14)]})

    return make_once("small-shards", scale, make)


def make_one_file(scale: Scale) -> Path:
    """The same tokens in one file, without documents."""

    def make(path: Path) -> None:
        with tokenfeed.Writer(path, columns={"tokens": "uint16"}, shard_bytes=1 << 60, name="shard") as writer:
            for tokens, _, _ in _documents(scale.num_items):
                writer.append({"tokens": tokens})

    return make_once("one-file", scale, make)


def make_many_documents(scale: Scale, count: int) -> Path:
    """One shard of so many documents of log-normal lengths, of zeros that take no space on disk."""

    def make(path: Path) -> None:
        lengths = np.random.default_rng(0).lognormal(6.0, 1.0, count).astype(np.int64) + 1
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        items = int(lengths.sum())
        tables = {"starts": starts, "anchors": compute_anchors(starts, items)}
        shard = path / "shard-00000"
        shard.mkdir()
        header = build_header(_UINT16, (), items)
        sizes = {column_file("tokens"): len(header) + items * _UINT16.itemsize}
        with (shard / column_file("tokens")).open("wb") as file:
            file.write(header)
            file.truncate(sizes[column_file("tokens")])
        for name, values in zip(span_files("documents"), tables.values(), strict=False):
            data = build_header(SPAN_DTYPE, (), values.size) + values.astype(SPAN_DTYPE).tobytes()
            (shard / name).write_bytes(data)
            sizes[name] = len(data)
        header, size = _sums_file(sizes)
        with (shard / SHARD_SUMS).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + size)
        sizes[SHARD_SUMS] = len(header) + size
        spans = {"documents": SpanCount(count, 0)}
        record = ShardRecord(items, spans, {name: FileRecord(size, "0" * 16) for name, size in sizes.items()})
        (shard / SHARD).write_bytes(record.to_json().encode())
        entry = ShardEntry(shard.name, items, spans, checksum(record.to_json().encode()))
        (path / MANIFEST).write_text(
            Manifest({"tokens": Column(_UINT16)}, {"documents": None}, shards=(entry,)).to_json()
        )

    return make_once(f"documents-{count}", scale, make)


def make_sparse(scale: Scale) -> Path:
    """Many shards, each of which is one document of zeros that takes no space on disk."""

    def make(path: Path) -> None:
        items = scale.sparse_items // scale.sparse_shards
        starts, anchors, offsets, payload = span_files("documents")
        files = {
            column_file("tokens"): (build_header(_UINT16, (), items), items * _UINT16.itemsize),
            starts: _span_file(1),
            anchors: _span_file(-(-items // ANCHOR_ITEMS)),
            offsets: _span_file(2),
            payload: (b"", 0),
        }
        files[SHARD_SUMS] = _sums_file({name: len(header) + size for name, (header, size) in files.items()})
        spans = {"documents": SpanCount(1, 0)}
        records = {name: FileRecord(len(header) + size, "0" * 16) for name, (header, size) in files.items()}
        shard_json = ShardRecord(items, spans, records).to_json().encode()
        entries = []
        for number in range(scale.sparse_shards):
            shard = path / f"shard-{number:05d}"
            shard.mkdir()
            for name, (header, size) in files.items():
                with (shard / name).open("wb") as file:
                    file.write(header)
                    file.truncate(len(header) + size)
            (shard / SHARD).write_bytes(shard_json)
            entries.append(ShardEntry(shard.name, items, spans, checksum(shard_json)))
        manifest = Manifest({"tokens": Column(_UINT16)}, {"documents": "bytes"}, shards=tuple(entries))
        (path / MANIFEST).write_text(manifest.to_json())

    return make_once("sparse", scale, make)


def _sums_file(sizes: dict[str, int]) -> tuple[bytes, int]:
    count = first_sums(sizes)[1]
    return build_header(SUM_DTYPE, (), count), count * SUM_DTYPE.itemsize


def _span_file(count: int) -> tuple[bytes, int]:
    return build_header(SPAN_DTYPE, (), count), count * SPAN_DTYPE.itemsize
