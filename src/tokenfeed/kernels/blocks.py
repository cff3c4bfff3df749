"""Blocks of remote files in memory: found, put in, and noted as missing, inside kernels.

A *block cache* holds the latest `num_slots` blocks that were put in, of `block_bytes` bytes each. The key of block b of
file f is f << 40 | b. A kernel that needs a block which is not there notes its key in the log and goes on to the next
row; Python then fetches all that was noted at once, puts it in, and calls the kernel again.

An array with one `CACHE` record describes the cache. Its address stands in the file table as `reader`.
"""

import numpy as np

from tokenfeed.kernels.checksum import block_checksum
from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.posix import MISSING, OK, array_of, begin_read, c_memcpy, c_pread, int64s, words

CACHE = words(
    "read",  # address of `read_through`, compiled
    "block_bytes",
    "num_slots",
    "slots",  # address of the blocks, one after the other
    "keys",  # address of the key of each slot, EMPTY where there is none
    "index",  # address of a hash table of slot numbers, open addressing
    "index_size",  # entries in it: a power of two
    "next",  # the slot that is used next: the oldest
    "log",  # address of the log: how many keys it has, then the keys
    "log_size",  # how many keys it can take
    "copied",  # bytes that were copied out of it
)
EMPTY = -1
BLOCK_BITS = 40

_caches = array_of(CACHE)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _place(key, size):
    """Where in the index the search for a key begins."""
    return np.int64((np.uint64(key) * _MULTIPLIER) >> np.uint64(20)) & (size - 1)


@inlined
def _slot_arrays(cache):
    """(keys of the slots, index)."""
    return int64s(cache.keys, cache.num_slots), int64s(cache.index, cache.index_size)


@inlined
def _find(key, keys, index):
    """The slot of a key, or EMPTY."""
    place = _place(key, index.size)
    while index[place] != EMPTY:
        if keys[index[place]] == key:
            return index[place]
        place = (place + 1) & (index.size - 1)
    return EMPTY


@inlined
def _forget(key, keys, index):
    """Take a key that is there out of the index, and close the gap it leaves."""
    size = index.size
    gap = _place(key, size)
    while keys[index[gap]] != key:
        gap = (gap + 1) & (size - 1)
    place = gap
    while True:
        place = (place + 1) & (size - 1)
        if index[place] == EMPTY:
            break
        # An entry may move into the gap if its search would still pass there.
        home = _place(keys[index[place]], size)
        if (place - home) & (size - 1) >= (place - gap) & (size - 1):
            index[gap] = index[place]
            gap = place
    index[gap] = EMPTY


@kernel
def read_through(cache_address, file, offset, size, address):
    """Copy bytes [offset, offset + size) of a file to `address`; or note what is missing, and return MISSING.

    For `posix.read_by`.
    """
    cache = _caches(cache_address, 1)[0]
    block_bytes = cache.block_bytes
    keys, index = _slot_arrays(cache)
    log = int64s(cache.log, cache.log_size + 1)
    status = OK
    done = 0
    while done < size:
        block = (offset + done) // block_bytes
        within = offset + done - block * block_bytes
        count = min(block_bytes - within, size - done)
        slot = _find(file << BLOCK_BITS | block, keys, index)
        if slot == EMPTY:
            status = MISSING
            if log[0] < log.size - 1:
                log[0] += 1
                log[log[0]] = file << BLOCK_BITS | block
        elif address != 0:
            c_memcpy(address + done, cache.slots + slot * block_bytes + within, count)
        done += count
    if address != 0 and status == OK:
        cache.copied += size
    return status


@kernel
def missing_blocks(cache, wanted):
    """The keys that are not in the cache, in the order given. `cache` is an array with one CACHE record."""
    keys, index = _slot_arrays(cache[0])
    absent = np.empty(wanted.size, np.int64)
    count = 0
    for i in range(wanted.size):
        if _find(wanted[i], keys, index) == EMPTY:
            absent[count] = wanted[i]
            count += 1
    return absent[:count]


@kernel
def put_blocks(cache, wanted, data):
    """Put blocks in: wanted[i] is data[i · block_bytes …]; the last may be short. The oldest make room."""
    block_bytes = cache[0].block_bytes
    keys, index = _slot_arrays(cache[0])
    for i in range(wanted.size):
        if _find(wanted[i], keys, index) != EMPTY:
            continue
        slot = cache[0].next
        cache[0].next = (slot + 1) % cache[0].num_slots
        if keys[slot] != EMPTY:
            _forget(keys[slot], keys, index)
        keys[slot] = wanted[i]
        first = i * block_bytes
        c_memcpy(cache[0].slots + slot * block_bytes, data.ctypes.data + first, min(block_bytes, data.size - first))
        place = _place(wanted[i], index.size)
        while index[place] != EMPTY:
            place = (place + 1) & (index.size - 1)
        index[place] = slot


@kernel
def checksum_blocks(data, block_bytes):
    """The checksum of each block; the last block may be short."""
    sums = np.empty((data.size + block_bytes - 1) // block_bytes, np.uint64)
    for i in range(sums.size):
        sums[i] = block_checksum(data[i * block_bytes : (i + 1) * block_bytes])
    return sums


@kernel
def load_blocks(wanted, sizes, data_handles, sum_handles, block_bytes, data):
    """Read blocks from files on disk: block wanted[i] & (2^40 − 1) of data_handles[i] goes to data[i · block_bytes …].

    Beside each lies a file of checksums, 8 bytes for each block, 0 for a block that is not there. Returns two arrays of
    flags: which blocks were whole, and which were there but damaged. All are announced before the first is read.
    """
    for i in range(wanted.size):
        begin_read(sum_handles[i], (wanted[i] & ((1 << BLOCK_BITS) - 1)) * 8, 8)
        begin_read(data_handles[i], (wanted[i] & ((1 << BLOCK_BITS) - 1)) * block_bytes, sizes[i])
    good = np.zeros(wanted.size, np.bool_)
    damaged = np.zeros(wanted.size, np.bool_)
    expected = np.zeros(1, np.uint64)
    for i in range(wanted.size):
        block = wanted[i] & ((1 << BLOCK_BITS) - 1)
        if c_pread(np.int32(sum_handles[i]), expected.ctypes.data, 8, block * 8) != 8 or expected[0] == np.uint64(0):
            continue
        first = i * block_bytes
        count = c_pread(np.int32(data_handles[i]), data.ctypes.data + first, sizes[i], block * block_bytes)
        if count == sizes[i]:
            found = max(np.uint64(1), block_checksum(data[first : first + sizes[i]]))
            good[i] = found == expected[0]
        damaged[i] = not good[i]
    return good, damaged
