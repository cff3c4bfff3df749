"""The reading kernels: rows of items, gathered from any number of segments and columns into one buffer.

`segment_starts` has one entry more than there are segments: segment s holds items [starts[s], starts[s + 1]), and
its column c lies in file `s * files_per_segment + columns[c, 0]`, `columns[c, 1]` bytes an item.

The buffer holds the columns one behind the other, each beginning at a multiple of 64 bytes:

    3 rows of 2 items, columns of 2 and 1 bytes:  [ 12 bytes | 52 unused | 6 bytes ]

Every kernel returns (status, file, row): OK, or what went wrong, in which file, at which row.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.posix import BAD_INDEX, OK, SMALL_OUTPUT, fetch, prefetch

ALIGNMENT = 64


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
def _prefetch_run(first_item, num_items, segment_starts, files, files_per_segment, columns):
    segment = find_segment(segment_starts, first_item)
    stop = min(first_item + num_items, segment_starts[segment + 1])
    local = first_item - segment_starts[segment]
    for c in range(columns.shape[0]):
        item_bytes = columns[c, 1]
        file = segment * files_per_segment + columns[c, 0]
        prefetch(files, file, local * item_bytes, (stop - first_item) * item_bytes)


@inlined
def _read_run(first_item, num_items, segment_starts, files, file_number, files_per_segment, item_bytes, address):
    """Read items [first_item, first_item + num_items) of one column to `address`, across segments."""
    done = 0
    segment = find_segment(segment_starts, first_item)
    while done < num_items:
        position = first_item + done
        while segment_starts[segment + 1] <= position:
            segment += 1
        count = min(num_items - done, segment_starts[segment + 1] - position)
        file = segment * files_per_segment + file_number
        offset = (position - segment_starts[segment]) * item_bytes
        status = fetch(files, file, offset, count * item_bytes, address + done * item_bytes)
        if status != OK:
            return status, file
        done += count
    return OK, 0


@inlined
def _align(offset):
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@inlined
def _read_rows(first_items, row_offsets, segment_starts, files, files_per_segment, columns, ahead, buffer):
    rows = first_items.size
    total = row_offsets[rows]
    size = 0
    for c in range(columns.shape[0]):
        size = _align(size) + total * columns[c, 1]
    if size > buffer.size:
        return SMALL_OUTPUT, 0, 0
    address = buffer.ctypes.data
    hinted = 1
    for row in range(rows):
        if ahead > 1:
            while hinted < min(rows, row + ahead):
                count = row_offsets[hinted + 1] - row_offsets[hinted]
                if count > 0:
                    _prefetch_run(first_items[hinted], count, segment_starts, files, files_per_segment, columns)
                hinted += 1
        offset = 0
        for c in range(columns.shape[0]):
            item_bytes = columns[c, 1]
            offset = _align(offset)
            status, file = _read_run(
                first_items[row],
                row_offsets[row + 1] - row_offsets[row],
                segment_starts,
                files,
                columns[c, 0],
                files_per_segment,
                item_bytes,
                address + offset + row_offsets[row] * item_bytes,
            )
            if status != OK:
                return status, file, row
            offset += total * item_bytes
    return OK, 0, 0


@kernel
def read_windows(
    indices, stride, num_items, num_samples, segment_starts, files, files_per_segment, columns, ahead, buffer
):
    """Row j of every column becomes items [indices[j] * stride, indices[j] * stride + num_items).

    `ahead` rows are under way at once: the operating system is told of row j + ahead - 1 before row j is waited for.
    """
    rows = indices.size
    first_items = np.empty(rows, np.int64)
    row_offsets = np.empty(rows + 1, np.int64)
    row_offsets[0] = 0
    for row in range(rows):
        if indices[row] < 0 or indices[row] >= num_samples:
            return BAD_INDEX, 0, row
        first_items[row] = indices[row] * stride
        row_offsets[row + 1] = row_offsets[row] + num_items
    return _read_rows(first_items, row_offsets, segment_starts, files, files_per_segment, columns, ahead, buffer)


@kernel
def read_ragged(first_items, row_offsets, segment_starts, files, files_per_segment, columns, ahead, buffer):
    """Row j of every column becomes the items from first_items[j] on, at [row_offsets[j], row_offsets[j + 1])."""
    num_items = segment_starts[segment_starts.size - 1]
    for row in range(first_items.size):
        count = row_offsets[row + 1] - row_offsets[row]
        if first_items[row] < 0 or count < 0 or count > num_items - first_items[row]:
            return BAD_INDEX, 0, row
    return _read_rows(first_items, row_offsets, segment_starts, files, files_per_segment, columns, ahead, buffer)
