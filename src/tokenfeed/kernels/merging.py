"""Merging the bytes of a word into tokens: the lowest rank first, and the leftmost of equals, as in tiktoken.

Ranks number the tokens in the order in which pairs are merged, from 0 without holes. Everything is found by address in
one record of `TABLES`.
"""

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.memory import get_byte, get_int32, get_int64, get_word, put_int32, put_uint32, put_word
from tokenfeed.kernels.posix import prefetch_line, words

__all__ = [
    "LONGEST_SCANNED",
    "MASKS",
    "MOST_TOKENS",
    "PADDING",
    "SCRATCH_BYTES",
    "TABLES",
    "begin_scanning",
    "fill_pairs",
    "fill_ranks",
    "find_rank",
    "hash_bytes",
    "is_same",
    "merge_by_heap",
    "merge_by_scanning",
    "prefetch_rank",
]

MOST_TOKENS = 1 << 21
"""Fewer tokens than this: two ranks and a third have to fit into 64 bits."""
PADDING = 16
"""Bytes after the end of text and of tokens that must be readable: both are read in words of eight bytes."""
LONGEST_SCANNED = 255
"""Bytes of a word that is merged by scanning for the least rank; longer ones are merged with a heap."""

TABLES = words(
    "transitions",  # address of the tables of `automata.Automaton`
    "loops",
    "pages",
    "classes",
    "end",  # class of the end of a text
    "token_bytes",  # address of the bytes of all tokens by rank, one after the other, and padding
    "starts",  # address of where the bytes of each rank begin there, and the end
    "ranks",  # address of a hash table from bytes to ranks: upper half of the hash, rank + 1
    "last_rank",  # its last place
    "pairs",  # address of a hash table from two ranks to that of their merge: 21, 21 bits, and 22 for rank + 1
    "last_pair",  # its last place
    "filter",  # address of a set of bits, in which that of every pair is 1: most pairs that do not merge end there
    "filter_shift",  # 64 less the logarithm of the number of bits
    "byte_ranks",  # address of the ranks of bytes
    "byte_pairs",  # address of the ranks of two bytes, or -1
    "tokens",  # address of the ids of ranks
)

MASKS = np.array(
    [(1 << 8 * min(size, 8)) - 1 for size in range(17)] + [(1 << 8 * max(size - 8, 0)) - 1 for size in range(17)],
    np.uint64,
)
"""Masks of the first and, from place 17 on, of the second eight bytes of a word of 0 to 16 bytes."""

_ROW = 4 * (LONGEST_SCANNED + 17)
SCRATCH_BYTES = 4 * _ROW
"""Room that `merge_by_scanning` needs."""
_NO_RANK = 0x7FFFFFFF
_K1, _K2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_U = np.uint64


@inlined
def _mix(hashed, word):
    hashed = (hashed ^ word) * _K2
    return hashed ^ (hashed >> _U(32))


@inlined
def _finish_hash(hashed, address, size):
    """The hash of bytes of which all but the last `size`, 1 to 8, are in `hashed`."""
    return _mix(hashed, get_word(address, 0) & MASKS[size]) + _U(size) * _K1


@inlined
def hash_bytes(address, size):
    """A hash of any number of bytes, at least one."""
    hashed = _K1
    while size > 8:
        hashed = _mix(hashed, get_word(address, 0))
        address += 8
        size -= 8
    return _finish_hash(hashed, address, size)


@inlined
def is_same(one, other, size):
    """Whether the bytes at two addresses are equal."""
    while size > 8:
        if get_word(one, 0) != get_word(other, 0):
            return False
        one += 8
        other += 8
        size -= 8
    return (get_word(one, 0) ^ get_word(other, 0)) & MASKS[size] == _U(0)


@inlined
def prefetch_rank(tables, hashed):
    """Begin to load the line at which `find_rank` will look first."""
    prefetch_line(tables.ranks + np.int64(hashed & _U(tables.last_rank)) * 8)


@inlined
def find_rank(tables, address, size, hashed):
    """The rank of the token with these bytes, or -1."""
    last, starts = _U(tables.last_rank), tables.starts
    place = hashed & last
    while True:
        entry = get_word(tables.ranks, place)
        if entry == _U(0):
            return -1
        if entry >> _U(32) == hashed >> _U(32):
            rank = np.int64(entry & _U(0xFFFFFFFF)) - 1
            start = get_int64(starts, rank)
            if get_int64(starts, rank + 1) - start == size and is_same(address, tables.token_bytes + start, size):
                return rank
        place = (place + _U(1)) & last


@inlined
def _find_pair(tables, left, right):
    """The rank of the token that two tokens merge into, or `_NO_RANK`."""
    key = _U(left) << _U(21) | _U(right)
    hashed = key * _K1
    bit = hashed >> _U(tables.filter_shift)
    if get_word(tables.filter, bit >> _U(6)) >> (bit & _U(63)) & _U(1) == _U(0):
        return np.int32(_NO_RANK)
    last = _U(tables.last_pair)
    place = hashed >> _U(40) & last
    while True:
        entry = get_word(tables.pairs, place)
        if entry == _U(0):
            return np.int32(_NO_RANK)
        if entry >> _U(22) == key:
            return np.int32(entry & _U(0x3FFFFF)) - np.int32(1)
        place = (place + _U(1)) & last


@inlined
def begin_scanning(tables, scratch, address, size):
    """Note the bytes and pairs of a word of at most `LONGEST_SCANNED` bytes, for `merge_by_scanning`."""
    byte_ranks, byte_pairs = tables.byte_ranks, tables.byte_pairs
    ranks, keys, following, preceding = scratch, scratch + _ROW, scratch + 2 * _ROW, scratch + 3 * _ROW
    nothing = np.int32(_NO_RANK)
    byte = np.int64(get_byte(address, 0))
    put_int32(ranks, 0, get_int32(byte_ranks, byte))
    for i in range(1, size):
        after = np.int64(get_byte(address, i))
        put_int32(ranks, i, get_int32(byte_ranks, after))
        rank = get_int32(byte_pairs, byte << 8 | after)
        put_int32(keys, i - 1, nothing if rank < 0 else rank << 8 | (i - 1))
        put_int32(following, i - 1, i)
        put_int32(preceding, i, i - 1)
        byte = after
    put_int32(following, size - 1, size)
    put_int32(preceding, 0, -1)
    width = (size + 14) // 16 * 16
    for i in range(size - 1, width):
        put_int32(keys, i, nothing)


@inlined
def merge_by_scanning(tables, scratch, size, out):
    """Merge a word that is noted; its tokens go to address `out`. Returns their number.

    The key of byte i is rank << 8 | i for the pair that begins there: the least of them is the pair to merge, the
    leftmost one of equals. The search for it compiles to vector instructions.
    """
    ranks, keys, following, preceding = scratch, scratch + _ROW, scratch + 2 * _ROW, scratch + 3 * _ROW
    nothing = np.int32(_NO_RANK)
    width = (size + 14) // 16 * 16
    while True:
        least = nothing
        for i in range(width):
            least = min(least, get_int32(keys, i))
        if least == nothing:
            break
        first, rank = np.int64(least & 255), least >> 8
        gone = np.int64(get_int32(following, first))
        right, left = np.int64(get_int32(following, gone)), np.int64(get_int32(preceding, first))
        put_int32(ranks, first, rank)
        put_int32(following, first, right)
        put_int32(keys, gone, nothing)
        merged = nothing
        if right < size:
            put_int32(preceding, right, first)
            merged = _find_pair(tables, rank, get_int32(ranks, right))
        put_int32(keys, first, nothing if merged == nothing else merged << 8 | first)
        if left >= 0:
            merged = _find_pair(tables, get_int32(ranks, left), rank)
            put_int32(keys, left, nothing if merged == nothing else merged << 8 | left)
    count, place = 0, 0
    while place < size:
        put_uint32(out, count, get_int32(tables.tokens, get_int32(ranks, place)))
        count += 1
        place = get_int32(following, place)
    return count


@inlined
def _sift_down(heap, place, size):
    moved = get_word(heap, place)
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and get_word(heap, child + 1) < get_word(heap, child):
            child += 1
        if get_word(heap, child) >= moved:
            break
        put_word(heap, place, get_word(heap, child))
        place = child
    put_word(heap, place, moved)


@inlined
def _sift_up(heap, place, moved):
    while place > 0 and get_word(heap, (place - 1) // 2) > moved:
        put_word(heap, place, get_word(heap, (place - 1) // 2))
        place = (place - 1) // 2
    put_word(heap, place, moved)


@inlined
def merge_by_heap(tables, address, size, out):
    """Merge a word of any length in O(n log n); its tokens go to address `out`. Returns their number.

    A pair in the heap is rank << 32 | place. Every byte brings one, and every merge takes one and brings two at most.
    """
    ranks, following, preceding = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    room = np.empty(2 * size, np.uint64)
    heap, queued = room.ctypes.data, 0
    for i in range(size):
        ranks[i] = get_int32(tables.byte_ranks, get_byte(address, i))
        following[i], preceding[i] = i + 1, i - 1
    for i in range(size - 1):
        rank = _find_pair(tables, ranks[i], ranks[i + 1])
        if rank != _NO_RANK:
            room[queued] = _U(rank) << _U(32) | _U(i)
            queued += 1
    for place in range(queued // 2 - 1, -1, -1):
        _sift_down(heap, place, queued)
    while queued:
        rank, first = np.int32(room[0] >> _U(32)), np.int64(room[0] & _U(0xFFFFFFFF))
        queued -= 1
        room[0] = room[queued]
        _sift_down(heap, 0, queued)
        gone = np.int64(following[first])
        if ranks[first] < 0 or gone >= size or _find_pair(tables, ranks[first], ranks[gone]) != rank:
            continue  # one of the two was merged meanwhile
        ranks[first], ranks[gone] = rank, -1
        following[first] = following[gone]
        if following[first] < size:
            preceding[following[first]] = first
        for left in (np.int64(preceding[first]), first):
            if left >= 0 and following[left] < size:
                merged = _find_pair(tables, ranks[left], ranks[following[left]])
                if merged != _NO_RANK:
                    _sift_up(heap, queued, _U(merged) << _U(32) | _U(left))
                    queued += 1
    count, place = 0, 0
    while place < size:
        put_uint32(out, count, get_int32(tables.tokens, ranks[place]))
        count += 1
        place = following[place]
    return count


@kernel
def fill_ranks(token_bytes, starts, ranks):
    """Fill the hash table of tokens, which has a power of two of places, twice as many as there are tokens, or more."""
    last = _U(len(ranks) - 1)
    for rank in range(len(starts) - 1):
        hashed = hash_bytes(token_bytes.ctypes.data + starts[rank], starts[rank + 1] - starts[rank])
        place = hashed & last
        while ranks[place]:
            place = (place + _U(1)) & last
        ranks[place] = hashed >> _U(32) << _U(32) | _U(rank + 1)


@kernel
def fill_pairs(tables, count, pairs, bits):
    """Fill the hash table of pairs, as far as half of it, and their filter; the number of pairs that there are."""
    table, last, found = tables[0], _U(len(pairs) - 1), 0
    for rank in range(count):
        start = get_int64(table.starts, rank)
        address, size = table.token_bytes + start, get_int64(table.starts, rank + 1) - start
        hashed = _K1  # of the whole words before the cut
        for cut in range(1, size):
            done = (cut - 1) // 8 * 8
            if cut > 8 and done == cut - 1:
                hashed = _mix(hashed, get_word(address, done // 8 - 1))
            left = find_rank(table, address, cut, _finish_hash(hashed, address + done, cut - done))
            if left < 0:
                continue
            right = find_rank(table, address + cut, size - cut, hash_bytes(address + cut, size - cut))
            if right < 0:
                continue
            found += 1
            if 2 * found > len(pairs):
                continue
            key = _U(left) << _U(21) | _U(right)
            bit = (key * _K1) >> _U(table.filter_shift)
            bits[bit >> _U(6)] |= _U(1) << (bit & _U(63))
            place = (key * _K1) >> _U(40) & last
            while pairs[place]:
                place = (place + _U(1)) & last
            pairs[place] = key << _U(22) | _U(rank + 1)
    return found
