"""The reading kernels: rows of items, gathered from any number of segments and columns into one buffer.

Segment s holds items [segment_starts[s], segment_starts[s + 1]), and lies in files [s · files_per_segment,
(s + 1) · files_per_segment), of which one holds each column. The buffer holds one column after the other, each
beginning at a multiple of 64 bytes:

    3 rows of 2 items, columns of 2 and 1 bytes:  [ 12 bytes | 52 unused | 6 bytes ]

Every kernel returns (status, file, row): OK, or what went wrong, in which file, at which row.

Whatever stays the same from call to call is one array of int64, the *request*: a `REQUEST` record, then a `COLUMN`
record for each column. Every further argument would cost 0.1 µs under the GIL, and an array of records 0.2 µs.
"""

import numpy as np

from tokenfeed.kernels import posix
from tokenfeed.kernels.jit import inlined, kernel, step
from tokenfeed.kernels.posix import BAD_INDEX, MISSING, OK, array_of, fetch, file_table, int64s
from tokenfeed.types import Array, Ints

ALIGNMENT = 64
PADDING = -1
"""The first item of a row that is filled with zeros instead of items."""

REQUEST = posix.words(
    "stride",  # items from the start of one window to the next
    "num_items",  # items in a window
    "num_samples",  # windows in the view
    "segment_starts",  # address of an array of num_segments + 1
    "num_segments",
    "files",  # address of the file table
    "files_per_segment",
)
COLUMN = posix.words(
    "file",  # number among the files of a segment
    "item_bytes",
)
_REQUEST_WORDS, _COLUMN_WORDS = REQUEST.itemsize // 8, COLUMN.itemsize // 8
_MOST_BYTES = 1 << 62
_PREFETCHED_LINES = 8
_AHEAD = 32
"""Reads under way at once; `docs/decisions/2026-11-15-reading.md` has the rates of other numbers."""

# What becomes of a row at the first attempt: it was read, or is not in the page cache, or takes more than one read.
_READ, _UNCACHED, _INVOLVED = range(3)

_requests, _columns = array_of(REQUEST), array_of(COLUMN)


def make_request(segment_starts: Ints, files: Array, files_per_segment: int, columns: Array, **window: int) -> Ints:
    """The request for `columns`, an array of COLUMN; for windows also their stride, num_items and num_samples.

    `segment_starts` and `files` must outlive it.
    """
    fixed = posix.record(
        REQUEST,
        segment_starts=segment_starts.ctypes.data,
        num_segments=segment_starts.size - 1,
        files=files.ctypes.data,
        files_per_segment=files_per_segment,
        **window,
    )
    return np.concatenate([fixed.view(np.int64), columns.view(np.int64)])


def windows_of(request: Ints) -> tuple[int, int, int]:
    """(stride, num_items, num_samples) of a request."""
    fixed = request[:_REQUEST_WORDS].view(REQUEST)[0]
    return int(fixed["stride"]), int(fixed["num_items"]), int(fixed["num_samples"])


@step
def _open_request(request):
    """(the one REQUEST record, columns, segment_starts, files), as arrays that own no memory: see `_read_rows`."""
    records = _requests(request.ctypes.data, 1)
    num_columns = (request.size - _REQUEST_WORDS) // _COLUMN_WORDS
    columns = _columns(request.ctypes.data + 8 * _REQUEST_WORDS, num_columns)
    fixed = records[0]
    starts = int64s(fixed.segment_starts, fixed.num_segments + 1)
    files = file_table(fixed.files, fixed.num_segments * fixed.files_per_segment)
    return records, columns, starts, files


@inlined
def last_at_or_before(values, count, position):
    """The last i < count with values[i] <= position; values are sorted, and the first one is."""
    low = 0
    high = count
    while high - low > 1:
        middle = (low + high) >> 1
        if values[middle] <= position:
            low = middle
        else:
            high = middle
    return low


@step
def find_segment(starts, position):
    """The last segment that starts at or before `position`; empty segments are passed over."""
    return last_at_or_before(starts, starts.size - 1, position)


@step
def _align(offset):
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@inlined
def _measure(row_offsets, columns):
    """Bytes of the buffer. What does not fit 62 bits is said to be 2**62, which no buffer has: products must not wrap
    around.
    """
    total = row_offsets[row_offsets.size - 1]
    size = 0
    for c in range(columns.size):
        if total > (_MOST_BYTES - _align(size)) // max(1, columns[c].item_bytes):
            return _MOST_BYTES
        size = _align(size) + total * columns[c].item_bytes
    return size


@inlined
def _clear_row(offset, num_items, total, columns, address):
    """Fill the row at item `offset` of every column with zeros."""
    first_byte = 0
    for c in range(columns.size):
        item_bytes = columns[c].item_bytes
        first_byte = _align(first_byte)
        posix.c_memset(address + first_byte + offset * item_bytes, np.int32(0), num_items * item_bytes)
        first_byte += total * item_bytes


@step
def load_lines(file, byte, count):
    """Begin to load `count` cache lines of a file that lies in memory."""
    if file.address != 0:
        byte += file.start - 1
        for line in range(count):
            if byte + line * ALIGNMENT < file.size:
                posix.prefetch_line(file.address + byte + line * ALIGNMENT)


@inlined
def _begin_row(position, num_items, segment, fixed, columns, starts, files):
    """Tell the operating system about a row: the part of it that lies in its first segment."""
    count = min(num_items, starts[segment + 1] - position)
    for c in range(columns.size):
        file = files[segment * fixed.files_per_segment + columns[c].file]
        item_bytes = columns[c].item_bytes
        posix.prefetch_file(file, (position - starts[segment]) * item_bytes, count * item_bytes)


@step
def _try_run(column, file, position, num_items, target, vector):
    """Read items that lie in one file, where that takes a copy or one system call; what became of it."""
    if file.handle == 0 or file.start == 0:
        return _INVOLVED
    byte = position * column.item_bytes + file.start - 1
    num_bytes = num_items * column.item_bytes
    if file.address != 0:
        if byte + num_bytes > file.size:
            return _INVOLVED
        posix.c_memcpy(target, file.address + byte, num_bytes)
    elif file.handle < 0:
        return _INVOLVED
    elif posix.HAS_NOWAIT:
        words = int64s(vector, 2)
        words[0] = target
        words[1] = num_bytes
        if posix.try_pread(file.handle - 1, vector, byte) != num_bytes:
            return _UNCACHED
    elif posix.c_pread(np.int32(file.handle - 1), target, num_bytes, byte) != num_bytes:
        return _INVOLVED
    return _READ


@step
def _try_row(position, num_items, segment, offset, total, fixed, columns, starts, files, address, vector):
    """Read one row of every column at the least cost; what became of it."""
    if position + num_items > starts[segment + 1]:
        return _INVOLVED
    first_byte = 0
    for c in range(columns.size):
        column = columns[c]
        file = files[segment * fixed.files_per_segment + column.file]
        first_byte = _align(first_byte)
        target = address + first_byte + offset * column.item_bytes
        outcome = _try_run(column, file, position - starts[segment], num_items, target, vector)
        if outcome != _READ:
            return outcome
        first_byte += total * column.item_bytes
    return _READ


@inlined
def _read_run(position, num_items, fixed, column, starts, files, address):
    """Read items [position, position + num_items) of one column to `address`, across segments; 0: only prepare to."""
    done = 0
    result = OK
    segment = find_segment(starts, position)
    while done < num_items:
        while starts[segment + 1] <= position + done:
            segment += 1
        count = min(num_items - done, starts[segment + 1] - position - done)
        number = segment * fixed.files_per_segment + column.file
        byte = (position + done - starts[segment]) * column.item_bytes
        target = 0 if address == 0 else address + done * column.item_bytes
        status = fetch(files, number, byte, count * column.item_bytes, target)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, number
        done += count
    return result, 0


@inlined
def _read_row(row, first_items, row_offsets, fixed, columns, starts, files, address):
    """Read one row of every column, whatever it takes. Blocks that are missing are noted for all columns."""
    offset = row_offsets[row]
    num_items = row_offsets[row + 1] - offset
    total = row_offsets[first_items.size]
    result = OK
    first_byte = 0
    for c in range(columns.size):
        first_byte = _align(first_byte)
        target = address + first_byte + offset * columns[c].item_bytes
        status, file = _read_run(first_items[row], num_items, fixed, columns[c], starts, files, target)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, file
        first_byte += total * columns[c].item_bytes
    return result, 0


@inlined
def _read_rows(first_items, row_offsets, request, buffer):
    """Read rows, first those that need no waiting.

    Every row is first tried at the least cost: a copy, or one system call that takes what the page cache has. If it is
    not cached, the operating system is told to read it, and the row waits until `_AHEAD` rows do; then the oldest is
    waited for. So `_AHEAD` reads are under way from one thread.

    The functions called here take addresses, records and arrays that own nothing. A call with an array that owns its
    memory counts references, by atomic instructions that keep the processor from overlapping one row's memory accesses
    with the next one's: 0.2 µs a row.
    """
    records, columns, starts, files = _open_request(request)
    fixed = records[0]
    rows = first_items.size
    total = row_offsets[rows]
    if _measure(row_offsets, columns) > buffer.size:
        return posix.SMALL_OUTPUT, 0, 0
    address = buffer.ctypes.data
    memory = np.empty(2, np.int64)  # the vector of a system call. Used up to the end, else it were freed.
    waiting = np.empty(_AHEAD, np.int64)  # rows, as a ring
    first_waiting = 0
    num_waiting = 0
    result = OK
    segment = 0
    next_segment = find_segment(starts, first_items[0]) if rows > 0 else 0
    for row in range(rows):
        position = first_items[row]
        offset = row_offsets[row]
        num_items = row_offsets[row + 1] - offset
        segment = next_segment
        if row + 1 < rows:
            next_segment = find_segment(starts, first_items[row + 1])
            if columns.size > 0:
                file = files[next_segment * fixed.files_per_segment + columns[0].file]
                byte = (first_items[row + 1] - starts[next_segment]) * columns[0].item_bytes
                load_lines(file, byte, _PREFETCHED_LINES)  # the processor then finds the rest by itself
        if position == PADDING:
            _clear_row(offset, num_items, total, columns, address)
            continue
        vector = memory.ctypes.data
        outcome = _try_row(position, num_items, segment, offset, total, fixed, columns, starts, files, address, vector)
        if outcome == _READ:
            continue
        due = row
        if outcome == _UNCACHED:
            _begin_row(position, num_items, segment, fixed, columns, starts, files)
            if num_waiting < _AHEAD:
                waiting[(first_waiting + num_waiting) % _AHEAD] = row
                num_waiting += 1
                continue
            due = waiting[first_waiting]
            waiting[first_waiting] = row
            first_waiting = (first_waiting + 1) % _AHEAD
        status, number = _read_row(due, first_items, row_offsets, fixed, columns, starts, files, address)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, number, due
    for turn in range(num_waiting):
        due = waiting[(first_waiting + turn) % _AHEAD]
        status, number = _read_row(due, first_items, row_offsets, fixed, columns, starts, files, address)
        if status == MISSING:
            result = MISSING
        elif status != OK:
            return status, number, due
    return result, 0, 0


@kernel
def read_windows(indices, request, buffer):
    """Row j of every column becomes items [indices[j] · stride, indices[j] · stride + num_items)."""
    records, _, _, _ = _open_request(request)
    fixed = records[0]
    rows = indices.size
    first_items = np.empty(rows, np.int64)
    row_offsets = np.empty(rows + 1, np.int64)
    row_offsets[0] = 0
    for row in range(rows):
        if indices[row] < 0 or indices[row] >= fixed.num_samples:
            return BAD_INDEX, 0, row
        first_items[row] = indices[row] * fixed.stride
        row_offsets[row + 1] = row_offsets[row] + fixed.num_items
    return _read_rows(first_items, row_offsets, request, buffer)


@kernel
def read_ragged(first_items, row_offsets, request, buffer):
    """Row j of every column becomes the items from first_items[j] on, at [row_offsets[j], row_offsets[j + 1]).

    A row that begins at PADDING becomes zeros.
    """
    _, _, starts, _ = _open_request(request)
    num_items = starts[starts.size - 1]
    for row in range(first_items.size):
        count = row_offsets[row + 1] - row_offsets[row]
        if count < 0 or (first_items[row] != PADDING and not 0 <= first_items[row] <= num_items - count):
            return BAD_INDEX, 0, row
    return _read_rows(first_items, row_offsets, request, buffer)


@kernel
def want_rows(first_items, row_offsets, request):
    """Note blocks that rows need and that are missing. Nothing is delivered."""
    records, columns, starts, files = _open_request(request)
    fixed = records[0]
    result = OK
    for row in range(first_items.size):
        count = row_offsets[row + 1] - row_offsets[row]
        if first_items[row] == PADDING:
            continue
        if count < 0 or not 0 <= first_items[row] <= starts[starts.size - 1] - count:
            return BAD_INDEX, 0, row
        for c in range(columns.size):
            status, file = _read_run(first_items[row], count, fixed, columns[c], starts, files, 0)
            if status == MISSING:
                result = MISSING
            elif status != OK:
                return status, file, row
    return result, 0, 0
