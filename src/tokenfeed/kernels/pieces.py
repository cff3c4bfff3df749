"""The pieces of documents that rows of a packing plan are made of, and where each goes.

`rows` says where each row's pieces begin; `pieces` has a `PIECE` record for each (`docs/format.md`). Its mark is a hash
of the piece, its place and its row. So damage in a plan is noticed when a row that it concerns is read, and nobody has
to read all of it first.

The rows of several plans can be numbered through, one plan after the other. `plans` then has a `PLAN` record for each,
and one more that says where the rows of the last one end; the files of plan p are 2·p and 2·p + 1.

Rows of 5 items, pieces of 3 and 2 and of 4 items:

    rows    0 2 3
    pieces  7 (3)   20 (2)   40 (4)         row 0 = items 7 8 9 20 21,  row 1 = items 40 41 42 43 and one of padding
"""

import numpy as np

from tokenfeed.kernels.items import PADDING, find_segment, load_lines
from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.posix import BAD_INDEX, BAD_SPANS, OK, fetch, words
from tokenfeed.kernels.spans import grown

ROWS, PIECES = range(2)
PLAN_FILES = 2

PLAN = words(
    "first_row",  # number of its first row
    "num_pieces",
    "first_item",  # of its store, where stores are numbered through
    "num_items",  # of its store
)
PIECE = np.dtype([("first_item", "<i8"), ("length", "<u4"), ("mark", "<u4")])
ROW_BYTES, PIECE_BYTES = 8, PIECE.itemsize

_U = np.uint64  # Numba makes a float of int64 with uint64, so every constant that meets a word is wrapped
_MULTIPLIER, _ROW, _PLACE, _COUNT = (
    _U(0xD6E8FEB86659FD93),
    _U(0x9E3779B185EBCA87),
    _U(0xC2B2AE3D27D4EB4F),
    _U(0x165667B19E3779F9),
)


@inlined
def _mix(word):
    word = (word ^ word >> _U(32)) * _MULTIPLIER
    word = (word ^ word >> _U(32)) * _MULTIPLIER
    return word ^ word >> _U(32)


@inlined
def mark(row, count, place, first_item, length):
    """The mark of piece number `place` of the `count` pieces of row `row` of the plan: 32 bits, as an int64."""
    word = _mix(_U(first_item) + _U(row) * _ROW)
    word = _mix(word ^ (_U(length) + _U(place) * _PLACE + _U(count) * _COUNT))
    return np.int64(word >> _U(32))


@kernel
def find_pieces(indices, files, plans, width):
    """The pieces that rows `indices` are made of, with two reads a row. `files` are ROWS and PIECES of every plan.

    Returns (status, file, row, entries, first_items, offsets). Row j is entries [entries[j], entries[j + 1]): items of
    the store from first_items[i] on go to [offsets[i], offsets[i + 1]) of rows laid end to end; the last entry of a row
    that is not full has PADDING for a first item. Everything read is checked before it is used.

    All that will be looked at is announced to the processor first, where it lies in memory: half of the time.
    """
    rows = indices.size
    first_rows = plans.first_row
    entries = np.zeros(rows + 1, np.int64)
    first_items = np.empty(max(16, 6 * rows), np.int64)
    offsets = np.empty(first_items.size, np.int64)
    bounds = np.empty((rows, 2), np.int64)
    owners = np.zeros(rows, np.int64)
    pieces = np.empty(32, PIECE)
    found = 0
    for row in range(rows):
        if indices[row] < 0 or indices[row] >= first_rows[plans.size - 1]:
            return BAD_INDEX, 0, row, entries, first_items, offsets
        if plans.size > 2:
            owners[row] = find_segment(first_rows, indices[row])
        file = owners[row] * PLAN_FILES + ROWS
        load_lines(files[file], (indices[row] - first_rows[owners[row]]) * ROW_BYTES, 1)
    for row in range(rows):
        plan = plans[owners[row]]
        file = owners[row] * PLAN_FILES + ROWS
        byte = (indices[row] - plan.first_row) * ROW_BYTES
        status = fetch(files, file, byte, 2 * ROW_BYTES, bounds.ctypes.data + 2 * ROW_BYTES * row)
        if status != OK:
            return status, file, row, entries, first_items, offsets
        count = bounds[row, 1] - bounds[row, 0]
        if bounds[row, 0] < 0 or bounds[row, 1] > plan.num_pieces or count < 1 or count > width:
            return BAD_SPANS, file, row, entries, first_items, offsets
        load_lines(files[owners[row] * PLAN_FILES + PIECES], bounds[row, 0] * PIECE_BYTES, 1)
    for row in range(rows):
        plan = plans[owners[row]]
        count = bounds[row, 1] - bounds[row, 0]
        if count > pieces.size:
            pieces = np.empty(2 * count, PIECE)
        file = owners[row] * PLAN_FILES + PIECES
        status = fetch(files, file, bounds[row, 0] * PIECE_BYTES, count * PIECE_BYTES, pieces.ctypes.data)
        if status != OK:
            return status, file, row, entries, first_items, offsets
        first_items = grown(first_items, found + count + 2)
        offsets = grown(offsets, found + count + 2)
        position = 0
        for place in range(count):
            first_item = pieces[place].first_item
            length = np.int64(pieces[place].length)
            if length < 1 or length > width - position or first_item < 0 or first_item > plan.num_items - length:
                return BAD_SPANS, file, row, entries, first_items, offsets
            expected = mark(indices[row] - plan.first_row, count, place, first_item, length)
            if np.int64(pieces[place].mark) != expected:
                return BAD_SPANS, file, row, entries, first_items, offsets
            first_items[found] = plan.first_item + first_item
            offsets[found] = row * width + position
            found += 1
            position += int(length)
        if position < width:
            first_items[found] = PADDING
            offsets[found] = row * width + position
            found += 1
        entries[row + 1] = found
    offsets[found] = rows * width
    return OK, 0, 0, entries, first_items[:found], offsets[: found + 1]
