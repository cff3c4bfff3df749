"""Bytes that are compared with their checksums before anybody sees them.

Every file of a store is cut into blocks of `CHECKED_BYTES` from its first byte on; the last may be short. A *file of
sums* holds the XXH3-64 of each block, for one file after the other. The reader reads whole blocks into memory of its
own; only if all of them are what was written does the part that was asked for go to where it was asked for.

An array with one `CHECK` record describes a checked file. Its address stands in the file table as `reader`.
"""

from typing import Any

import numpy as np

from tokenfeed.kernels import posix
from tokenfeed.kernels.blocks import checksum_blocks
from tokenfeed.kernels.checksum import block_checksum, bytes_of
from tokenfeed.kernels.jit import kernel
from tokenfeed.kernels.posix import DAMAGED, MISSING, OK, array_of, fetch, prefetch_file

__all__ = ["CHECK", "CHECKED_BYTES", "BlockSums", "read_checked", "read_whole"]

CHECKED_BYTES = 4096
SUM_BYTES = 8

CHECK = posix.words(
    "read",  # address of `read_checked`, compiled
    "files",  # address of another file table, of the files as they lie: open, mapped, or remote
    "num_files",
    "data",  # number of the file in that table
    "sums",  # number of its file of sums
    "first_sum",  # number of the sum of its first block
    "damaged_block",  # the latest block found to be not what was written
)
_checks = array_of(CHECK)

_MOST_BLOCKS = 32


@kernel
def read_checked(description, file, offset, size, address):
    """Copy bytes [offset, offset + size) of a file to `address` if all their blocks are what was written.

    For `posix.read_by`. Two reads for every 128 KiB or part thereof. At address 0 it only tells the operating system
    that these reads will come, or notes what is missing of a remote file.
    """
    check = _checks(description, 1)[0]
    files = posix.file_table(check.files, check.num_files)
    data, sums = files[check.data], files[check.sums]
    start = data.start - 1
    block = offset // CHECKED_BYTES
    stop = (offset + size + CHECKED_BYTES - 1) // CHECKED_BYTES
    most = min(stop - block, _MOST_BLOCKS) if address != 0 else 0
    held = np.empty(most * CHECKED_BYTES, np.uint8)
    expected = np.empty(most, np.uint64)
    result = OK
    while block < stop:
        count = min(stop - block, _MOST_BLOCKS)
        first = block * CHECKED_BYTES
        num_bytes = min(count * CHECKED_BYTES, data.size - first)
        first_sum = (check.first_sum + block) * SUM_BYTES
        if address == 0 and data.reader == 0:
            prefetch_file(data, first - start, num_bytes)
            prefetch_file(sums, first_sum, count * SUM_BYTES)
            block += count
            continue
        # Ask for both before giving up: what is missing of either is then fetched at once.
        held_address = 0 if address == 0 else held.ctypes.data
        expected_address = 0 if address == 0 else expected.ctypes.data
        status = fetch(files, check.data, first - start, num_bytes, held_address)
        other = fetch(files, check.sums, first_sum, count * SUM_BYTES, expected_address)
        if status != OK and status != MISSING:
            return status
        if other != OK and other != MISSING:
            return other
        if status == MISSING or other == MISSING:
            result = MISSING
        elif address != 0:
            for i in range(count):
                if block_checksum(held[i * CHECKED_BYTES : min(num_bytes, (i + 1) * CHECKED_BYTES)]) != expected[i]:
                    check.damaged_block = block + i
                    return DAMAGED
            begin = max(offset, first)
            end = min(offset + size, first + num_bytes)
            posix.c_memcpy(address + begin - offset, held.ctypes.data + begin - first, end - begin)
        block += count
    return result


@kernel
def read_whole(check, num_bytes):
    """Whether all of a file is what was written: OK, or what is wrong. `check` is an array with one CHECK record."""
    held = np.empty(num_bytes, np.uint8)
    return posix.read_by(check.ctypes.data, check[0].data, 0, num_bytes, held.ctypes.data)


class BlockSums:
    """The checksums of all blocks of a file that is written front to back, except for its header, which comes last.

    It keeps the block that is not full yet, the blocks that hold the header, and 8 bytes for each finished block.
    """

    def __init__(self, header_bytes: int) -> None:
        self._front = bytearray(header_bytes)
        self._rest = bytearray()
        self._sums: list[Any] = []

    def update(self, data: Any) -> None:
        """Append an array of bytes. One pass over them, without the GIL."""
        data = _fill(self._rest, _fill(self._front, data))
        if len(self._rest) == CHECKED_BYTES:
            self._sums.append(_sums_of(self._rest))
            self._rest.clear()
        whole = data.size // CHECKED_BYTES * CHECKED_BYTES
        self._sums.append(_sums_of(data[:whole]))
        self._rest += data[whole:].tobytes()

    def finish(self, header: bytes) -> Any:
        """The checksum of every block, once the header is known."""
        self._front[: len(header)] = header
        return np.concatenate([_sums_of(self._front), *self._sums, _sums_of(self._rest)])


def _fill(held: bytearray, data: Any) -> Any:
    """Append to what is held, as far as whole blocks. Returns the rest of the data."""
    taken = min(-len(held) % CHECKED_BYTES, data.size)
    held += data[:taken].tobytes()
    return data[taken:]


def _sums_of(data: Any) -> Any:
    return checksum_blocks(bytes_of(data), CHECKED_BYTES)
