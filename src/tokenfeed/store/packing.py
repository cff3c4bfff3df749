"""`pack`: plans how whole documents fill rows of equal width, from their lengths alone."""

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
from tokenfeed.kernels.spans import locate_spans
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
from tokenfeed.store.shard_writer import NpyFile, write_sums
from tokenfeed.store.shards import Shard
from tokenfeed.store.spec import PACKING_ALGORITHM
from tokenfeed.types import Ints

__all__ = ["Block", "PackReport", "Progress", "pack"]

Progress = Callable[[int, int], None]
"""Function to call with (done, total)."""

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
    shards: Sequence[Shard],
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
    wanted = PackKey(data.identity, data.spans[table].name, length, data.num_items)
    folders = plan_folders(shards, wanted) if cache is None else [Path(cache)]
    with _attempt(folders) as (folder, attempt):
        writer = _PlanWriter(attempt)
        try:
            lengths = _Lengths(data, shards, table)
            counts = _pack_blocks(lengths, length + 1, writer, progress or (lambda done, total: None))
            items = int(counts[bestfit.ITEMS])
            if items != data.num_items:
                raise CorruptionError(
                    f"the spans of {table!r} cover {items:,} of {data.num_items:,} items. `tokenfeed verify` says where"
                )
            checksums = writer.finish()
        finally:
            writer.close()
        with writing(folder):
            (folder / RECORD).unlink(missing_ok=True)  # so that a mix of old and new files is never taken for a plan
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
    """Pack block after block. Returns the sum of their `counts`."""
    counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
    num_blocks = -(-lengths.count // BLOCK_DOCUMENTS)
    first_item = 0
    for number in range(num_blocks):
        first = number * BLOCK_DOCUMENTS
        block = Block(lengths.read, first, min(lengths.count, first + BLOCK_DOCUMENTS), width, first_item)
        for done, rows, pieces in block.run(writer.num_rows):
            writer.write(rows, pieces)
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
        self.count = int(self._span_starts[-1])

    def read(self, first: int, out: npt.NDArray[np.uint32]) -> None:
        """Set out[j] to the length of span first + j."""
        numbers, located = np.arange(first, first + out.size), np.empty((2, out.size), np.int64)
        arguments = numbers, self._item_starts, self._span_starts, self._files.rows, 1, 0, located
        status = posix.UNOPENED
        while status != posix.OK:
            status, file, _ = self._files.call(locate_spans, *arguments)
            if status == posix.UNOPENED:
                self._files.open(file)
            elif status == posix.BAD_SPANS:
                name = self._files.name(file)
                raise CorruptionError(f"{name} contradicts its table or itself. `tokenfeed verify` says where")
            elif status != posix.OK:
                raise self._files.failure(status, file)
        out[:] = lengths = located[1]
        if out.size and lengths.max() > bestfit.LONGEST:
            span, longest = first + int(lengths.argmax()), bestfit.LONGEST
            raise ArgumentError(f"span {span:,} of {self._table!r} has more than {longest:,} items; pack takes no more")


def _starts_of(shard: Shard, table: str) -> Part | Ints:
    starts = shard.span_parts(table)[0]
    return starts._replace(kept=0.0) if isinstance(starts, Part) else starts


class Block:
    """Up to ten million documents that are packed together. `kernels/bestfit.py` explains the arrays."""

    def __init__(
        self, read: Callable[[int, npt.NDArray[np.uint32]], None], first: int, stop: int, width: int, first_item: int
    ) -> None:
        """`read(first, out)` fills `out` with the lengths of documents from number `first` on."""
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
        """Add rows; `rows` holds the first piece of each, counted in `pieces`."""
        self._rows.write((rows + self.num_pieces).view(np.uint8))
        self._pieces.write(pieces.reshape(-1).view(np.uint8))
        self.num_rows += rows.size
        self.num_pieces += len(pieces)

    def finish(self) -> tuple[str, str, str]:
        """Complete the files. Returns their checksums."""
        self._rows.write(np.array([self.num_pieces], ROW_DTYPE).view(np.uint8))
        rows, pieces = self._rows.finish(sync=True), self._pieces.finish(sync=True)
        sums = write_sums(self._folder / SUMS, (self._rows, self._pieces), sync=True)
        return rows.checksum, pieces.checksum, sums.checksum

    def close(self) -> None:
        """Close the files of an unfinished plan; errors no longer matter."""
        for file in (self._rows, self._pieces):
            with contextlib.suppress(WriteError):
                file.close()


@contextlib.contextmanager
def _attempt(folders: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """(folder, new folder in it) in the first folder that is writable. The new folder is removed at the end.

    New folders of killed processes are removed first: each process holds a lock on its own, which ends with it.
    """
    folder, attempt, lock = _first_writable(folders)
    try:
        yield folder, attempt
    finally:
        with contextlib.suppress(OSError):  # ignore_errors does not cover closing a folder
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

    Another process may remove the folder before it is locked; then try again.
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
    """Take a lock; False if another process holds it. True on file systems without locks, which are not cleaned up."""
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
