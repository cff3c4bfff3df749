"""`pack`: plans how whole documents fill rows of equal width, from their lengths alone."""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, WriteError
from tokenfeed.format.manifest import Column
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
    PackKey,
    PackRecord,
    plan_folders,
)
from tokenfeed.store.shard_writer import CheckedFile, write_sums
from tokenfeed.store.shards import Shard
from tokenfeed.types import Ints

__all__ = ["Block", "PackReport", "Progress", "pack"]

Progress = Callable[[int, int], None]
"""Function to call with (done, total)."""

ReadLengths = Callable[[int, npt.NDArray[np.uint32]], None]
"""Function that fills an array with the lengths of documents, from a number on."""

BLOCK_DOCUMENTS = 10_000_000
LONGEST_ROW = 1 << 24

_SLICE = 1 << 18
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class PackReport:
    """Result of `pack`."""

    folder: Path
    """Folder of the plan."""
    rows: int
    used: float
    """Fraction of all positions that hold an item; the others are padding."""
    documents: int
    """Number of documents, without empty ones, which are in no row."""
    cut_documents: int
    """Number of documents longer than a row, and so spread over several."""
    items: int
    seconds: float


def pack(
    data: Data,
    length: int,
    *,
    table: str = "documents",
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Make the plan of `packed(length)`: rows of length + 1 items by best fit decreasing (`kernels/bestfit.py`).

    Reads only the span table: about 0.5 µs per document, 11 bytes of memory per document of a block, 21 bytes of disk.
    The same data gives the same bytes. An existing plan is replaced; a killed `pack` leaves no plan.
    """
    began = time.perf_counter()
    if not 1 <= length < LONGEST_ROW:
        raise ArgumentError(f"length is {length}; packed rows may have 1 to {LONGEST_ROW - 1:,} inputs")
    wanted = PackKey.of(data, table, length)
    *better, last = plan_folders(data, wanted, cache)
    for folder in better:
        try:
            record = _pack_into(folder, data, wanted, progress)
            break
        except WriteError as error:
            if error.errno not in _READ_ONLY:
                raise
    else:
        folder, record = last, _pack_into(last, data, wanted, progress)
    used = record.items / (record.rows * (length + 1)) if record.rows else 1.0
    counts = record.documents, record.cut_documents, record.items
    return PackReport(folder, record.rows, used, *counts, time.perf_counter() - began)


def _pack_into(folder: Path, data: Data, wanted: PackKey, progress: Progress | None) -> PackRecord:
    with _attempt(folder) as attempt, contextlib.ExitStack() as stack:
        rows = stack.enter_context(CheckedFile(attempt / ROWS, Column(ROW_DTYPE)))
        pieces = stack.enter_context(CheckedFile(attempt / PIECES, Column(PIECE_DTYPE)))
        read, num_documents = _length_reader(data, wanted.table), len(data.spans[wanted.table])
        counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
        num_rows = num_pieces = 0
        for first in range(0, num_documents, BLOCK_DOCUMENTS):
            stop = min(num_documents, first + BLOCK_DOCUMENTS)
            block = Block(read, first, stop, wanted.length + 1, int(counts[bestfit.ITEMS]))
            for done, first_pieces, placed in block.run(num_rows):
                rows.write(first_pieces + num_pieces)
                pieces.write(placed)
                num_rows += first_pieces.size
                num_pieces += len(placed)
                if progress is not None:
                    progress(first + int(done * block.size), num_documents)
            counts += block.counts
        items, documents, cut = (int(counts[n]) for n in (bestfit.ITEMS, bestfit.DOCUMENTS, bestfit.CUT_DOCUMENTS))
        if items != wanted.items:
            covered = f"{items:,} of {wanted.items:,} items"
            raise CorruptionError(f"the spans of {wanted.table!r} cover {covered}. `tokenfeed verify` says where")
        rows.write(np.array([num_pieces], ROW_DTYPE))
        files = rows.finish(sync=True), pieces.finish(sync=True), write_sums(attempt / SUMS, (rows, pieces), sync=True)
        with writing(folder):
            (folder / RECORD).unlink(missing_ok=True)  # so that a mix of old and new files is never taken for a plan
            for name in (ROWS, PIECES, SUMS):
                (attempt / name).replace(folder / name)
        sync_folder(folder)
        totals = documents, cut, items, num_rows, num_pieces
        checksums = (file.checksum for file in files)
        record = PackRecord(*wanted[:4], BLOCK_DOCUMENTS, *totals, *checksums)
        replace_bytes(folder / RECORD, record.to_json().encode())
        return record


def _length_reader(data: Data, table: str) -> ReadLengths:
    """A function that reads the lengths of spans of a table."""
    shards, starts = data.shards, (data.reader.starts, data.reader.span_starts(table))
    files = FileTable(
        len(shards), lambda number: _starts_of(shards[number], table), max_open_files=0, remote=data.reader.remote
    )
    values = np.empty(_SLICE + 1, np.int64)

    def read(first: int, out: npt.NDArray[np.uint32]) -> None:
        status = posix.UNOPENED
        while status != posix.OK:
            status, file, span = files.call(bestfit.read_lengths, first, out, *starts, files.rows, values)
            if status == posix.UNOPENED:
                files.open(file)
            elif status == posix.BAD_SPANS:
                raise CorruptionError(
                    f"{files.name(file)} contradicts its table or itself. `tokenfeed verify` says where"
                )
            elif status == bestfit.TOO_LONG:
                raise ArgumentError(
                    f"span {span:,} of {table!r} has more than {bestfit.LONGEST:,} items; pack takes no more"
                )
            elif status != posix.OK:
                raise files.failure(status, file)

    return read


def _starts_of(shard: Shard, table: str) -> Part | Ints:
    starts = shard.span_parts(table)[0]
    return starts._replace(kept=0.0) if isinstance(starts, Part) else starts


class Block:
    """Up to ten million documents that are packed together. `kernels/bestfit.py` explains the arrays."""

    def __init__(self, read: ReadLengths, first: int, stop: int, width: int, first_item: int) -> None:
        self.size = stop - first
        self.counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
        self._read_lengths = read
        self._first = first
        self._first_item = first_item
        self._width = width
        self._lengths = np.empty(self.size, np.uint32)
        self._totals = np.empty(-(-self.size // bestfit.TOTAL_DOCUMENTS), np.int64)
        self._following = np.empty(self.size, np.int32)
        self._tops = np.empty(0, np.int32)

    def run(self, first_row: int) -> Iterator[tuple[float, Ints, Ints]]:
        """Pack the block in slices: (fraction done, rows, pieces) of each, valid until the next.

        `rows[i]` is the first piece of row `first_row + i` among these `pieces`; a piece is (first item, a mark in the
        upper 32 bits and the length in the lower). The first slices only prepare, and have no rows.
        """
        none = np.empty(0, np.int64), np.empty((0, 2), np.int64)
        for done in self._read():
            yield done, *none
        for done in self._place():
            yield done, *none
        yield from self._list(first_row)

    def _read(self) -> Iterator[float]:
        item = self._first_item
        for first in range(0, self.size, _SLICE):
            stop = min(self.size, first + _SLICE)
            self._read_lengths(self._first + first, self._lengths[first:stop])
            item = bestfit.add_up(self._lengths, self._width, first, stop, item, self._totals, self.counts)
            yield 0.1 * stop / self.size

    def _place(self) -> Iterator[float]:
        width, num_pieces = self._width, int(self.counts[bestfit.PIECES])
        lines, fills = np.full((2, width), NONE, np.int32)
        for stop in range(self.size, 0, -_SLICE):
            bestfit.line_up(self._lengths, width, max(0, stop - _SLICE), stop, lines, self._following)
            yield 0.1
        # The items of two rows never fit into one, or the later row would not have been begun: this bounds the rows.
        most_rows = min(num_pieces, 2 * int(self.counts[bestfit.PIECE_ITEMS]) // width + 2)
        self._tops, below = np.empty(most_rows, np.int32), np.empty(most_rows, np.int32)
        bits = np.zeros(num_bit_words(width), np.uint64)
        state = np.array([width - 1, 0])
        placed = 0
        while placed < num_pieces:
            placed += bestfit.place_pieces(lines, self._following, fills, below, self._tops, bits, state, _SLICE)
            yield 0.1 + 0.5 * placed / num_pieces
        self._tops = self._tops[: state[bestfit.NUM_ROWS]]

    def _list(self, row: int) -> Iterator[tuple[float, Ints, Ints]]:
        rows = np.empty(_SLICE, np.int64)
        pieces = np.empty((max(_SLICE, self._width), 2), np.int64)
        state = np.array([0, self._first_item, 0])
        num_whole = int(self.counts[bestfit.WHOLE_ROWS])
        total = num_whole + self._tops.size
        listed = 0
        while listed < num_whole:
            count = bestfit.list_whole(self._lengths, self._width, state, row + listed, rows, pieces)
            listed += count
            yield 0.6 + 0.4 * listed / total, rows[:count], pieces[:count]
        placed = self._lengths, self._totals, self._width, self._tops, self._following
        while listed < total:
            first = listed - num_whole
            num_rows, num_pieces = bestfit.list_mixed(*placed, first, row + listed, rows, pieces)
            listed += num_rows
            yield 0.6 + 0.4 * listed / total, rows[:num_rows], pieces[:num_pieces]


@contextlib.contextmanager
def _attempt(folder: Path) -> Iterator[Path]:
    """A new folder in `folder`, which is removed at the end. Whoever packs into one folder takes turns.

    So what a killed process left behind is removed first; not where the file system has no locks.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writing(folder):
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
                for left in folder.glob(".*/"):
                    shutil.rmtree(left, ignore_errors=True)
            attempt = Path(tempfile.mkdtemp(prefix=".", dir=folder))
        try:
            yield attempt
        finally:
            with contextlib.suppress(OSError):  # ignore_errors does not cover closing a folder
                shutil.rmtree(attempt, ignore_errors=True)
    finally:
        os.close(lock)
