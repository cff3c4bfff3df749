"""`verify`: checks every checksum and every structural invariant of `docs/format.md`, in slices."""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tokenfeed.errors import TokenfeedError, TruncatedError, quantity
from tokenfeed.format.layout import CHECKED_BYTES, MANIFEST
from tokenfeed.format.manifest import FileRecord, Manifest
from tokenfeed.format.records import check_signature
from tokenfeed.kernels.blocks import checksum_blocks
from tokenfeed.kernels.checksum import Checksum, bytes_of
from tokenfeed.kernels.spans import ANCHOR_ITEMS, ANCHORS, OFFSETS, PAYLOAD, STARTS
from tokenfeed.storage.address import is_remote
from tokenfeed.storage.files import Part
from tokenfeed.storage.folder import Folder, PathLike, open_folder
from tokenfeed.storage.local import open_binary, reading
from tokenfeed.storage.objects import open_file
from tokenfeed.store.packed import PIECES, RECORD, ROWS, SUMS, PackingPlan, PackRecord
from tokenfeed.store.resolve import resolve
from tokenfeed.store.sealing import (
    ShardList,
    find_lacking,
    find_unfinished,
    list_shards,
    load_manifest,
    parse_record,
    record_file,
)
from tokenfeed.store.shards import NativeShard
from tokenfeed.types import Ints

__all__ = ["VerifyReport", "verify"]

_SLICE_BYTES = 1 << 24
_SLICE_ITEMS = _SLICE_BYTES // 8
_SLICE_ANCHORS = 1 << 16
_SHOWN = 8


@dataclass
class VerifyReport:
    """Result of `verify`: how much was checked, and what is wrong."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Facts worth knowing that are no fault, such as a shard abandoned by a killed writer."""
    num_files: int = 0
    num_bytes: int = 0
    num_shards: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    path: PathLike,
    *,
    quick: bool = False,
    dtype: Any = None,
    eos: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> VerifyReport:
    """Check all of a store, a combined store or a foreign file. Problems are reported, not raised.

    `quick` skips the checksums, and so does not read columns and payloads. `dtype` and `eos` are as for `open`.
    `progress(bytes done, bytes in all)` is called after every slice.
    """
    return _Verification(quick, progress).run(path, dtype, eos)


@dataclass
class _Verification:
    quick: bool
    progress: Callable[[int, int], object] | None
    total: int = 0
    report: VerifyReport = field(default_factory=VerifyReport)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Turns an error into a problem of the report."""
        try:
            yield
        except TokenfeedError as error:
            self.report.problems.append(str(error))

    def _problem(self, path: object, what: str) -> None:
        self.report.problems.append(f"{path}: {what}")

    def run(self, path: PathLike, dtype: Any, eos: int | None) -> VerifyReport:
        with self._noting():
            folder = open_folder(path)
            if folder.local is not None and not folder.exists(MANIFEST):
                self._check_foreign(path, dtype, eos)
                return self.report
            manifest = load_manifest(folder)
            with self._noting():
                check_signature(folder.read(MANIFEST), folder.path(MANIFEST))
            if manifest.stores is None:
                self._check_store(folder, manifest)
                return self.report
            resolve(path)  # raises if a part has changed, or is a combined store
            for store in manifest.stores:
                self.run(folder.resolve(store.uri), store.dtype, store.eos)
        return self.report

    def _check_foreign(self, path: PathLike, dtype: Any, eos: int | None) -> None:
        content = resolve(path, dtype=dtype, eos=eos)
        for shard in content.shards:
            self.report.num_shards += 1
            for table in content.manifest.spans:
                shard.num_spans(table)  # reads and checks the boundaries
            for column in content.manifest.columns:
                part = shard.column_part(column)
                self.report.num_files += 1
                self.report.num_bytes += part.file_bytes
                with _opened(part.path) as file:
                    self._check_start(file, part)

    def _check_store(self, folder: Folder, manifest: Manifest) -> None:
        if not folder.can_list:
            resolve(str(folder))  # raises if it is not sealed: then only a listing could find its shards
        shards = list_shards(folder) if folder.can_list else ShardList([], [])
        if unfinished := find_unfinished(folder, manifest):
            self.report.problems.append(unfinished)
        if lacking := find_lacking(folder, manifest):
            more = f" and {len(lacking) - _SHOWN:,} more" if len(lacking) > _SHOWN else ""
            self._problem(
                folder,
                f"lacks {quantity(len(lacking), 'shard')} that `tokenfeed prepare` made: {', '.join(lacking[:_SHOWN])}"
                f"{more}. Run the same `tokenfeed prepare` again: it repairs the store",
            )
        listed = {entry.name: entry for entry in manifest.listed}
        names = [*listed, *(name for name in shards.committed if name not in listed)]
        if manifest.shards is not None:
            for name in names[len(listed) :]:
                self.report.notes.append(f"{folder.path(name)} is committed but not in the manifest; seal the store")
            names = list(listed)
        for name in shards.unfinished:
            self.report.notes.append(f"{folder.path(name)} is unfinished: being written, or its writer was killed")
        records = []
        for name in names:
            with self._noting():
                data = folder.read(record_file(folder, name))
                records.append((name, *parse_record(folder, name, data, manifest)))
                check_signature(data, folder.path(record_file(folder, name)))
        self.total = sum(file.bytes for _, record, _ in records for file in record.files.values())
        for name, record, entry in records:
            self.report.num_shards += 1
            if listed.get(name, entry) != entry:
                self._problem(folder.path(name), f"its shard.json says {entry}, the manifest says {listed[name]}")
            with self._noting():
                shard = NativeShard(folder, entry, manifest.columns, manifest.spans)
                whole = self._check_files(shard.parts(), record.files)
                for table in manifest.spans:
                    if whole.issuperset(part.path for part in shard.span_parts(table)):
                        self._check_table(shard, table)
        if folder.local is not None:
            for path in sorted(folder.local.glob(f".packed-*/{RECORD}")):
                with self._noting():
                    self._check_plan(path.parent)

    def _check_plan(self, folder: Path) -> None:
        """Check a packing plan. A damaged one can be made again."""
        record = PackRecord.load(folder)
        plan = PackingPlan(folder, record)
        parts = plan.parts()
        checksums = {ROWS: record.rows_checksum, PIECES: record.pieces_checksum, SUMS: record.blocks_checksum}
        self.total += sum(part.file_bytes for part in parts.values())
        files = {name: FileRecord(part.file_bytes, checksums[name]) for name, part in parts.items()}
        whole = self._check_files(parts, files)
        if len(whole) == len(parts):
            plan.check_rows()

    def _check_files(self, parts: Mapping[str, Part], files: Mapping[str, FileRecord]) -> set[str]:
        """Check files and the checksums of their blocks. Returns the paths whose content can be checked further."""
        whole: set[str] = set()
        for name, part in parts.items():  # that of block checksums comes first
            if self._check_file(part, files[name], whole):
                whole.add(part.path)
        return whole

    def _check_file(self, part: Part, record: FileRecord, whole: set[str]) -> bool:
        """Check size, header and checksums. Returns False if the content cannot be checked further."""
        self.report.num_files += 1
        if record.bytes != part.file_bytes:
            self._problem(
                part.path, f"shard.json records {record.bytes:,} bytes, but its counts imply {part.file_bytes:,}"
            )
            return False
        with self._noting(), _opened(part.path) as file:
            if not self._check_start(file, part):
                return False
            if not self.quick:
                self._check_sums(file, part, record, part.sums if part.sums and part.sums.path in whole else None)
            return True
        return False

    def _check_start(self, file: BinaryIO, part: Part) -> bool:
        size = file.seek(0, io.SEEK_END)
        if size != part.file_bytes:
            self._problem(part.path, f"has {size:,} bytes, expected {part.file_bytes:,}")
            return False
        header = _read(file, part, 0, len(part.header))
        if header != part.header:
            self._problem(part.path, f"begins with {header!r}, expected {part.header!r}")
            return False
        return True

    def _check_sums(self, file: BinaryIO, part: Part, record: FileRecord, sums: Part | None) -> None:
        """Check the checksum of everything after the header; and of each block, if the file of these is whole."""
        computed = Checksum()
        damaged = [np.empty(0, np.int64)]
        for position in range(0, part.file_bytes, _SLICE_BYTES):
            data = _read(file, part, position, min(position + _SLICE_BYTES, part.file_bytes))
            computed.update(memoryview(data)[max(0, part.byte_start - position) :])
            if sums is not None:
                found = checksum_blocks(bytes_of(data), CHECKED_BYTES).view(np.int64)
                block = position // CHECKED_BYTES
                expected = _numbers(sums, part.first_sum + block, part.first_sum + block + found.size)
                damaged.append(block + np.flatnonzero(found != expected))
            self.report.num_bytes += len(data)
            if self.progress is not None:
                self.progress(self.report.num_bytes, self.total)
        blocks = np.concatenate(damaged)
        if computed.hexdigest() != record.checksum:
            where = "" if sums is None else f"; {_list_blocks(blocks)}"
            self._problem(part.path, f"checksum is {computed.hexdigest()}, expected {record.checksum}{where}")
        elif sums is not None and blocks.size:
            self._problem(sums.path, f"is wrong about {part.path}, whose own checksum holds: {_list_blocks(blocks)}")

    def _check_table(self, shard: NativeShard, table: str) -> None:
        num_spans, num_items, parts = shard.num_spans(table), shard.num_items, shard.span_parts(table)
        starts = parts[STARTS]
        previous, num_problems = 0, len(self.report.problems)
        for first, values in _slices(starts):
            if first == 0 and values[0] != 0:
                self._problem(starts.path, f"the first span starts at item {values[0]}, expected 0")
            if values[0] < previous or _falls(values):
                self._problem(starts.path, f"the starts of spans {first} to {first + len(values)} are not in order")
            previous = int(values[-1])
        if previous > num_items or (num_items > 0 and num_spans == 0):
            spans, items = quantity(num_spans, "span"), quantity(num_items, "item")
            self._problem(starts.path, f"has {spans}, the last from item {previous}, but the shard has {items}")
        elif num_items > 0 and len(self.report.problems) == num_problems:
            self._check_anchors(starts, num_items, parts[ANCHORS])
        if len(parts) > OFFSETS:
            self._check_offsets(parts[OFFSETS], parts[PAYLOAD].file_bytes)

    def _check_anchors(self, starts: Part, num_items: int, anchors: Part) -> None:
        """Compare anchors with starts that are in order. Both are read in slices, however many spans are empty."""
        count = (starts.file_bytes - starts.byte_start) // 8
        for first, values in _slices(starts):
            stop = first + len(values)
            next_start = num_items if stop == count else int(_numbers(starts, stop, stop + 1)[0])
            begin, end = -(-int(values[0]) // ANCHOR_ITEMS), -(-next_start // ANCHOR_ITEMS)
            for low in range(begin, end, _SLICE_ANCHORS):  # those of items from this slice's first to the next one's
                high = min(end, low + _SLICE_ANCHORS)
                found = _numbers(anchors, low, high)
                expected = first + np.searchsorted(values, np.arange(low, high) * ANCHOR_ITEMS, side="right") - 1
                wrong = np.flatnonzero(found != expected)
                if wrong.size:
                    at = int(wrong[0])
                    self._problem(
                        anchors.path, f"anchor {low + at} is span {found[at]}; span {expected[at]} covers its item"
                    )

    def _check_offsets(self, offsets: Part, payload_bytes: int) -> None:
        previous, gap = 0, False
        for first, stored in _slices(offsets):
            values = np.maximum(stored, ~stored)
            before = np.concatenate(([previous], values[:-1]))
            gaps = np.concatenate(([gap], stored[:-1] < 0))
            if (first == 0 and values[0] != 0) or (values < before).any():
                self._problem(offsets.path, f"offsets {first} to {first + len(values)} are not in order")
            elif (values[gaps] != before[gaps]).any():
                self._problem(offsets.path, f"a span after offset {first} has no payload, and yet bytes")
            previous, gap = int(values[-1]), bool(stored[-1] < 0)
        if gap or previous != payload_bytes:
            last = ~previous if gap else previous
            self._problem(offsets.path, f"the last offset is {last:,}, but there are {payload_bytes:,} payload bytes")


def _list_blocks(blocks: Ints) -> str:
    """The numbers of the first few damaged blocks, in words."""
    if blocks.size == 0:
        return "no block differs from its own checksum"
    shown = ", ".join(f"{block:,}" for block in blocks[:_SHOWN].tolist())
    more = f" and {blocks.size - _SHOWN:,} more" if blocks.size > _SHOWN else ""
    found = f"{quantity(blocks.size, 'block')} of {CHECKED_BYTES:,} bytes"
    return f"{found} {'differs' if blocks.size == 1 else 'differ'} from the recorded checksum: {shown}{more}"


def _falls(values: Ints) -> bool:
    """Whether any number is less than the one before it. (Compared, because a difference may not fit 64 bits.)"""
    return bool((values[1:] < values[:-1]).any())


def _numbers(part: Part, start: int, stop: int) -> Ints:
    """64-bit numbers [start, stop) of a file."""
    with _opened(part.path) as file:
        return np.frombuffer(_read(file, part, part.byte_start + start * 8, part.byte_start + stop * 8), "<i8")


def _slices(part: Part, size: int = _SLICE_ITEMS) -> Iterator[tuple[int, Ints]]:
    count = (part.file_bytes - part.byte_start) // 8
    for start in range(0, count, size):
        yield start, _numbers(part, start, min(start + size, count))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if is_remote(path):
        with io.BufferedReader(open_file(path)) as file:
            yield file
    else:
        with reading(path), open_binary(path) as file:
            yield file


def _read(file: BinaryIO, part: Part, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file."""
    file.seek(start)
    data = file.read(stop - start)
    if len(data) < stop - start:
        raise TruncatedError(f"{part.path} ended while it was being read", filename=part.path)
    return data
