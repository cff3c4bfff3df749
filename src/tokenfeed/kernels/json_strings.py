"""The inside of JSON strings: where something special comes, and what escapes stand for.

Eight bytes are looked at by one step. Loads and stores are unchecked: they happen only where eight bytes are left of
what was given, and what is written is never longer than what it was made of.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tokenfeed.kernels.jit import inlined, kernel

QUOTE, BACKSLASH = 34, 92

_U = np.uint64  # Numba makes a float of int64 with uint64, so every constant that meets a word is wrapped
_ONES, HIGHS = _U(0x0101010101010101), _U(0x8080808080808080)
QUOTES, BACKSLASHES, SPACES = _ONES * _U(QUOTE), _ONES * _U(BACKSLASH), _ONES * _U(32)

_DIGITS = np.full(256, -1, np.int64)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _DIGITS[_digit] = _DIGITS[bytes([_digit]).upper()[0]] = _value
SIMPLE = np.zeros(256, np.uint8)
"""What a backslash and a letter stand for; 0 where that is nothing."""
for _letter, _meant in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    SIMPLE[_letter] = _meant


@intrinsic
def load_word(_context: Any, address: Any) -> Any:
    """The eight bytes at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.intp), generate


@intrinsic
def _store_word(_context: Any, address: Any, word: Any) -> Any:
    """Put eight bytes to an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)
        return ir.Constant(ir.IntType(32), 0)

    return types.int32(types.intp, types.uint64), generate


@inlined
def zero_flags(word):
    """Flags for bytes that are 0: none where none is, and the first flag is right (those behind it may not be)."""
    return (word - _ONES) & ~word & HIGHS


@intrinsic
def first_flagged(_context: Any, flags: Any) -> Any:
    """The number of the first byte that is flagged, of those of a word that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(bits, ir.Constant(ir.IntType(64), 3))

    return types.int64(types.uint64), generate


@inlined
def hex4(data, at):
    """The value of four hexadecimal digits, or something negative."""
    return _DIGITS[data[at]] << 12 | _DIGITS[data[at + 1]] << 8 | _DIGITS[data[at + 2]] << 4 | _DIGITS[data[at + 3]]


@kernel
def unescape(data, start, stop, final, out, written):
    """Write what data[start:stop), the inside of a JSON string, stands for to `out`, behind the first `written` bytes.

    `out` has room for as many bytes as there are. Returns (where it stopped, how many bytes are written now). It stops
    early only in front of an escape that is cut by `stop` and may go on (not `final`). Where an escape is none, or is
    half of a surrogate pair alone, it says -1.
    """
    i = start
    source, target = data.ctypes.data, out.ctypes.data
    while i < stop:
        while i + 8 <= stop:
            word = load_word(source + i)
            _store_word(target + written, word)
            special = zero_flags(word ^ BACKSLASHES)
            step = first_flagged(special) if special != 0 else 8
            written += step
            i += step
            if step < 8:
                break
        while i < stop and data[i] != BACKSLASH:
            out[written] = data[i]
            written += 1
            i += 1
        if i + 1 >= stop:
            break
        c = data[i + 1]
        if c != 117:
            if SIMPLE[c] == 0:
                return -1, written
            out[written] = SIMPLE[c]
            written += 1
            i += 2
            continue
        if i + 6 > stop:
            break
        code = hex4(data, i + 2)
        if code < 0 or 0xDC00 <= code < 0xE000:
            return -1, written
        i += 6
        if 0xD800 <= code < 0xDC00:
            if i + 6 > stop and not final:
                i -= 6
                break
            if i + 6 > stop or data[i] != BACKSLASH or data[i + 1] != 117:
                return -1, written
            low = hex4(data, i + 2)
            if low < 0xDC00 or low >= 0xE000:
                return -1, written
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            i += 6
        if code < 0x80:
            out[written] = np.uint8(code)
            written += 1
        elif code < 0x800:
            out[written] = np.uint8(0xC0 | code >> 6)
            out[written + 1] = np.uint8(0x80 | code & 0x3F)
            written += 2
        elif code < 0x10000:
            out[written] = np.uint8(0xE0 | code >> 12)
            out[written + 1] = np.uint8(0x80 | code >> 6 & 0x3F)
            out[written + 2] = np.uint8(0x80 | code & 0x3F)
            written += 3
        else:
            out[written] = np.uint8(0xF0 | code >> 18)
            out[written + 1] = np.uint8(0x80 | code >> 12 & 0x3F)
            out[written + 2] = np.uint8(0x80 | code >> 6 & 0x3F)
            out[written + 3] = np.uint8(0x80 | code & 0x3F)
            written += 4
    if final and i < stop:
        return -1, written
    return i, written


@inlined
def has_backslash(data, start, stop):
    source = data.ctypes.data
    while start + 8 <= stop:
        if zero_flags(load_word(source + start) ^ BACKSLASHES) != 0:
            return True
        start += 8
    while start < stop:
        if data[start] == BACKSLASH:
            return True
        start += 1
    return False
