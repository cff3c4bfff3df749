"""Span kernels: which spans a row touches, where a span lies, and what its payload bytes are.

A span table tiles every segment: local span i covers items [starts[i], starts[i + 1]), the last one up to the end of
the segment. `anchors[j]` is the last span that starts at or before item j * ANCHOR_ITEMS, so the spans of a row are
found with one read of anchors and one of starts, whatever the size of the table:

    starts 0 5 5 9 (12 items), row [4, 10):  spans 0 [4, 5)   2 [5, 9)   3 [9, 10)

An empty span (1, above) covers no item and so belongs to no row.

Offsets give the payload bytes of span i as [offsets[i], offsets[i + 1]); a span without payload has ~offset instead.

Missing blocks (`kernels/blocks.py`) are noted for all rows, and status MISSING is returned at the end. Everything read
from a file is checked before it is used as an index or a size; the status is BAD_SPANS if it is wrong. The four files
of a table are numbered `segment * files_per_segment + first_file + STARTS … PAYLOAD`.
"""

import numpy as np

from tokenfeed.kernels.items import find_segment, last_at_or_before
from tokenfeed.kernels.jit import inlined, kernel, step
from tokenfeed.kernels.posix import BAD_INDEX, BAD_SPANS, MISSING, OK, c_memcpy, fetch

STARTS, ANCHORS, OFFSETS, PAYLOAD = range(4)
TABLE_FILES = 4
ANCHOR_ITEMS = 4096
_INT64 = 8
_SLICE_SPANS = 1 << 20
_PROBED = 1 << 20
"""Above this size, read the last element before allocating: the size of a remote file is only a claim."""


@inlined
def grown(array, size):
    """`array`, or a copy with room for `size` elements."""
    if size <= array.size:
        return array
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    c_memcpy(larger.ctypes.data, array.ctypes.data, array.nbytes)  # Numba takes 2.5 s to compile larger[:n] = array
    return larger


@step
def _fetch_int64(files, file, first, count, buffer):
    return fetch(files, file, first * _INT64, count * _INT64, buffer.ctypes.data)


@inlined
def _is_sorted(values, count):
    for i in range(1, count):
        if values[i] < values[i - 1]:
            return False
    return True


@step
def _read_anchors(files, file, begin, end, segment_items, num_spans, anchors):
    """(status, low, high): all spans that cover items [begin, end) are among [low, high]."""
    num_anchors = (segment_items + ANCHOR_ITEMS - 1) // ANCHOR_ITEMS
    first = begin // ANCHOR_ITEMS
    last = (end - 1) // ANCHOR_ITEMS + 1
    count = min(last + 1, num_anchors) - first
    if count <= anchors.size:
        status = _fetch_int64(files, file, first, count, anchors)
        low, high = anchors[0], anchors[count - 1]
    else:  # a long row, of which only the two ends matter
        status = _fetch_int64(files, file, first, 1, anchors)
        low = anchors[0]
        other = _fetch_int64(files, file, first + count - 1, 1, anchors)
        high = anchors[0]
        status = other if status == OK else status
    if last >= num_anchors:
        high = num_spans - 1
    if status == OK and (low < 0 or high < low or high >= num_spans):
        status = BAD_SPANS
    return status, low, high


@step
def _read_starts(files, file, low, high, begin, end, segment_items, num_spans, values):
    """(status, values): where spans low … high start, then where span `high` ends. Together they cover [begin, end)."""
    count = high - low + 1
    if count > _PROBED:
        status = _fetch_int64(files, file, high, 1, values)
        if status != OK:
            return status, values
    values = grown(values, count + 1)
    is_last = high + 1 == num_spans
    status = _fetch_int64(files, file, low, count if is_last else count + 1, values)
    if is_last:
        values[count] = segment_items
    is_covered = 0 <= values[0] <= begin and values[count] >= end
    if status == OK and not (is_covered and _is_sorted(values, count + 1)):
        status = BAD_SPANS
    return status, values


@kernel
def find_spans(first_items, row_offsets, segment_starts, segment_spans, files, files_per_segment, first_file):
    """The spans that rows touch. Row j is the row_offsets[j + 1] - row_offsets[j] items from first_items[j] on.

    Returns (status, file, row, offsets, numbers, starts, stops): the spans of row j are entries
    [offsets[j], offsets[j + 1]); `numbers` counts spans over all segments, `starts` and `stops` count items within
    the row. Every span listed covers at least one item. Two reads per row and segment.
    """
    rows = first_items.size
    num_items = segment_starts[segment_starts.size - 1]
    offsets = np.zeros(rows + 1, np.int64)
    numbers = np.empty(max(8, 4 * rows), np.int64)
    starts = np.empty(numbers.size, np.int64)
    stops = np.empty(numbers.size, np.int64)
    anchors = np.empty(64, np.int64)
    values = np.empty(64, np.int64)
    found = 0
    result = OK
    for row in range(rows):
        done = 0
        count = row_offsets[row + 1] - row_offsets[row]
        if first_items[row] < 0 or count < 0 or count > num_items - first_items[row]:
            return BAD_INDEX, 0, row, offsets, numbers, starts, stops
        segment = find_segment(segment_starts, first_items[row])
        while done < count:
            position = first_items[row] + done
            while segment_starts[segment + 1] <= position:
                segment += 1
            segment_items = segment_starts[segment + 1] - segment_starts[segment]
            num_spans = segment_spans[segment + 1] - segment_spans[segment]
            begin = position - segment_starts[segment]
            end = min(segment_items, begin + count - done)
            file = segment * files_per_segment + first_file + ANCHORS
            status, low, high = _read_anchors(files, file, begin, end, segment_items, num_spans, anchors)
            file = segment * files_per_segment + first_file + STARTS if status == OK else file
            covered = begin
            while status == OK and low <= high and covered < end:  # in slices: millions of spans may be empty
                top = min(high, low + _SLICE_SPANS - 1)
                stop = end if top == high else covered
                status, values = _read_starts(files, file, low, top, covered, stop, segment_items, num_spans, values)
                if status != OK:
                    break
                first = last_at_or_before(values, top - low + 1, begin)
                last = last_at_or_before(values, top - low + 1, end - 1)
                needed = found + last - first + 1
                numbers = grown(numbers, needed)
                starts = grown(starts, needed)
                stops = grown(stops, needed)
                for i in range(first, last + 1):
                    if values[i] == values[i + 1] or values[i + 1] <= begin:
                        continue
                    numbers[found] = segment_spans[segment] + low + i
                    starts[found] = max(values[i], begin) - begin + done
                    stops[found] = min(values[i + 1], end) - begin + done
                    found += 1
                covered = max(begin, values[top - low + 1])
                low = top + 1
            if status == MISSING:
                result = MISSING
                break
            if status != OK:
                return status, file, row, offsets, numbers, starts, stops
            done += end - begin
        offsets[row + 1] = found
    return result, 0, 0, offsets, numbers[:found], starts[:found], stops[:found]


@step
def _count_run(numbers, row, segment_spans, segment):
    """How many of the numbers from `row` on are consecutive, and in one segment."""
    run = 1
    limit = min(numbers.size - row, segment_spans[segment + 1] - numbers[row])
    while run < limit and numbers[row + run] == numbers[row] + run:
        run += 1
    return run


@kernel
def locate_spans(numbers, segment_starts, segment_spans, files, files_per_segment, first_file, out):
    """out[0, j], out[1, j] = first item and number of items of span numbers[j], over all segments.

    One read for every run of consecutive numbers in one segment.
    """
    values = np.empty(numbers.size + 1, np.int64)
    result = OK
    row = 0
    while row < numbers.size:
        number = numbers[row]
        if number < 0 or number >= segment_spans[segment_spans.size - 1]:
            return BAD_INDEX, 0, row
        segment = find_segment(segment_spans, number)
        run = _count_run(numbers, row, segment_spans, segment)
        file = segment * files_per_segment + first_file + STARTS
        segment_items = segment_starts[segment + 1] - segment_starts[segment]
        first = number - segment_spans[segment]
        is_last = number + run == segment_spans[segment + 1]
        values[run] = segment_items
        status = _fetch_int64(files, file, first, run if is_last else run + 1, values)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, file, row
        elif values[0] < 0 or values[run] > segment_items or (first == 0 and values[0] != 0):
            return BAD_SPANS, file, row
        else:
            for i in range(run):
                out[0, row + i] = segment_starts[segment] + values[i]
                out[1, row + i] = values[i + 1] - values[i]
                if values[i + 1] < values[i]:
                    return BAD_SPANS, file, row + i
        row += run
    return result, 0, 0


@kernel
def read_payloads(numbers, segment_spans, files, files_per_segment, first_file):
    """The payload bytes of spans, with two reads for every run of consecutive numbers in one segment.

    Returns (status, file, row, data, starts, stops): payload j is data[starts[j]:stops[j]]; a span that has none has
    starts[j] = -1.
    """
    count = numbers.size
    total = segment_spans[segment_spans.size - 1]
    starts = np.empty(count, np.int64)
    stops = np.empty(count, np.int64)
    data = np.empty(256 * count, np.uint8)
    probe = np.empty(1, np.uint8)
    values = np.empty(64, np.int64)
    used = 0
    row = 0
    result = OK
    while row < count:
        number = numbers[row]
        if number < 0 or number >= total:
            return BAD_INDEX, 0, row, data, starts, stops
        segment = find_segment(segment_spans, number)
        run = _count_run(numbers, row, segment_spans, segment)
        base = segment * files_per_segment + first_file
        values = grown(values, run + 1)
        status = _fetch_int64(files, base + OFFSETS, number - segment_spans[segment], run + 1, values)
        if status == MISSING:
            result = MISSING
            row += run
            continue
        if status != OK:
            return status, base + OFFSETS, row, data, starts, stops
        # A read of nothing makes sure that the payload file is open, so that its size is known.
        status = fetch(files, base + PAYLOAD, 0, 0, data.ctypes.data)
        if status != OK:
            return status, base + PAYLOAD, row, data, starts, stops
        payload_bytes = files[base + PAYLOAD].size - (files[base + PAYLOAD].start - 1)
        for i in range(run):
            starts[row + i] = values[i]
        for i in range(run + 1):
            values[i] = max(values[i], ~values[i])
        if values[run] > payload_bytes or not _is_sorted(values, run + 1):
            return BAD_SPANS, base + OFFSETS, row, data, starts, stops
        size = values[run] - values[0]
        if size > _PROBED:
            status = fetch(files, base + PAYLOAD, values[run] - 1, 1, probe.ctypes.data)
            if status == MISSING:
                result = MISSING
                row += run
                continue
            if status != OK:
                return status, base + PAYLOAD, row, data, starts, stops
        data = grown(data, used + size)
        status = fetch(files, base + PAYLOAD, values[0], size, data.ctypes.data + used)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, base + PAYLOAD, row, data, starts, stops
        for i in range(run):
            stops[row + i] = used + values[i + 1] - values[0]
            starts[row + i] = -1 if starts[row + i] < 0 else used + values[i] - values[0]
        used += size
        row += run
    return result, 0, 0, data[:used], starts, stops
