"""`pack`: plans how whole documents fill rows of equal width, from their lengths alone."""

import contextlib
import errno
import math
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
from tokenfeed.kernels import bestfit
from tokenfeed.kernels.packing import NONE, num_bit_words
from tokenfeed.storage.local import replace_bytes, sync_folder, writing
from tokenfeed.storage.locks import FileLock
from tokenfeed.store.data import Data
from tokenfeed.store.packed import DTYPES, PIECES, RECORD, ROWS, SUMS, PackKey, PackRecord, plan_folders
from tokenfeed.store.shard_writer import CheckedFile, write_sums
from tokenfeed.store.spans import SpanTable
from tokenfeed.types import Ints

__all__ = ["PackReport", "Progress", "pack", "pack_block"]

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


def pack(data: Data, length: int, table: str, cache: str | Path | None, progress: Progress | None) -> PackReport:
    """As `Store.pack`: reads only the span table, with 11 bytes of memory per document of a block, 21 bytes of disk.

    The same data gives the same bytes. An existing plan is replaced; a killed `pack` leaves no plan.
    """
    began = time.perf_counter()
    if not isinstance(length, int | np.integer) or isinstance(length, bool):
        raise ArgumentError(f"length is {length!r}; expected a whole number of inputs in a row: length=2048")
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
        rows, pieces = (
            stack.enter_context(CheckedFile(attempt / name, Column(DTYPES[name]))) for name in (ROWS, PIECES)
        )
        spans = data.spans[wanted.table]
        read, num_documents = _length_reader(spans), len(spans)
        counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
        num_rows = num_pieces = 0
        for first in range(0, num_documents, BLOCK_DOCUMENTS):
            stop, of_block = min(num_documents, first + BLOCK_DOCUMENTS), np.zeros_like(counts)
            place = wanted.length + 1, int(counts[bestfit.ITEMS]), num_rows
            for done, first_pieces, placed in pack_block(read, first, stop, *place, of_block):
                rows.write(first_pieces + num_pieces)
                pieces.write(placed)
                num_rows += first_pieces.size
                num_pieces += len(placed)
                if progress is not None:
                    progress(first + int(done * (stop - first)), num_documents)
            counts += of_block
        items, documents, cut = (int(counts[n]) for n in (bestfit.ITEMS, bestfit.DOCUMENTS, bestfit.CUT_DOCUMENTS))
        if items != wanted.items:
            covered = f"{items:,} of {wanted.items:,} items"
            raise CorruptionError(f"the spans of {wanted.table!r} cover {covered}. `tokenfeed verify` says where")
        rows.write(np.array([num_pieces]))
        with CheckedFile(attempt / SUMS, Column(DTYPES[SUMS])) as sums:
            files = rows.finish(sync=True), pieces.finish(sync=True), write_sums(sums, (rows, pieces), sync=True)
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


def _length_reader(spans: SpanTable) -> ReadLengths:
    def read(first: int, out: npt.NDArray[np.uint32]) -> None:
        out[:] = lengths = spans.locate(np.arange(first, first + out.size))[1]
        if out.size and lengths.max() > bestfit.LONGEST:
            number, longest = first + int(lengths.argmax()), bestfit.LONGEST
            raise ArgumentError(
                f"span {number:,} of {spans.name!r} has more than {longest:,} items; pack takes no more"
            )

    return read


def pack_block(
    read: ReadLengths, first: int, stop: int, width: int, first_item: int, first_row: int, counts: Ints
) -> Iterator[tuple[float, Ints, Ints]]:
    """Pack documents [first, stop), at most ten million, in slices: (fraction done, rows, pieces) of each slice.

    `rows[i]` is the first piece of row `first_row + i` among these `pieces`; a piece is (first item, a mark in the
    upper 32 bits and the length in the lower). Both are valid until the next slice. The first slices only prepare, and
    have no rows. `counts` must be zeros, and is filled. `kernels/bestfit.py` explains the arrays.
    """
    size, item = stop - first, first_item
    lengths, following = np.empty(size, np.uint32), np.empty(size, np.int32)
    totals = np.empty(-(-size // bestfit.TOTAL_DOCUMENTS), np.int64)
    rows, pieces = np.empty(_SLICE, np.int64), np.empty((max(_SLICE, width), 2), np.int64)
    for start in range(0, size, _SLICE):
        end = min(size, start + _SLICE)
        read(first + start, lengths[start:end])
        item = bestfit.add_up(lengths, width, start, end, item, totals, counts)
        yield 0.1 * end / size, rows[:0], pieces[:0]

    num_pieces, num_whole = int(counts[bestfit.PIECES]), int(counts[bestfit.WHOLE_ROWS])
    lines, fills = np.full((2, width), NONE, np.int32)
    for end in range(size, 0, -_SLICE):
        bestfit.line_up(lengths, width, max(0, end - _SLICE), end, lines, following)
        yield 0.1, rows[:0], pieces[:0]
    # The items of two rows never fit into one, or the later row would not have been begun: this bounds the rows.
    most_rows = min(num_pieces, 2 * int(counts[bestfit.PIECE_ITEMS]) // width + 2)
    tops, below = np.empty(most_rows, np.int32), np.empty(most_rows, np.int32)
    bits, state, placed = np.zeros(num_bit_words(width), np.uint64), np.array([width - 1, 0]), 0
    while placed < num_pieces:
        placed += bestfit.place_pieces(lines, following, fills, below, tops, bits, state, _SLICE)
        yield 0.1 + 0.5 * placed / num_pieces, rows[:0], pieces[:0]
    tops = tops[: state[bestfit.NUM_ROWS]]

    total, listed, state = num_whole + tops.size, 0, np.array([0, first_item, 0])
    while listed < total:
        row = first_row + listed
        if listed < num_whole:
            num_rows = num_pieces = bestfit.list_whole(lengths, width, state, row, rows, pieces)
        else:
            arrays = lengths, totals, width, tops, following
            num_rows, num_pieces = bestfit.list_mixed(*arrays, listed - num_whole, row, rows, pieces)
        listed += num_rows
        yield 0.6 + 0.4 * listed / total, rows[:num_rows], pieces[:num_pieces]


@contextlib.contextmanager
def _attempt(folder: Path) -> Iterator[Path]:
    """A new folder in `folder`, which is removed at the end. Whoever packs into one folder takes turns.

    So what a killed process left behind is removed first; not where the file system has no locks.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder) as lock:
        lock.take(exclusive=True, patience=math.inf)
        for left in folder.glob(".*/") if lock.is_known else ():
            shutil.rmtree(left, ignore_errors=True)
        with writing(folder):
            attempt = Path(tempfile.mkdtemp(prefix=".", dir=folder))
        try:
            yield attempt
        finally:
            with contextlib.suppress(OSError):  # ignore_errors does not cover closing a folder
                shutil.rmtree(attempt, ignore_errors=True)
