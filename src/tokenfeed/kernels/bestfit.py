"""Best fit decreasing: whole documents into rows of `width` items, a block of documents at a time.

A document first fills as many rows as it can alone; what is left of it, if anything, is a piece. Pieces are placed
longest first (of equal pieces, that of the earlier document), each into the fullest row that still has room for it (of
equally full rows, the one that became so last), or into a new row if there is none.

    width 10, documents of 6, 14, 0, 3, 5 and 4 items:  the second fills a row, and leaves a piece of 4
    pieces 6 5 4 4 3:   6 → row A,  5 → row B,  4 → row A (it is full),  4 → row B,  3 → row C

Pieces of one length are a list, `lines[length]`, linked through `following`. Once placed, so are the pieces of one row
(`tops`, the latest first). Rows that are equally full are a stack, `fills[used]`, linked through `below`, and a bitmap
of two levels says which stacks are not empty: a piece costs a few steps however many rows there are. In all this takes
8 bytes a document, its length included, and 8 a row. First items are not kept: documents lie one after the other, so a
running total for every 16 of them (`totals`) is enough.

Every kernel does a part of its work and is called again, so that Ctrl-C works within a second.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.packing import NONE, clear_bit, last_line, set_bit
from tokenfeed.kernels.pieces import mark

TOTAL_DOCUMENTS = 16
LONGEST = 0xFFFFFFFF
"""Items that a document may have."""

# Entries of `state` while pieces are placed: the length that is being placed, and how many rows there are.
LENGTH, NUM_ROWS = range(2)

# Entries of `state` while rows of one document are listed: the document, its first item, which of its rows.
DOCUMENT, FIRST_ITEM, TURN = range(3)

# What is counted: items, documents that are not empty, documents that are cut, rows that one document fills, pieces
# that are left, and the items of these pieces.
ITEMS, DOCUMENTS, CUT_DOCUMENTS, WHOLE_ROWS, PIECES, PIECE_ITEMS = range(6)
NUM_COUNTS = 6


@kernel
def add_up(lengths, width, first, stop, start, totals, counts):
    """Running totals of documents [first, stop); the first begins at item `start`. Adds to `counts`.

    Returns the item after them.
    """
    for document in range(first, stop):
        if document % TOTAL_DOCUMENTS == 0:
            totals[document // TOTAL_DOCUMENTS] = start
        length = np.int64(lengths[document])
        start += length
        rest = length % width
        counts[ITEMS] += length
        counts[DOCUMENTS] += length > 0
        counts[CUT_DOCUMENTS] += length > width
        counts[WHOLE_ROWS] += length // width
        counts[PIECES] += rest > 0
        counts[PIECE_ITEMS] += rest
    return start


@kernel
def line_up(lengths, width, first, stop, lines, following):
    """Put the pieces of documents [first, stop) into line by length, before the pieces of later documents."""
    for document in range(stop - 1, first - 1, -1):
        rest = np.int64(lengths[document]) % width
        if rest > 0:
            following[document] = lines[rest]
            lines[rest] = document


@kernel
def place_pieces(lines, following, fills, below, tops, bits, state, limit):
    """Place up to `limit` pieces, and take them out of their lines. Returns how many: fewer if no more are left."""
    width = fills.size
    length = state[LENGTH]
    num_rows = state[NUM_ROWS]
    placed = 0
    while placed < limit:
        while length > 0 and lines[length] == NONE:
            length -= 1
        if length == 0:
            break
        document = lines[length]
        lines[length] = following[document]
        used = last_line(bits, width, width - length)
        if used == NONE:
            used = 0
            row = num_rows
            num_rows += 1
            tops[row] = NONE
        else:
            row = fills[used]
            fills[used] = below[row]
            if fills[used] == NONE:
                clear_bit(bits, width, used)
        following[document] = tops[row]
        tops[row] = document
        used += length
        if used < width:
            if fills[used] == NONE:
                set_bit(bits, width, used)
            below[row] = fills[used]
            fills[used] = row
        placed += 1
    state[LENGTH] = length
    state[NUM_ROWS] = num_rows
    return placed


@inlined
def _write_piece(pieces, entry, row, count, place, first_item, length):
    pieces[entry, 0] = first_item
    pieces[entry, 1] = mark(row, count, place, first_item, length) << 32 | length


@kernel
def list_whole(lengths, width, state, row, rows, pieces):
    """List the rows that documents fill alone, from row number `row` on, in the order of the documents.

    Fills `rows` and `pieces`, one of each for a row, and goes on there when it is called again. Returns how many.
    """
    document, first_item, turn = state[DOCUMENT], state[FIRST_ITEM], state[TURN]
    found = 0
    while document < lengths.size and found < rows.size:
        if turn < np.int64(lengths[document]) // width:
            rows[found] = found
            _write_piece(pieces, found, row + found, 1, 0, first_item + turn * width, width)
            found += 1
            turn += 1
        else:
            first_item += lengths[document]
            document += 1
            turn = 0
    state[DOCUMENT], state[FIRST_ITEM], state[TURN] = document, first_item, turn
    return found


@kernel
def list_mixed(lengths, totals, width, tops, following, first, row, rows, pieces):
    """List the rows of placed pieces from the `first` on, as rows from number `row` on.

    Pieces are in the order of placing, the longest first. Returns (rows listed, pieces listed): as many as there are,
    or as `rows` and `pieces` can hold.
    """
    num_rows = 0
    num_pieces = 0
    while num_rows < rows.size and first + num_rows < tops.size:
        count = 0
        document = tops[first + num_rows]
        while document != NONE:
            count += 1
            document = following[document]
        if num_pieces + count > pieces.shape[0]:
            break
        document = tops[first + num_rows]
        for place in range(count - 1, -1, -1):
            before = document // TOTAL_DOCUMENTS * TOTAL_DOCUMENTS
            first_item = totals[document // TOTAL_DOCUMENTS]
            for other in range(before, document):
                first_item += lengths[other]
            length = np.int64(lengths[document])
            rest = length % width
            _write_piece(pieces, num_pieces + place, row + num_rows, count, place, first_item + length - rest, rest)
            document = following[document]
        rows[num_rows] = num_pieces
        num_rows += 1
        num_pieces += count
    return num_rows, num_pieces
