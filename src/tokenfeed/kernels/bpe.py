"""Byte-pair encoding of UTF-8 text: cut off words by an automaton, look them up, and merge those that are new.

A *word* is what the pattern cuts off: tokens never cross its ends. Three things make this fast. Runs of small letters
are skipped eight bytes at a time. Words of up to 16 bytes are found in a table whose entry, half a cache line, holds
the bytes and up to four tokens. And 64 words are cut off before the first is looked up, so that the cache lines of all
of them are on their way: waiting for one line after the other took half of the time.

What is remembered is bounded: words are forgotten when tables are full, which changes nothing but the time. A word that
was met again stands first in its set and a new one second, so that words met once do not drive out frequent ones.
"""

import mmap

import numpy as np

from tokenfeed.kernels.jit import inlined, kernel
from tokenfeed.kernels.memory import (
    get_byte,
    get_int32,
    get_int64,
    get_uint16,
    get_word,
    put_uint32,
    put_word,
    trailing_zeros,
)
from tokenfeed.kernels.merging import (
    LONGEST_SCANNED,
    MASKS,
    PADDING,
    SCRATCH_BYTES,
    begin_scanning,
    find_rank,
    hash_bytes,
    is_same,
    merge_by_heap,
    merge_by_scanning,
    prefetch_rank,
)
from tokenfeed.kernels.posix import c_memcpy, c_memset, prefetch_line, record, words
from tokenfeed.types import Array

__all__ = ["ROOM", "allocate", "encode", "make_cache"]

ROOM = 4
"""Tokens that the output must have room for beyond one a byte."""

_SHORT = 16  # bytes of a word whose entry holds it whole
_QUEUE = 64
_SETS, _LONG_WORDS, _ARENA = 1 << 17, 1 << 15, (7 << 19) - (1 << 14)  # in all, six large pages
_LARGE_PAGE = 2 << 20
_LARGE_CACHES, _SMALLER = 2, 8  # caches of that size; each one after them is so many times smaller
_STATES, _ENDS, _DEAD, _STRIDE_BITS = 0x3FFF, 0x8000, 0x4000, 6  # of `automata.py`
_K1, _K2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_LOW, _HIGH = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)
_BEFORE_A, _AFTER_Z = np.uint64(0x1F1F1F1F1F1F1F1F), np.uint64(0x0505050505050505)  # 0x80 - "a", 0x7F - "z"
_ID = np.uint64(0xFFFFFF)
_U = np.uint64

_CACHE = words(
    "short",  # address of sets of two entries of four words: bytes 0 to 7, 8 to 15, then size (5 bits), number of
    # tokens (3), tokens (24 each)
    "long",  # address of (hash, byte in the arena (32 bits), size (16), number of tokens (16)) of longer words
    "arena",  # address of bytes and tokens of longer words
    "used",  # bytes of the arena that are in use
    "queue",  # address of (address, size, place in the cache) of words on their way
    "scratch",  # address of what merging needs
    "last_set",  # number of sets − 1; a power of two less one, as is the next
    "last_long",
    "arena_bytes",
)


def allocate(num_bytes: int) -> Array:
    """Zeroed memory that goes back to the system with the array; what threads free stays in heaps of theirs.

    From 2 MB on its pages are large where Linux has such: look-ups in a table of 8 MB are a sixth faster then.
    """
    if num_bytes < _LARGE_PAGE:
        return np.frombuffer(mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    room = mmap.mmap(-1, num_bytes + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        room.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError):  # another system, or a kernel without them
        pass
    array = np.frombuffer(room, np.uint8)
    start = -array.ctypes.data % _LARGE_PAGE
    return array[start : start + num_bytes]


def make_cache(number: int = 0) -> tuple[Array, Array]:
    """What one thread needs: an empty record of words that it will meet, and the memory that this refers to.

    It is that of thread `number` of an engine: 13 MB for each of the first two, 1.6 MB for every other, 47 MB for 16 in
    all. A small one costs a tenth of the speed, and then only of text that is new.
    """
    smaller = 1 if number < _LARGE_CACHES else _SMALLER
    num_sets, num_long, arena_bytes = _SETS // smaller, _LONG_WORDS // smaller, _ARENA // smaller
    sizes = {
        "short": 64 * num_sets,
        "long": 16 * num_long,
        "arena": arena_bytes + PADDING,
        "queue": 24 * _QUEUE,
        "scratch": SCRATCH_BYTES,
    }
    room = allocate(sum(sizes.values()))
    starts = np.cumsum([room.ctypes.data, *sizes.values()])
    addresses = dict(zip(sizes, starts.tolist()[:-1], strict=True))
    limits = {"last_set": num_sets - 1, "last_long": num_long - 1, "arena_bytes": arena_bytes}
    return record(_CACHE, **addresses, **limits), room


@inlined
def _class_of(classes, pages, address):
    """The class of the character at an address, and its size in bytes. The text is valid UTF-8."""
    byte = np.int64(get_byte(address, 0))
    if byte < 0x80:
        return get_uint16(classes, byte), 1
    second = np.int64(get_byte(address, 1)) & 63
    if byte < 0xE0:
        point, size = (byte & 31) << 6 | second, 2
    else:
        third = np.int64(get_byte(address, 2)) & 63
        if byte < 0xF0:
            point, size = (byte & 15) << 12 | second << 6 | third, 3
        else:
            fourth = np.int64(get_byte(address, 3)) & 63
            point, size = (byte & 7) << 18 | second << 12 | third << 6 | fourth, 4
    return get_uint16(classes, np.int64(get_uint16(pages, point >> 8)) << 8 | (point & 255)), size


@inlined
def _skip_letters(at, stop):
    """The first byte from `at` on that is not a letter from a to z, or close to the end."""
    while at + 8 <= stop:
        word = get_word(at, 0)
        low = word & _LOW
        others = ((low + _BEFORE_A) & ~(low + _AFTER_Z) & ~word & _HIGH) ^ _HIGH
        if others:
            return at + np.int64(trailing_zeros(others) >> _U(3))
        at += 8
    return at


@inlined
def _find_end(transitions, loops, classes, pages, end_class, at, stop):
    """Where the word that begins at address `at` ends."""
    state, end = np.uint16(0), at
    while True:
        kind, size = end_class, 1
        if at < stop:
            kind, size = _class_of(classes, pages, at)
        following = get_uint16(transitions, state + kind)
        if following >= _DEAD:
            if following & _ENDS:
                end = at
            if following & _DEAD:
                return end
        state = following & np.uint16(_STATES)
        at += size
        if get_byte(loops, state >> _STRIDE_BITS):
            at = _skip_letters(at, stop)


@inlined
def _hash_short(address, size):
    first, second = get_word(address, 0) & MASKS[size], get_word(address, 1) & MASKS[size + 17]
    hashed = ((first * _K1) ^ (second * _K2) ^ (_U(size) << _U(56))) * _K2
    return hashed ^ (hashed >> _U(32))


@inlined
def _is_entry(entry, address, size):
    """Whether an entry of the cache holds this short word."""
    return (
        get_word(entry, 0) == get_word(address, 0) & MASKS[size]
        and get_word(entry, 1) == get_word(address, 1) & MASKS[size + 17]
        and get_word(entry, 2) & _U(31) == _U(size)
    )


@inlined
def _cut_words(tables, cache, start, stop):
    """Cut off up to 64 words; where the rest begins, and their number. Cache lines for them are on their way after."""
    transitions, loops, classes, pages = tables.transitions, tables.loops, tables.classes, tables.pages
    end_class, queue, short, long = np.uint16(tables.end), cache.queue, cache.short, cache.long
    last_set, last_long = _U(cache.last_set), _U(cache.last_long)
    queued = 0
    while start < stop and queued < _QUEUE:
        end = _find_end(transitions, loops, classes, pages, end_class, start, stop)
        size, word = end - start, queue + 24 * queued
        if size <= _SHORT:
            place = short + np.int64(_hash_short(start, size) & last_set) * 64
        else:
            hashed = hash_bytes(start, size)
            place = long + np.int64(hashed & last_long) * 16
            prefetch_rank(tables, hashed)
        prefetch_line(place)
        put_word(word, 0, _U(start))
        put_word(word, 1, _U(size))
        put_word(word, 2, _U(place))
        queued += 1
        start = end
    return start, queued


@inlined
def _merge(tables, cache, address, size, hashed, out):
    """The tokens of a new word go to address `out`; their number."""
    prefetch_rank(tables, hashed)
    if size <= LONGEST_SCANNED:
        begin_scanning(tables, cache.scratch, address, size)  # while the line is on its way
    rank = find_rank(tables, address, size, hashed)
    if rank >= 0:
        put_uint32(out, 0, get_int32(tables.tokens, rank))
        return 1
    if size <= LONGEST_SCANNED:
        return merge_by_scanning(tables, cache.scratch, size, out)
    return merge_by_heap(tables, address, size, out)


@inlined
def _remember_short(entry, address, size, out, count):
    """Put a word second in its set; first if there is none."""
    entry += 0 if get_word(entry, 2) == _U(0) else 32
    put_word(entry, 0, get_word(address, 0) & MASKS[size])
    put_word(entry, 1, get_word(address, 1) & MASKS[size + 17])
    one, two = _U(get_int32(out, 0)), _U(get_int32(out, 1)) if count > 1 else _U(0)
    three, four = _U(get_int32(out, 2)) if count > 2 else _U(0), _U(get_int32(out, 3)) if count > 3 else _U(0)
    put_word(entry, 2, _U(size) | _U(count) << _U(5) | one << _U(8) | two << _U(32))
    put_word(entry, 3, three | four << _U(24))


@inlined
def _swap_entries(entry):
    for i in range(4):
        first = get_word(entry, i)
        put_word(entry, i, get_word(entry, i + 4))
        put_word(entry, i + 4, first)


@inlined
def _remember_long(cache, place, hashed, address, size, out, count):
    """Keep a longer word and its tokens; everything is forgotten when the arena is full."""
    if cache.used + size + 4 * count > cache.arena_bytes:
        c_memset(cache.long, 0, 16 * (cache.last_long + 1))
        cache.used = 0
    start = cache.used
    cache.used += size + 4 * count
    c_memcpy(cache.arena + start, address, size)
    c_memcpy(cache.arena + start + size, out, 4 * count)
    put_word(place, 0, hashed)
    put_word(place, 1, _U(start) | _U(size) << _U(32) | _U(count) << _U(48))


@inlined
def _encode_long(tables, cache, place, address, size, out):
    """The tokens of a word of more than 16 bytes; their number."""
    hashed = hash_bytes(address, size)
    if size > LONGEST_SCANNED:
        return _merge(tables, cache, address, size, hashed, out)
    if get_word(place, 0) == hashed:
        value = get_word(place, 1)
        found, count = cache.arena + np.int64(value & _U(0xFFFFFFFF)), np.int64(value >> _U(48))
        if np.int64(value >> _U(32) & _U(0xFFFF)) == size and is_same(address, found, size):
            c_memcpy(out, found + size, 4 * count)
            return count
    count = _merge(tables, cache, address, size, hashed, out)
    _remember_long(cache, place, hashed, address, size, out, count)
    return count


@inlined
def _put_entry(entry, out):
    """The tokens of an entry go to address `out`; their number."""
    one, other = get_word(entry, 2), get_word(entry, 3)
    put_uint32(out, 0, one >> _U(8) & _ID)
    put_uint32(out, 1, one >> _U(32) & _ID)
    put_uint32(out, 2, other & _ID)
    put_uint32(out, 3, other >> _U(24) & _ID)
    return np.int64(one >> _U(5) & _U(7))


@inlined
def _encode_words(tables, cache, queued, out):
    """The tokens of all words in the queue go to address `out`; where they end."""
    queue = cache.queue
    for i in range(queued):
        word = queue + 24 * i
        address, size, entry = get_int64(word, 0), get_int64(word, 1), get_int64(word, 2)
        if size > _SHORT:
            count = _encode_long(tables, cache, entry, address, size, out)
        elif _is_entry(entry, address, size):
            count = _put_entry(entry, out)
        elif _is_entry(entry + 32, address, size):
            count = _put_entry(entry + 32, out)
            _swap_entries(entry)
        else:
            count = _merge(tables, cache, address, size, hash_bytes(address, size), out)
            if count <= 4:
                _remember_short(entry, address, size, out, count)
        out += 4 * count
    return out


@kernel
def encode(tables, caches, text, bounds, out, ends):
    """Encode the texts `text[bounds[i]:bounds[i + 1]]` to `out`, where the tokens of text i end at `ends[i]`.

    `text` has `PADDING` bytes more, and `out` room for one token a byte, and `ROOM` more.
    """
    table, cache = tables[0], caches[0]
    base, first = np.int64(text.ctypes.data), np.int64(out.ctypes.data)
    at = first
    for number in range(len(bounds) - 1):
        start, stop = base + bounds[number], base + bounds[number + 1]
        while start < stop:
            start, queued = _cut_words(table, cache, start, stop)
            at = _encode_words(table, cache, queued, at)
        ends[number] = (at - first) // 4
