"""`compress`: copies a store with its columns of integers in fewer bits, or back into plain arrays."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.format.layout import MANIFEST
from tokenfeed.format.manifest import Column, Manifest
from tokenfeed.storage.folder import Folder, PathLike, open_folder
from tokenfeed.store.data import ColumnSet, new_bytes
from tokenfeed.store.sealing import list_shards, load_entries
from tokenfeed.store.shard_writer import ShardWriter
from tokenfeed.store.shards import NativeShard
from tokenfeed.store.store import Store, open_store
from tokenfeed.store.writer import check_bits, check_range
from tokenfeed.types import Array

__all__ = ["CompressReport", "compress"]

Progress = Callable[[int, int], object]
Bits = Mapping[str, int]

_SLICE_BYTES = 1 << 24
_SLICE_SPANS = 4096
_LEAST_SAVED = 8
"""A column is packed where that saves at least one byte in so many."""


@dataclass(frozen=True)
class CompressReport:
    """What `compress` did."""

    num_items: int
    bytes_before: int
    bytes_after: int
    bits: Mapping[str, tuple[int, ...]]
    """Widths that packed columns have in the new store, by column."""
    seconds: float


def compress(
    path: PathLike,
    out: PathLike,
    *,
    bits: Bits | None = None,
    dtype: Any = None,
    eos: int | None = None,
    progress: Progress | None = None,
) -> CompressReport:
    """Copy a store to the new folder `out`, with every column of integers in as few bits as its values need.

    Reads columns twice: once to find the largest value of every shard. `bits={"tokens": 17}` packs only the columns
    named, without that; `bits={}` makes plain arrays of all columns again. What is read is compared with its checksums.

    Items, spans, payloads and splits are the same; earlier versions are left out. The identity is another, so that a
    checkpoint of a run on the one does not fit the other. `path` may be a combined store or a file of another system:
    `dtype` and `eos` are as for `open`.

    `out` has no manifest, and so is not a store, until all of it is there. `progress(done, total)` counts items.
    """
    begin = time.perf_counter()
    store = open_store(path, split="all", dtype=dtype, eos=eos)
    if all(isinstance(shard, NativeShard) for shard in store.shards):
        store = open_store(path, split="all", verify=True)
    bits = None if bits is None else check_bits(bits, store.columns)
    copy = _Copy(store, progress, passes=2 if bits is None else 1)
    widths = [copy.find_bits(number) if bits is None else bits for number in range(len(store.shards))]
    if bits is None and not any(widths):
        raise ArgumentError(
            f"{path} would not become smaller: its columns are "
            f"{', '.join(f'{name} of {column}' for name, column in store.columns.items())}, and need nearly all of "
            "their bits. Use the store as it is"
        )
    used = {name: tuple(sorted({one[name] for one in widths if name in one})) for name in store.columns}
    size = copy.write(_make_folder(out), widths)
    return CompressReport(
        store.num_items,
        sum(shard.num_bytes for shard in store.shards),
        size,
        {name: found for name, found in used.items() if found},
        time.perf_counter() - begin,
    )


def _make_folder(out: PathLike) -> Folder:
    folder = open_folder(out)
    folder.make()
    if folder.exists(MANIFEST) or list_shards(folder).committed:
        what = "a store" if folder.exists(MANIFEST) else "shards, as an interrupted `compress` leaves them"
        raise ArgumentError(f"{folder} already holds {what}; choose another folder, or remove this one")
    return folder


class _Copy:
    """Reads the shards of a store in slices."""

    def __init__(self, store: Store, progress: Progress | None, *, passes: int) -> None:
        self._store = store
        self._columns = ColumnSet(store, tuple(store.columns), None, {})
        self._slice_items = max(1, _SLICE_BYTES // max(1, self._columns.buffer_bytes(1)))
        self._progress = progress
        self._total = passes * store.num_items
        self._done = 0

    def _slices(self, number: int) -> Iterator[tuple[int, dict[str, Array]]]:
        """Number of items, and all columns of them, from the first item of a shard to its last."""
        reader = self._store.reader
        first, end = int(reader.starts[number]), int(reader.starts[number + 1])
        for start in range(first, end, self._slice_items):
            count = min(self._slice_items, end - start)
            buffer = new_bytes(self._columns.buffer_bytes(count))
            reader.read_ragged(np.array([start]), np.array([0, count]), self._columns.request, buffer)
            yield count, {name: self._columns.array(name, (count,), buffer) for name in self._store.columns}
            self._done += count
            if self._progress is not None:
                self._progress(self._done, self._total)

    def find_bits(self, number: int) -> dict[str, int]:
        """Bits of the columns of a shard that become smaller."""
        columns = {name: column for name, column in self._store.columns.items() if column.most_bits}
        found = dict.fromkeys(columns, 1)
        for _, arrays in self._slices(number):
            for name in columns:
                found[name] = max(found[name], _bits_of(arrays[name]))
        return {name: bits for name, bits in found.items() if _saves(columns[name], bits)}

    def write(self, folder: Folder, widths: Sequence[Bits]) -> int:
        """Write all shards, then the manifest. Returns the size of the shards; nothing is left if anything fails."""
        shards = self._store.shards
        content = self._store.contents[0]
        names = [shard.name for shard in shards]
        if names != sorted(set(names)) or not all(isinstance(shard, NativeShard) for shard in shards):
            names = [f"{number:06d}" for number in range(len(shards))]  # several stores, or files of another system
        try:
            for number, name in enumerate(names):
                self._write_shard(folder, number, name, widths[number])
            manifest: Manifest = replace(content.manifest, shards=None, stores=None, earlier=None, versions=())
            entries = load_entries(folder, manifest, names)
            folder.create(MANIFEST, replace(manifest, shards=entries).to_json().encode())
        except BaseException:
            for name in names:
                folder.remove(name)
            raise
        copies = [NativeShard(folder, entry, manifest.columns, manifest.spans) for entry in entries]
        return sum(shard.num_bytes for shard in copies)

    def _write_shard(self, folder: Folder, number: int, name: str, bits: Bits) -> None:
        store = self._store
        tables = {table: spans.codec is not None for table, spans in store.spans.items()}
        split = store.shards[number].split
        shard = ShardWriter(folder, name, store.columns, tables, split=split, sync=True, bits=bits)
        try:
            for table in tables:
                self._copy_spans(shard, number, table)
            for count, arrays in self._slices(number):
                for column, width in bits.items():
                    check_range(arrays[column], width, column)
                shard.append(arrays, count, {})
            shard.commit()
        except BaseException:
            shard.abort()
            raise

    def _copy_spans(self, shard: ShardWriter, number: int, table: str) -> None:
        spans, reader = self._store.spans[table], self._store.reader
        first, end = (int(start) for start in reader.span_starts(table)[number : number + 2])
        for start in range(first, end, _SLICE_SPANS):
            numbers = np.arange(start, min(end, start + _SLICE_SPANS))
            first_items, lengths = spans.locate(numbers)
            data, begins, ends = spans.read(numbers)
            payloads = [None if a < 0 else data[a:b].tobytes() for a, b in zip(begins, ends, strict=True)]
            position = int(first_items[0]) - int(reader.starts[number])
            shard.begin_spans(table, position, lengths.tolist(), payloads)


def _bits_of(array: Array) -> int:
    """Bits that the numbers of an array need, with one for the sign where they have one."""
    if array.size == 0:
        return 1
    low, high = int(array.min()), int(array.max())
    return max(1, high.bit_length(), (~low).bit_length()) + 1 if array.dtype.kind == "i" else max(1, high.bit_length())


def _saves(column: Column, bits: int) -> bool:
    own = 8 * column.dtype.itemsize
    return bits <= column.most_bits and (own - bits) * _LEAST_SAVED >= own
