"""The packing kernels: documents that wait in an arena of tokens, and rows that are filled from it.

Documents lie in one array `tokens`, each led by its BOS. A `DOCUMENT` record says where one lies, how much of it is
left, where it came from, and which documents are older and newer. Documents of one length wait in line at one of the
`lines`, and `bits` has a bit for every line that is not empty, so that the longest document that fits is found in a few
steps however many wait. Documents longer than a row wait in the last line; where they are cropped shortest first, in a
heap instead.

    width 4:  line  1  2  3  4  5     [BOS b] and [BOS d] in line 2, [BOS c c] in line 3, longer than 4 in line 5
              bits  0  1  1  0  1     remaining 4 → line 3; remaining 2 → line 2, the older one

Kernels called from Python take the `STATE` as an array of one record.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.posix import c_memcpy, c_memmove, words

DOCUMENT = words(
    "start",  # of what is left of it, in `tokens`
    "length",  # tokens left …
    "total",  # … of how many
    "next",  # the next document in its line; of a free record, the next free one
    "older",
    "newer",
    "arrival",  # counts up
    "file",  # where it came from: file, row group, row
    "group",
    "row",
    "done",  # tokens of it that are in rows already
)
STATE = words(
    "count",  # documents that wait
    "oldest",
    "newest",
    "free",  # a free record
    "end",  # of the documents in `tokens`
    "live",  # tokens of all waiting documents
    "heap",  # documents in the heap
    "arrivals",
    "row_number",  # where filling goes on: the row …
    "position",  # … and the place in it
    "segments",  # pieces noted
    "lost",  # tokens cropped
    "repeated",  # BOS tokens that lead a further piece of a document
    "padded",  # tokens of padding
)
SEGMENT = words("place", "start", "length", "file", "group", "row", "done", "total")
"""A piece of a document that was placed: its row, start and length there, and the document as it was before."""

# The rule: documents one after the other (CONCAT), or by best fit; and then what happens when none fits.
CONCAT, SPLIT, CROP, CROP_OLDEST, PAD = range(5)

# What a filling kernel returns: all rows are full, or what it needs to go on, or that it can never go on.
FULL, NEEDS_DOCUMENTS, NEEDS_SEGMENTS, STUCK = range(4)

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
    num_words = -(-num_lines // 64)
    return num_words + -(-num_words // 64)


@inlined
def set_bit(bits, num_lines, line):
    word = line >> 6
    bits[word] |= np.uint64(1) << np.uint64(line & 63)
    bits[_num_words(num_lines) + (word >> 6)] |= np.uint64(1) << np.uint64(word & 63)


@inlined
def clear_bit(bits, num_lines, line):
    word = line >> 6
    bits[word] &= ~(np.uint64(1) << np.uint64(line & 63))
    if bits[word] == 0:
        bits[_num_words(num_lines) + (word >> 6)] &= ~(np.uint64(1) << np.uint64(word & 63))


@inlined
def last_line(bits, num_lines, line):
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
def _comes_first(documents, a, b):
    """Whether document a is before b in the heap: shorter, or as long and older."""
    if documents[a].length != documents[b].length:
        return documents[a].length < documents[b].length
    return documents[a].arrival < documents[b].arrival


@inlined
def _push(heap, documents, state, document):
    place = state.heap
    state.heap += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not _comes_first(documents, document, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = document


@inlined
def _pop(heap, documents, state):
    top = heap[0]
    state.heap -= 1
    size = state.heap
    document = heap[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _comes_first(documents, heap[child + 1], heap[child]):
            child += 1
        if not _comes_first(documents, heap[child], document):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = document
    return top


@inlined
def _enqueue(documents, lines, bits, heap, state, document, rule):
    """Let a document wait after all others."""
    documents[document].arrival = state.arrivals
    state.arrivals += 1
    newest = state.newest
    documents[document].older = newest
    documents[document].newer = NONE
    if newest == NONE:
        state.oldest = document
    else:
        documents[newest].newer = document
    state.newest = document
    state.count += 1
    state.live += documents[document].length
    if rule == CONCAT:
        return
    longest = lines.shape[1] - 1
    line = min(documents[document].length, longest)
    if line == longest and rule == CROP:
        _push(heap, documents, state, document)
        return
    documents[document].next = NONE
    if lines[0, line] == NONE:
        lines[0, line] = document
        set_bit(bits, longest + 1, line)
    else:
        documents[lines[1, line]].next = document
    lines[1, line] = document


@inlined
def _leave_age(documents, state, document):
    older = documents[document].older
    newer = documents[document].newer
    if older == NONE:
        state.oldest = newer
    else:
        documents[older].newer = newer
    if newer == NONE:
        state.newest = older
    else:
        documents[newer].older = older
    state.count -= 1
    state.live -= documents[document].length


@inlined
def _take_first(documents, lines, bits, state, line):
    """Take the oldest document of a line."""
    document = lines[0, line]
    lines[0, line] = documents[document].next
    if lines[0, line] == NONE:
        clear_bit(bits, lines.shape[1], line)
    _leave_age(documents, state, document)
    return document


@inlined
def _free(documents, state, document):
    documents[document].next = state.free
    state.free = document


@kernel
def add_documents(tokens, documents, lines, bits, heap, states, new_tokens, offsets, references, rule, bos):
    """Append documents: entry i is new_tokens[offsets[i]:offsets[i + 1]], of which references[i, 3] are done already.

    There must be room: free records, and tokens after the end. `bos` leads what is left of a document that was split;
    −1 where nothing is put there.
    """
    state = states[0]
    size = tokens.itemsize
    for i in range(offsets.size - 1):
        total = offsets[i + 1] - offsets[i]
        done = references[i, 3]
        if total <= done:
            continue
        document = state.free
        state.free = documents[document].next
        start = state.end
        length = total - done
        first = offsets[i] + done
        c_memcpy(tokens.ctypes.data + start * size, new_tokens.ctypes.data + first * size, length * size)
        if done > 0 and bos >= 0:
            tokens[start] = bos
        state.end += length
        documents[document].start = start
        documents[document].length = length
        documents[document].total = total
        documents[document].file = references[i, 0]
        documents[document].group = references[i, 1]
        documents[document].row = references[i, 2]
        documents[document].done = done
        _enqueue(documents, lines, bits, heap, state, document, rule)


@kernel
def list_waiting(documents, states, numbers):
    """Write the numbers of the documents that wait, oldest first."""
    document = states[0].oldest
    for i in range(states[0].count):
        numbers[i] = document
        document = documents[document].newer


@kernel
def move_documents(tokens, target, documents, states, numbers):
    """Move documents, numbered in the order of their starts, to the beginning of `target`, which may be `tokens`."""
    end = 0
    size = tokens.itemsize
    for i in range(numbers.size):
        start = documents[numbers[i]].start
        length = documents[numbers[i]].length
        c_memmove(target.ctypes.data + end * size, tokens.ctypes.data + start * size, length * size)
        documents[numbers[i]].start = end
        end += length
    states[0].end = end


@inlined
def _place(tokens, document, rows, row, position, length, segments, state):
    """Copy the first tokens of what is left of a document into a row, and note that."""
    size = tokens.itemsize
    target = rows.ctypes.data + (row * rows.shape[1] + position) * size
    c_memcpy(target, tokens.ctypes.data + document.start * size, length * size)
    segment = segments[state.segments]
    segment.place = row
    segment.start = position
    segment.length = length
    segment.file = document.file
    segment.group = document.group
    segment.row = document.row
    segment.done = document.done
    segment.total = document.total
    state.segments += 1


@kernel
def fill_best_fit(tokens, documents, lines, bits, heap, states, rows, row_numbers, segments, rule, buffer_size, bos):
    """Fill rows[row_numbers] from the waiting documents; call again with what it asks for.

    The longest document that fits goes next, of equal ones the oldest. When none fits, the shortest is cropped (CROP)
    or the oldest is (CROP_OLDEST), or the rest of the row is padded with `bos` (PAD), or (SPLIT) a document is cut and
    its rest, led by `bos`, waits again after the others: one that is longer than a row if there is such, else the
    shortest; a single place that is left gets `bos` alone. With SPLIT, every row begins with the oldest document, so
    that none waits for more rows than there are others.
    """
    state = states[0]
    width = rows.shape[1]
    longest = width + 1
    num_lines = lines.shape[1]
    while state.row_number < row_numbers.size:
        row = row_numbers[state.row_number]
        while state.position < width:
            if state.count < buffer_size:
                return NEEDS_DOCUMENTS
            if state.segments == segments.size:
                return NEEDS_SEGMENTS
            position = state.position
            remaining = width - position
            if rule == SPLIT and position == 0:
                line = min(documents[state.oldest].length, longest)
            else:
                line = last_line(bits, num_lines, remaining)
            if line == NONE:
                if rule == PAD:
                    if position == 0:
                        return STUCK
                    for j in range(position, width):
                        rows[row, j] = bos
                    state.padded += remaining
                    state.position = width
                    break
                if rule == SPLIT and remaining == 1:
                    rows[row, position] = bos
                    state.repeated += 1
                    state.position = width
                    break
                if rule == CROP_OLDEST:
                    line = min(documents[state.oldest].length, longest)
                elif rule == SPLIT and lines[0, longest] != NONE:
                    line = longest
                else:
                    line = _first_line(bits, num_lines)
            if line == NONE:
                document = _pop(heap, documents, state)
                _leave_age(documents, state, document)
            else:
                document = _take_first(documents, lines, bits, state, line)
            length = documents[document].length
            placed = min(length, remaining)
            _place(tokens, documents[document], rows, row, position, placed, segments, state)
            state.position += placed
            if placed == length:
                _free(documents, state, document)
            elif rule == SPLIT:
                # The last token that was placed makes room for the BOS of what is left.
                state.repeated += 1
                documents[document].start += placed - 1
                documents[document].length -= placed - 1
                documents[document].done += placed - 1
                tokens[documents[document].start] = bos
                _enqueue(documents, lines, bits, heap, state, document, rule)
            else:
                state.lost += length - placed
                _free(documents, state, document)
        state.position = 0
        state.row_number += 1
    return FULL


@inlined
def _consume(documents, state, count):
    """Take `count` tokens off the oldest documents."""
    while count > 0:
        document = state.oldest
        length = documents[document].length
        taken = min(count, length)
        if taken == length:
            _leave_age(documents, state, document)
            _free(documents, state, document)
        else:
            documents[document].start += taken
            documents[document].length -= taken
            documents[document].done += taken
            state.live -= taken
        count -= taken


@kernel
def fill_concat(tokens, documents, states, rows, row_numbers, segments, advances):
    """Fill rows[row_numbers] with documents one after the other, oldest first; call again with what it asks for.

    Row i is the next tokens; then advances[i] of them are done with: one less than a row is wide, so that the last
    target of a row is the first input of the next, or as many.
    """
    state = states[0]
    width = rows.shape[1]
    while state.row_number < row_numbers.size:
        row = row_numbers[state.row_number]
        if state.live < width:
            return NEEDS_DOCUMENTS
        if state.segments + min(width, state.count) > segments.size:
            return NEEDS_SEGMENTS
        document = state.oldest
        position = 0
        while position < width:
            placed = min(documents[document].length, width - position)
            _place(tokens, documents[document], rows, row, position, placed, segments, state)
            position += placed
            document = documents[document].newer
        _consume(documents, state, advances[state.row_number])
        state.row_number += 1
    return FULL


@kernel
def surround(values, offsets, first, last, out, out_offsets):
    """Copy runs into `out` with `first` before and `last` after each run, unless these are NONE.

    values 5 6 | 7, first 1, last NONE → out 1 5 6 | 1 7
    """
    position = 0
    for run in range(offsets.size - 1):
        out_offsets[run] = position
        if first != NONE:
            out[position] = first
            position += 1
        # Through slices indexed from 0 the copy is vectorised: 8 times as fast as by out[position], values[i].
        count = offsets[run + 1] - offsets[run]
        source = values[offsets[run] : offsets[run + 1]]
        target = out[position : position + count]
        for i in range(count):
            target[i] = source[i]
        position += count
        if last != NONE:
            out[position] = last
            position += 1
    out_offsets[offsets.size - 1] = position
