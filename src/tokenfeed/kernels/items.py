"""The reading kernels: rows of items, gathered from any number of segments and columns into one buffer.

`segment_starts` has one entry more than there are segments: segment s holds items [starts[s], starts[s + 1]), and
its column c lies in file `s * files_per_segment + columns[c, _FILE]`, `columns[c, _ITEM_BYTES]` bytes an item. Where
`columns[c, _OUT_BYTES]` are more, its numbers are widened on the way.

The buffer holds the columns one behind the other, each beginning at a multiple of 64 bytes:

    3 rows of 2 items, columns of 2 and 1 bytes:  [ 12 bytes | 52 unused | 6 bytes ]

Every kernel returns (status, file, row): OK, or what went wrong, in which file, at which row.

What stays the same from call to call is handed over as one array of numbers and addresses, a *request*: every array
that is an argument costs a tenth of a microsecond, during which no other Python thread can run.
"""

import numpy as np
from numba import carray

from tokenfeed.kernels.fetch import fetch
from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.posix import (
    ADDRESS,
    BAD_INDEX,
    FILE_FIELDS,
    HANDLE,
    HAS_NOWAIT,
    MISSING,
    OK,
    READER,
    SIZE,
    SMALL_OUTPUT,
    START,
    UNOPENED,
    c_memcpy,
    c_pread,
    int64_pointer,
    prefetch_file,
    prefetch_line,
    read_by,
    try_pread,
)
from tokenfeed.kernels.widening import widen

ALIGNMENT = 64
PADDING = -1
"""The first item of a row that is filled with zeros instead of items."""

# Entries of a request; those of every column follow: its number among the files of a segment, bytes per item in files
# and in the buffer, bytes per number in files, and the sign bit of these numbers (see `widening.py`).
STRIDE, NUM_ITEMS, _NUM_SAMPLES, _AHEAD, _SEGMENTS, _NUM_SEGMENTS, _FILES, _FILES_PER_SEGMENT, _COLUMNS = range(9)
_FILE, _ITEM_BYTES, _OUT_BYTES, _NUMBER_BYTES, _SIGN = range(5)
COLUMN_FIELDS = 5
_PREFETCHED_LINES = 8


@inlined
def find_segment(starts, position):
    """The last segment that starts at or before `position`; empty segments are passed over."""
    low = 0
    high = starts.size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= position:
            low = middle
        else:
            high = middle
    return low


@inlined
def _prefetch_row(first_item, num_items, segment_starts, files, files_per_segment, columns):
    """Announce a row to the operating system: what its first segment has of it."""
    segment = find_segment(segment_starts, first_item)
    stop = min(first_item + num_items, segment_starts[segment + 1])
    local = first_item - segment_starts[segment]
    for c in range(columns.shape[0]):
        item_bytes = columns[c, _ITEM_BYTES]
        file = segment * files_per_segment + columns[c, _FILE]
        prefetch_file(files, file, local * item_bytes, (stop - first_item) * item_bytes)


@inlined
def _read_run(first_item, num_items, segment_starts, files, file_number, files_per_segment, item_bytes, address):
    """Read items [first_item, first_item + num_items) of one column to `address`, across segments."""
    done = 0
    result = OK
    segment = find_segment(segment_starts, first_item)
    while done < num_items:
        position = first_item + done
        while segment_starts[segment + 1] <= position:
            segment += 1
        count = min(num_items - done, segment_starts[segment + 1] - position)
        file = segment * files_per_segment + file_number
        offset = (position - segment_starts[segment]) * item_bytes
        status = fetch(files, file, offset, count * item_bytes, address + done * item_bytes)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, file
        done += count
    return result, 0


@inlined
def _align(offset):
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@inlined
def _widen_row(source, target, num_items, columns, c):
    count = num_items * columns[c, _ITEM_BYTES] // columns[c, _NUMBER_BYTES]
    wide_bytes = columns[c, _NUMBER_BYTES] * columns[c, _OUT_BYTES] // columns[c, _ITEM_BYTES]
    widen(source, target, count, columns[c, _NUMBER_BYTES], wide_bytes, columns[c, _SIGN])


@inlined
def _read_row(row, first_items, row_offsets, segment_starts, files, files_per_segment, columns, address, aside):
    """Read one row of every column, however that has to be done. What is missing is noted, for all of them."""
    total = row_offsets[first_items.size]
    num_items = row_offsets[row + 1] - row_offsets[row]
    result = OK
    offset = 0
    for c in range(columns.shape[0]):
        offset = _align(offset)
        target = address + offset + row_offsets[row] * columns[c, _OUT_BYTES]
        is_widened = columns[c, _OUT_BYTES] != columns[c, _ITEM_BYTES]
        status, file = _read_run(
            first_items[row],
            num_items,
            segment_starts,
            files,
            columns[c, _FILE],
            files_per_segment,
            columns[c, _ITEM_BYTES],
            aside.ctypes.data if is_widened else target,
        )
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, file
        elif is_widened:
            _widen_row(aside.ctypes.data, target, num_items, columns, c)
        offset += total * columns[c, _OUT_BYTES]
    return result, 0


@inlined
def _read_rows(first_items, row_offsets, segment_starts, files, files_per_segment, columns, ahead, buffer):
    """Read rows, those first that need no waiting.

    A row that lies in one segment is tried first where it costs least: a copy, or one system call that takes what the
    page cache has. One that is not cached is announced to the operating system and put off, until `ahead` rows are;
    then the oldest is waited for. So `ahead` reads are under way from one thread. All else is left to `_read_row`.
    What is to be widened is copied from where it lies in memory, or is read aside first, one row after the other.

    The trial is written out here, because a function call counts references to the arrays it is given, by atomic
    instructions that keep the processor from overlapping one row's memory accesses with the next one's: 0.2 µs a row.
    """
    rows = first_items.size
    num_columns = columns.shape[0]
    total = row_offsets[rows]
    longest = 0
    for row in range(rows):
        longest = max(longest, row_offsets[row + 1] - row_offsets[row])
    size = 0
    aside_size = 0
    for c in range(num_columns):
        size = _align(size) + total * columns[c, _OUT_BYTES]
        if columns[c, _OUT_BYTES] != columns[c, _ITEM_BYTES]:
            aside_size = max(aside_size, longest * columns[c, _ITEM_BYTES])
    if size > buffer.size:
        return SMALL_OUTPUT, 0, 0
    address = buffer.ctypes.data
    aside = np.empty(aside_size, np.uint8)
    aside_address = aside.ctypes.data  # good for as long as `aside` is used below, which is to the end
    vector = np.empty(2, np.int64)
    vector_address = vector.ctypes.data
    waiting = np.empty(ahead, np.int64)  # a ring
    first_waiting = 0
    num_waiting = 0
    missing = False
    segments = np.empty(rows, np.int64)
    for row in range(rows):
        segment = 0
        high = segment_starts.size - 1
        while high - segment > 1:
            middle = (segment + high) >> 1
            if segment_starts[middle] <= first_items[row]:
                segment = middle
            else:
                high = middle
        segments[row] = segment
    for row in range(rows):
        position = first_items[row]
        num_items = row_offsets[row + 1] - row_offsets[row]
        if position == PADDING:
            offset = 0
            for c in range(num_columns):
                out_bytes = columns[c, _OUT_BYTES]
                offset = (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
                first_byte = offset + row_offsets[row] * out_bytes
                buffer[first_byte : first_byte + num_items * out_bytes] = 0
                offset += total * out_bytes
            continue
        segment = segments[row]
        if row + 1 < rows and num_columns > 0:
            # While this row is copied, begin to load the start of the next one; the processor then finds the rest.
            file = segments[row + 1] * files_per_segment + columns[0, _FILE]
            source = files[file, ADDRESS]
            if source != 0:
                local = (first_items[row + 1] - segment_starts[segments[row + 1]]) * columns[0, _ITEM_BYTES]
                byte = files[file, START] - 1 + local
                for line in range(_PREFETCHED_LINES):
                    if byte + line * ALIGNMENT < files[file, SIZE]:
                        prefetch_line(source + byte + line * ALIGNMENT)
        is_read = position + num_items <= segment_starts[segment + 1]
        not_cached = False
        offset = 0
        for c in range(num_columns):
            if not is_read:
                break
            file = segment * files_per_segment + columns[c, _FILE]
            item_bytes = columns[c, _ITEM_BYTES]
            out_bytes = columns[c, _OUT_BYTES]
            num_bytes = num_items * item_bytes
            is_widened = out_bytes != item_bytes
            offset = (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            target = address + offset + row_offsets[row] * out_bytes
            landing = aside_address if is_widened else target
            offset += total * out_bytes
            handle = files[file, HANDLE]
            start = files[file, START] - 1
            source = files[file, ADDRESS]
            byte = start + (position - segment_starts[segment]) * item_bytes
            if handle == 0 or start < 0:
                is_read = False
            elif source != 0:
                is_read = byte + num_bytes <= files[file, SIZE]
                landing = source + byte
                if is_read and not is_widened:
                    c_memcpy(target, landing, num_bytes)
            elif handle < 0:
                is_read = False
            elif ahead > 1 and HAS_NOWAIT:
                vector[0] = landing
                vector[1] = num_bytes
                is_read = try_pread(handle - 1, vector_address, byte) == num_bytes
                not_cached = not is_read
            else:
                is_read = c_pread(np.int32(handle - 1), landing, num_bytes, byte) == num_bytes
            if is_read and is_widened:
                _widen_row(landing, target, num_items, columns, c)
        if not_cached:
            _prefetch_row(position, num_items, segment_starts, files, files_per_segment, columns)
            if num_waiting == ahead:
                oldest = waiting[first_waiting]
                status, file = _read_row(
                    oldest,
                    first_items,
                    row_offsets,
                    segment_starts,
                    files,
                    files_per_segment,
                    columns,
                    address,
                    aside,
                )
                if status != OK:
                    return status, file, oldest
                first_waiting = (first_waiting + 1) % ahead
                num_waiting -= 1
            waiting[(first_waiting + num_waiting) % ahead] = row
            num_waiting += 1
        elif not is_read:
            status, file = _read_row(
                row, first_items, row_offsets, segment_starts, files, files_per_segment, columns, address, aside
            )
            if status == MISSING:
                missing = True
            elif status != OK:
                return status, file, row
    for turn in range(num_waiting):
        row = waiting[(first_waiting + turn) % ahead]
        status, file = _read_row(
            row, first_items, row_offsets, segment_starts, files, files_per_segment, columns, address, aside
        )
        if status != OK:
            return status, file, row
    return MISSING if missing else OK, 0, 0


def make_request(segment_starts, files, files_per_segment, columns, ahead, stride=0, num_items=0, num_samples=0):
    """What a reading kernel must know beyond rows and buffer. The arrays must outlive it, and stay where they are."""
    addresses = segment_starts.ctypes.data, segment_starts.size - 1, files.ctypes.data, files_per_segment
    return np.array([stride, num_items, num_samples, ahead, *addresses, *columns.reshape(-1)], np.int64)


@inlined
def _read_request(first_items, row_offsets, request, buffer):
    num_segments = request[_NUM_SEGMENTS]
    files_per_segment = request[_FILES_PER_SEGMENT]
    segment_starts = carray(int64_pointer(request[_SEGMENTS]), (num_segments + 1,))
    files = carray(int64_pointer(request[_FILES]), (num_segments * files_per_segment, FILE_FIELDS))
    num_columns = (request.size - _COLUMNS) // COLUMN_FIELDS
    columns = carray(int64_pointer(request.ctypes.data + 8 * _COLUMNS), (num_columns, COLUMN_FIELDS))
    return _read_rows(
        first_items, row_offsets, segment_starts, files, files_per_segment, columns, request[_AHEAD], buffer
    )


@kernel
def read_windows(indices, request, buffer):
    """Row j of every column becomes items [indices[j] * stride, indices[j] * stride + num_items)."""
    rows = indices.size
    first_items = np.empty(rows, np.int64)
    row_offsets = np.empty(rows + 1, np.int64)
    row_offsets[0] = 0
    for row in range(rows):
        if indices[row] < 0 or indices[row] >= request[_NUM_SAMPLES]:
            return BAD_INDEX, 0, row
        first_items[row] = indices[row] * request[STRIDE]
        row_offsets[row + 1] = row_offsets[row] + request[NUM_ITEMS]
    return _read_request(first_items, row_offsets, request, buffer)


@kernel
def read_ragged(first_items, row_offsets, request, buffer):
    """Row j of every column becomes the items from first_items[j] on, at [row_offsets[j], row_offsets[j + 1])."""
    num_segments = request[_NUM_SEGMENTS]
    num_items = carray(int64_pointer(request[_SEGMENTS]), (num_segments + 1,))[num_segments]
    for row in range(first_items.size):
        count = row_offsets[row + 1] - row_offsets[row]
        if first_items[row] < 0 or count < 0 or count > num_items - first_items[row]:
            return BAD_INDEX, 0, row
    return _read_request(first_items, row_offsets, request, buffer)


@kernel
def read_pieces(first_items, offsets, request, buffer):
    """As `read_ragged`, but rows that begin at PADDING become zeros."""
    num_segments = request[_NUM_SEGMENTS]
    num_items = carray(int64_pointer(request[_SEGMENTS]), (num_segments + 1,))[num_segments]
    for row in range(first_items.size):
        count = offsets[row + 1] - offsets[row]
        if count < 0 or (first_items[row] != PADDING and not 0 <= first_items[row] <= num_items - count):
            return BAD_INDEX, 0, row
    return _read_request(first_items, offsets, request, buffer)


@kernel
def want_rows(first_items, row_offsets, request):
    """Have readers make ready for rows: what is missing is noted, or begun to be read; nothing is delivered."""
    num_segments = request[_NUM_SEGMENTS]
    files_per_segment = request[_FILES_PER_SEGMENT]
    segment_starts = carray(int64_pointer(request[_SEGMENTS]), (num_segments + 1,))
    files = carray(int64_pointer(request[_FILES]), (num_segments * files_per_segment, FILE_FIELDS))
    num_columns = (request.size - _COLUMNS) // COLUMN_FIELDS
    columns = carray(int64_pointer(request.ctypes.data + 8 * _COLUMNS), (num_columns, COLUMN_FIELDS))
    result = OK
    for row in range(first_items.size):
        position = first_items[row]
        count = row_offsets[row + 1] - row_offsets[row]
        if position == PADDING:
            continue
        if count < 0 or position < 0 or position > segment_starts[num_segments] - count:
            return BAD_INDEX, 0, row
        segment = find_segment(segment_starts, position)
        stop = position + count
        while position < stop:
            while segment_starts[segment + 1] <= position:
                segment += 1
            end = min(stop, segment_starts[segment + 1])
            for c in range(columns.shape[0]):
                file = segment * files_per_segment + columns[c, _FILE]
                item_bytes = columns[c, _ITEM_BYTES]
                start = files[file, START] - 1
                if files[file, HANDLE] == 0 or start < 0:
                    return UNOPENED, file, row
                if files[file, READER] != 0:
                    byte = start + (position - segment_starts[segment]) * item_bytes
                    if read_by(files[file, READER], file, byte, (end - position) * item_bytes, 0) == MISSING:
                        result = MISSING
            position = end
    return result, 0, 0
