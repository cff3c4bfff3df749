"""The packing kernels: documents that wait in an arena of tokens, and rows that are filled from it.

Documents lie in one array `tokens`, each led by its BOS. A column of `table` says where a waiting document lies, how
much of it is left, where it came from, and who is before and behind it, oldest first. Documents of one length wait in
line at one of the `lines`, and `bits` has a bit for every line that is not empty, so that the longest document that
fits is found in a few steps however many wait. Longer ones than a row wait in the last line; where they are cropped
shortest first, in a heap instead.

    width 4:  line  1  2  3  4  5     [BOS b] and [BOS d] in line 2, [BOS c c] in line 3, longer than 4 in line 5
              bits  0  1  1  0  1     remaining 4 → line 3; remaining 2 → line 2, of which the older one
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.posix import c_memcpy, c_memmove

# Rows of `table`: START of what is left in `tokens`, how many tokens are left (LENGTH) of how many (TOTAL), the next in
# its line, its neighbours by age, when it came, what it is (FILE, GROUP, ROW of the source), how much of it is DONE.
START, LENGTH, TOTAL, NEXT, OLDER, NEWER, ARRIVAL, FILE, GROUP, ROW, DONE = range(11)
TABLE_ROWS = 11

# Entries of `state`. ROW_NUMBER and POSITION are where filling goes on; a free column of `table` is found through FREE;
# EPOCH is that of the documents added last.
COUNT, OLDEST, NEWEST, FREE, END, LIVE, HEAP, ARRIVALS, ROW_NUMBER, POSITION, SEGMENTS, LOST, REPEATED = range(13)
PADDED, EPOCH = 13, 14
STATE_ENTRIES = 15

# The rule: documents one behind the other (CONCAT), or by best fit, and then what happens when none fits.
CONCAT, SPLIT, CROP, CROP_OLDEST, PAD = range(5)

# What a filling kernel returns: all rows are full, or what it needs to go on, or that it can never go on.
FULL, NEEDS_DOCUMENTS, NEEDS_SEGMENTS, STUCK = range(4)

SEGMENT_FIELDS = 8
"""Of a placed piece: row, start and length in the row; FILE, GROUP, ROW, DONE before it; TOTAL."""

NONE = -1


@inlined
def _highest_bit(word):
    bit = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step):
            word >>= np.uint64(step)
            bit += step
    return bit


@inlined
def _lowest_bit(word):
    return _highest_bit(word & (~word + np.uint64(1)))


@inlined
def _num_words(num_lines):
    return (num_lines + 63) >> 6


def num_bit_words(num_lines: int) -> int:
    """How many words `bits` needs: one bit for a line, and above them one for every word that is not 0."""
    words = (num_lines + 63) >> 6
    return words + ((words + 63) >> 6)


@inlined
def _set_bit(bits, num_lines, line):
    word = line >> 6
    bits[word] |= np.uint64(1) << np.uint64(line & 63)
    bits[_num_words(num_lines) + (word >> 6)] |= np.uint64(1) << np.uint64(word & 63)


@inlined
def _clear_bit(bits, num_lines, line):
    word = line >> 6
    bits[word] &= ~(np.uint64(1) << np.uint64(line & 63))
    if bits[word] == 0:
        bits[_num_words(num_lines) + (word >> 6)] &= ~(np.uint64(1) << np.uint64(word & 63))


@inlined
def _last_line(bits, num_lines, line):
    """The greatest line ≤ `line` that is not empty, or NONE."""
    word = line >> 6
    found = bits[word] & (~np.uint64(0) >> np.uint64(63 - (line & 63)))
    if found == 0:
        base = _num_words(num_lines)
        above = word >> 6
        summary = bits[base + above] & ((np.uint64(1) << np.uint64(word & 63)) - np.uint64(1))
        while summary == 0:
            above -= 1
            if above < 0:
                return NONE
            summary = bits[base + above]
        word = (above << 6) + _highest_bit(summary)
        found = bits[word]
    return (word << 6) + _highest_bit(found)


@inlined
def _first_line(bits, num_lines):
    """The least line that is not empty, or NONE."""
    words = _num_words(num_lines)
    for above in range(words, bits.size):
        if bits[above]:
            word = ((above - words) << 6) + _lowest_bit(bits[above])
            return (word << 6) + _lowest_bit(bits[word])
    return NONE


@inlined
def _comes_first(table, a, b):
    """Whether document a is before b in the heap: shorter, or as long and older."""
    if table[LENGTH, a] != table[LENGTH, b]:
        return table[LENGTH, a] < table[LENGTH, b]
    return table[ARRIVAL, a] < table[ARRIVAL, b]


@inlined
def _push(heap, table, state, document):
    place = state[HEAP]
    state[HEAP] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not _comes_first(table, document, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = document


@inlined
def _pop(heap, table, state):
    top = heap[0]
    state[HEAP] -= 1
    size = state[HEAP]
    document = heap[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _comes_first(table, heap[child + 1], heap[child]):
            child += 1
        if not _comes_first(table, heap[child], document):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = document
    return top


@inlined
def _enqueue(table, lines, bits, heap, state, document, rule):
    """Let a document wait behind all others."""
    table[ARRIVAL, document] = state[ARRIVALS]
    state[ARRIVALS] += 1
    newest = state[NEWEST]
    table[OLDER, document] = newest
    table[NEWER, document] = NONE
    if newest == NONE:
        state[OLDEST] = document
    else:
        table[NEWER, newest] = document
    state[NEWEST] = document
    state[COUNT] += 1
    state[LIVE] += table[LENGTH, document]
    if rule == CONCAT:
        return
    longest = lines.shape[1] - 1
    line = min(table[LENGTH, document], longest)
    if line == longest and rule == CROP:
        _push(heap, table, state, document)
        return
    table[NEXT, document] = NONE
    if lines[0, line] == NONE:
        lines[0, line] = document
        _set_bit(bits, longest + 1, line)
    else:
        table[NEXT, lines[1, line]] = document
    lines[1, line] = document


@inlined
def _leave_age(table, state, document):
    older = table[OLDER, document]
    newer = table[NEWER, document]
    if older == NONE:
        state[OLDEST] = newer
    else:
        table[NEWER, older] = newer
    if newer == NONE:
        state[NEWEST] = older
    else:
        table[OLDER, newer] = older
    state[COUNT] -= 1
    state[LIVE] -= table[LENGTH, document]


@inlined
def _take_first(table, lines, bits, state, line):
    """Take the oldest document of a line."""
    document = lines[0, line]
    lines[0, line] = table[NEXT, document]
    if lines[0, line] == NONE:
        _clear_bit(bits, lines.shape[1], line)
    _leave_age(table, state, document)
    return document


@inlined
def _free(table, state, document):
    table[NEXT, document] = state[FREE]
    state[FREE] = document


@kernel
def reset(table, lines, bits, state):
    """Empty everything; all columns of `table` are free."""
    for line in range(lines.shape[1]):
        lines[0, line] = NONE
        lines[1, line] = NONE
    for word in range(bits.size):
        bits[word] = 0
    for entry in range(state.size):
        state[entry] = 0
    state[OLDEST] = NONE
    state[NEWEST] = NONE
    for document in range(table.shape[1]):
        table[NEXT, document] = document + 1
    table[NEXT, table.shape[1] - 1] = NONE


@kernel
def add_documents(tokens, table, lines, bits, heap, state, new_tokens, offsets, references, rule, bos):
    """Append documents: entry i is new_tokens[offsets[i]:offsets[i + 1]], of which references[i, 3] are done already.

    There must be room: free columns of `table`, and tokens behind END. `bos` leads what is left of a document that was
    split; −1 where nothing is put there.
    """
    size = tokens.itemsize
    for i in range(offsets.size - 1):
        total = offsets[i + 1] - offsets[i]
        done = references[i, 3]
        if total <= done:
            continue
        document = state[FREE]
        state[FREE] = table[NEXT, document]
        start = state[END]
        length = total - done
        first = offsets[i] + done
        c_memcpy(tokens.ctypes.data + start * size, new_tokens.ctypes.data + first * size, length * size)
        if done > 0 and bos >= 0:
            tokens[start] = bos
        state[END] += length
        table[START, document] = start
        table[LENGTH, document] = length
        table[TOTAL, document] = total
        table[FILE, document] = references[i, 0]
        table[GROUP, document] = references[i, 1]
        table[ROW, document] = references[i, 2]
        table[DONE, document] = done
        _enqueue(table, lines, bits, heap, state, document, rule)


@kernel
def list_documents(table, state, references):
    """Write (FILE, GROUP, ROW, DONE) of the waiting documents, oldest first."""
    document = state[OLDEST]
    for i in range(state[COUNT]):
        references[i, 0] = table[FILE, document]
        references[i, 1] = table[GROUP, document]
        references[i, 2] = table[ROW, document]
        references[i, 3] = table[DONE, document]
        document = table[NEWER, document]


@kernel
def list_columns(table, state, columns):
    """Write the columns of `table` that waiting documents have."""
    document = state[OLDEST]
    for i in range(state[COUNT]):
        columns[i] = document
        document = table[NEWER, document]


@kernel
def move_documents(tokens, target, table, state, columns):
    """Move documents, given in the order of START, to the beginning of `target`, which may be `tokens` itself."""
    end = 0
    size = tokens.itemsize
    for i in range(columns.size):
        start = table[START, columns[i]]
        length = table[LENGTH, columns[i]]
        c_memmove(target.ctypes.data + end * size, tokens.ctypes.data + start * size, length * size)
        table[START, columns[i]] = end
        end += length
    state[END] = end


@inlined
def _note(segments, state, table, document, row, position, length):
    entry = state[SEGMENTS]
    segments[entry, 0] = row
    segments[entry, 1] = position
    segments[entry, 2] = length
    segments[entry, 3] = table[FILE, document]
    segments[entry, 4] = table[GROUP, document]
    segments[entry, 5] = table[ROW, document]
    segments[entry, 6] = table[DONE, document]
    segments[entry, 7] = table[TOTAL, document]
    state[SEGMENTS] = entry + 1


@kernel
def fill_best_fit(tokens, table, lines, bits, heap, state, rows, row_numbers, epochs, segments, rule, buffer_size, bos):
    """Fill rows[row_numbers] from the waiting documents, and note the epoch of each; call again with what it asks for.

    The longest document that fits goes next, of equal ones the oldest. When none fits, the shortest is cropped (CROP)
    or the oldest is (CROP_OLDEST), or the rest of the row is padded with `bos` (PAD), or (SPLIT) a document is cut and
    its rest, led by `bos`, waits again behind the others: one that is longer than a row if there is such, else the
    shortest; a single place that is left gets `bos` alone. With SPLIT, every row begins with the oldest document, so
    that none waits for more rows than there are others.
    """
    width = rows.shape[1]
    size = tokens.itemsize
    longest = width + 1
    num_lines = lines.shape[1]
    while state[ROW_NUMBER] < row_numbers.size:
        row = row_numbers[state[ROW_NUMBER]]
        while state[POSITION] < width:
            if state[COUNT] < buffer_size:
                return NEEDS_DOCUMENTS
            if state[SEGMENTS] == segments.shape[0]:
                return NEEDS_SEGMENTS
            position = state[POSITION]
            remaining = width - position
            if rule == SPLIT and position == 0:
                line = min(table[LENGTH, state[OLDEST]], longest)
            else:
                line = _last_line(bits, num_lines, remaining)
            if line == NONE:
                if rule == PAD:
                    if position == 0:
                        return STUCK
                    for j in range(position, width):
                        rows[row, j] = bos
                    state[PADDED] += remaining
                    state[POSITION] = width
                    break
                if rule == SPLIT and remaining == 1:
                    rows[row, position] = bos
                    state[REPEATED] += 1
                    state[POSITION] = width
                    break
                if rule == CROP:
                    line = _first_line(bits, num_lines)
                elif rule == CROP_OLDEST:
                    line = min(table[LENGTH, state[OLDEST]], longest)
                elif lines[0, longest] != NONE:
                    line = longest
                else:
                    line = _first_line(bits, num_lines)
            if line == NONE:
                document = _pop(heap, table, state)
                _leave_age(table, state, document)
            else:
                document = _take_first(table, lines, bits, state, line)
            start = table[START, document]
            length = table[LENGTH, document]
            placed = min(length, remaining)
            place = (row * width + position) * size
            c_memcpy(rows.ctypes.data + place, tokens.ctypes.data + start * size, placed * size)
            _note(segments, state, table, document, row, position, placed)
            state[POSITION] += placed
            if placed == length:
                _free(table, state, document)
            elif rule == SPLIT:
                # The last token that was placed makes room for the BOS of what is left.
                state[REPEATED] += 1
                table[START, document] += placed - 1
                table[LENGTH, document] -= placed - 1
                table[DONE, document] += placed - 1
                tokens[table[START, document]] = bos
                _enqueue(table, lines, bits, heap, state, document, rule)
            else:
                state[LOST] += length - placed
                _free(table, state, document)
        state[POSITION] = 0
        epochs[row] = state[EPOCH]
        state[ROW_NUMBER] += 1
    return FULL


@inlined
def _consume(table, state, count):
    """Take `count` tokens off the oldest documents."""
    while count > 0:
        document = state[OLDEST]
        length = table[LENGTH, document]
        taken = min(count, length)
        if taken == length:
            _leave_age(table, state, document)
            _free(table, state, document)
        else:
            table[START, document] += taken
            table[LENGTH, document] -= taken
            table[DONE, document] += taken
            state[LIVE] -= taken
        count -= taken


@kernel
def fill_concat(tokens, table, state, rows, row_numbers, epochs, segments, advances):
    """Fill rows[row_numbers] with documents one behind the other, oldest first; call again with what it asks for.

    Row i is the next tokens; then advances[i] of them are done with: one less than a row is wide, so that the last
    target of a row is the first input of the next, or as many.
    """
    width = rows.shape[1]
    size = tokens.itemsize
    while state[ROW_NUMBER] < row_numbers.size:
        row = row_numbers[state[ROW_NUMBER]]
        if state[LIVE] < width:
            return NEEDS_DOCUMENTS
        if state[SEGMENTS] + min(width, state[COUNT]) > segments.shape[0]:
            return NEEDS_SEGMENTS
        document = state[OLDEST]
        position = 0
        while position < width:
            start = table[START, document]
            placed = min(table[LENGTH, document], width - position)
            place = (row * width + position) * size
            c_memcpy(rows.ctypes.data + place, tokens.ctypes.data + start * size, placed * size)
            _note(segments, state, table, document, row, position, placed)
            position += placed
            document = table[NEWER, document]
        _consume(table, state, advances[state[ROW_NUMBER]])
        epochs[row] = state[EPOCH]
        state[ROW_NUMBER] += 1
    return FULL
