"""`pack`: makes a plan by which whole documents fill rows of equal width, from their lengths alone."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, WriteError
from tokenfeed.kernels import bestfit, posix
from tokenfeed.kernels.packing import NONE, num_bit_words
from tokenfeed.storage.files import FileTable, Part
from tokenfeed.storage.local import replace_bytes, sync_folder, writing
from tokenfeed.store.data import Data
from tokenfeed.store.packing_plan import (
    PIECE_DTYPE,
    PIECES,
    RECORD,
    ROW_DTYPE,
    ROWS,
    SUMS,
    PackRecord,
    Wanted,
    plan_folders,
)
from tokenfeed.store.shard_writer import NpyFile, write_sums
from tokenfeed.store.shards import Shard
from tokenfeed.store.spec import PACKING_ALGORITHM
from tokenfeed.types import Ints

__all__ = ["Block", "PackReport", "Progress", "pack"]

Progress = Callable[[int, int], None]
"""Called with how much is done, of how much."""

BLOCK_DOCUMENTS = 10_000_000
LONGEST_ROW = 1 << 24

_SLICE = 1 << 18
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class PackReport:
    """What was packed."""

    folder: Path
    """Where the plan is."""
    rows: int
    used: float
    """The share of all positions that hold an item; the others are padding."""
    documents: int
    """Without the empty ones, which are in no row."""
    cut_documents: int
    """How many are longer than a row, and so are in several."""
    items: int
    seconds: float


def pack(
    data: Data,
    shards: Sequence[Shard],
    length: int,
    *,
    table: str = "documents",
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Make the plan of `packed(length)`: rows of length + 1 items by best fit decreasing (`kernels/bestfit.py`).

    Reads the span table alone: about 0.5 µs a document, 11 bytes of memory for each in a block, and 21 bytes of disk.
    The same data gives the same bytes. A plan that was there is replaced; one that was never finished is no plan.
    """
    began = time.perf_counter()
    if not 1 <= length < LONGEST_ROW:
        raise ArgumentError(f"packed rows of length {length}; it must be from 1 to {LONGEST_ROW - 1:,}")
    wanted = Wanted(data.identity, data.spans[table].name, length, data.num_items)
    folders = plan_folders(shards, wanted) if cache is None else [Path(cache)]
    with _attempt(folders) as (folder, attempt):
        writer = _PlanWriter(attempt)
        try:
            lengths = _Lengths(data, shards, table)
            counts = _pack_blocks(lengths, length + 1, writer, progress or (lambda done, total: None))
            items = int(counts[bestfit.ITEMS])
            if items != data.num_items:
                raise CorruptionError(
                    f"the spans of {table!r} cover {items:,} of {data.num_items:,} items; `tokenfeed verify` says where"
                )
            checksums = writer.finish()
        finally:
            writer.close()
        with writing(folder):
            (folder / RECORD).unlink(missing_ok=True)  # so that no two halves are ever taken for a plan
            for name in (ROWS, PIECES, SUMS):
                (attempt / name).replace(folder / name)
        sync_folder(folder)
        documents, cut = int(counts[bestfit.DOCUMENTS]), int(counts[bestfit.CUT_DOCUMENTS])
        totals = documents, cut, items, writer.num_rows, writer.num_pieces
        record = PackRecord(PACKING_ALGORITHM, *wanted[:3], BLOCK_DOCUMENTS, *totals, *checksums)
        replace_bytes(folder / RECORD, record.to_json().encode())
    used = items / (writer.num_rows * (length + 1)) if writer.num_rows else 1.0
    return PackReport(folder, writer.num_rows, used, documents, cut, items, time.perf_counter() - began)


def _pack_blocks(lengths: "_Lengths", width: int, writer: "_PlanWriter", progress: Progress) -> Ints:
    """Block after block. Returns what `bestfit.add_up` counted over all of them."""
    counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
    num_blocks = -(-lengths.count // BLOCK_DOCUMENTS)
    first_item = 0
    for number in range(num_blocks):
        first = number * BLOCK_DOCUMENTS
        block = Block(lengths, first, min(lengths.count, first + BLOCK_DOCUMENTS), width, first_item)
        for done in block.run(writer):
            progress(first + int(done * block.size), lengths.count)
        counts += block.counts
        first_item += int(block.counts[bestfit.ITEMS])
    return counts


class _Lengths:
    """The lengths of all spans of a table, read in slices."""

    def __init__(self, data: Data, shards: Sequence[Shard], table: str) -> None:
        self._table = table
        self._item_starts = data.reader.starts
        self._span_starts = data.reader.span_starts(table)
        self._files = FileTable(
            len(shards),
            lambda number: _starts_of(shards[number], table),
            max_open_files=0,
            remote=data.reader.remote,
        )
        self._values = np.empty(_SLICE + 1, np.int64)
        self.count = int(self._span_starts[-1])

    def read(self, first: int, out: npt.NDArray[np.uint32]) -> None:
        """out[j] = the length of span first + j."""
        status = posix.UNOPENED
        while status != posix.OK:
            starts = self._item_starts, self._span_starts
            status, file, span = self._files.call(
                bestfit.read_lengths, first, out, *starts, self._files.rows, self._values
            )
            if status == posix.UNOPENED:
                self._files.open(file)
            elif status == posix.BAD_SPANS:
                name = self._files.name(file)
                raise CorruptionError(f"{name} contradicts its table or itself; `tokenfeed verify` says where")
            elif status == bestfit.TOO_LONG:
                raise ArgumentError(
                    f"span {span:,} of {self._table!r} has more than {bestfit.LONGEST:,} items; it cannot be packed"
                )
            elif status != posix.OK:
                raise self._files.failure(status, file)


def _starts_of(shard: Shard, table: str) -> Part | Ints:
    starts = shard.span_parts(table)[0]
    return starts._replace(kept=0.0) if isinstance(starts, Part) else starts


class Block:
    """Some millions of documents that are packed together. `kernels/bestfit.py` says what the arrays are."""

    def __init__(self, lengths: _Lengths, first: int, stop: int, width: int, first_item: int) -> None:
        self.size = stop - first
        self.counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
        self._source = lengths
        self._first = first
        self._first_item = first_item
        self._width = width
        self._lengths = np.empty(self.size, np.uint32)
        self._totals = np.empty(-(-self.size // bestfit.TOTAL_DOCUMENTS), np.int64)
        self._following = np.empty(self.size, np.int32)
        self._tops = np.empty(0, np.int32)

    def run(self, writer: "_PlanWriter") -> Iterator[float]:
        """Pack the block; says now and then which part of it is done."""
        yield from self._read()
        yield from self._place()
        yield from self._list(writer)

    def _read(self) -> Iterator[float]:
        item = self._first_item
        for first in range(0, self.size, _SLICE):
            stop = min(self.size, first + _SLICE)
            self._source.read(self._first + first, self._lengths[first:stop])
            item = bestfit.add_up(self._lengths, self._width, first, stop, item, self._totals, self.counts)
            yield 0.1 * stop / self.size

    def _place(self) -> Iterator[float]:
        width, num_pieces = self._width, int(self.counts[bestfit.PIECES])
        lines, fills = np.full((2, width), NONE, np.int32)
        for stop in range(self.size, 0, -_SLICE):
            bestfit.line_up(self._lengths, width, max(0, stop - _SLICE), stop, lines, self._following)
            yield 0.1
        # No two rows have their items fit into one, or the later would not have been begun: so these are enough.
        most_rows = min(num_pieces, 2 * int(self.counts[bestfit.PIECE_ITEMS]) // width + 2)
        self._tops, below = np.empty(most_rows, np.int32), np.empty(most_rows, np.int32)
        bits = np.zeros(num_bit_words(width), np.uint64)
        state = np.array([width - 1, 0])
        placed = 0
        while placed < num_pieces:
            placed += bestfit.place_pieces(lines, self._following, fills, below, self._tops, bits, state, _SLICE)
            yield 0.1 + 0.5 * placed / num_pieces
        self._tops = self._tops[: state[bestfit.NUM_ROWS]]

    def _list(self, writer: "_PlanWriter") -> Iterator[float]:
        rows = np.empty(_SLICE, np.int64)
        pieces = np.empty((max(_SLICE, self._width), 2), np.int64)
        state = np.array([0, self._first_item, 0])
        num_whole = int(self.counts[bestfit.WHOLE_ROWS])
        total = num_whole + self._tops.size
        listed = 0
        while listed < num_whole:
            count = bestfit.list_whole(self._lengths, self._width, state, writer.num_rows, rows, pieces)
            writer.write(rows[:count], pieces[:count])
            listed += count
            yield 0.6 + 0.4 * listed / total
        first = 0
        while first < self._tops.size:
            num_rows, num_pieces = bestfit.list_mixed(
                self._lengths,
                self._totals,
                self._width,
                self._tops,
                self._following,
                first,
                writer.num_rows,
                rows,
                pieces,
            )
            writer.write(rows[:num_rows], pieces[:num_pieces])
            first += num_rows
            yield 0.6 + 0.4 * (listed + first) / total


class _PlanWriter:
    """The files of a plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_rows = 0
        self.num_pieces = 0
        self._rows = NpyFile(folder / ROWS, ROW_DTYPE)
        try:
            self._pieces = NpyFile(folder / PIECES, PIECE_DTYPE)
        except WriteError:
            self._rows.close()
            raise

    def write(self, rows: Ints, pieces: npt.NDArray[Any]) -> None:
        """Rows, by the first of their pieces among these pieces."""
        self._rows.write((rows + self.num_pieces).view(np.uint8))
        self._pieces.write(pieces.reshape(-1).view(np.uint8))
        self.num_rows += rows.size
        self.num_pieces += len(pieces)

    def finish(self) -> tuple[str, str, str]:
        """The checksums."""
        self._rows.write(np.array([self.num_pieces], ROW_DTYPE).view(np.uint8))
        rows, pieces = self._rows.finish(sync=True), self._pieces.finish(sync=True)
        sums = write_sums(self._folder / SUMS, (self._rows, self._pieces), sync=True)
        return rows.checksum, pieces.checksum, sums.checksum

    def close(self) -> None:
        """For what was not finished, so that it does not matter what closing says."""
        for file in (self._rows, self._pieces):
            with contextlib.suppress(WriteError):
                file.close()


@contextlib.contextmanager
def _attempt(folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """(folder, new folder in it) in the first of the folders that can be written to; the new one is removed at the end.

    What was left behind by others that were killed is removed first. They are told from those that are still at work
    by a lock on their folder, which ends with the process.
    """
    folder, attempt, lock = _first_writable(folders)
    try:
        yield folder, attempt
    finally:
        with contextlib.suppress(OSError):  # of closing a folder, which ignore_errors does not cover
            shutil.rmtree(attempt, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(lock)


def _first_writable(folders: Sequence[Path]) -> tuple[Path, Path, int]:
    for number, folder in enumerate(folders):
        try:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                _remove_left_behind(folder)
                return folder, *_make_locked(folder)
        except WriteError as error:
            if error.errno not in _READ_ONLY or number + 1 == len(folders):
                raise
    raise AssertionError("there is always a folder")


def _make_locked(folder: Path) -> tuple[Path, int]:
    """A new folder, and a file descriptor that holds its lock.

    Before it is locked, another one may take it for left behind: then it is gone, or is about to be.
    """
    while True:
        attempt = folder / f".{secrets.token_hex(8)}"
        attempt.mkdir()
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(attempt, os.O_RDONLY | os.O_CLOEXEC)
            is_ours = False
            try:
                is_ours = _lock(lock) and attempt.exists()
            finally:
                if not is_ours:
                    os.close(lock)
            if is_ours:
                return attempt, lock


def _lock(descriptor: int) -> bool:
    """Whether nobody else holds it. A file system without locks has none to hold: nothing is cleaned up there."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _remove_left_behind(folder: Path) -> None:
    for path in folder.glob(".*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
