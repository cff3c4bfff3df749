"""Whole numbers of a file as those of a buffer: widened, or taken out of fewer bits than their dtype has.

A *packed* file holds number i in its bits [i · bits, (i + 1) · bits), counted from the lowest bit of the first byte.
Negative numbers are in two's complement. Three numbers of 5 bits:

    byte 0   b b b a a a a a      byte 1   · c c c c c b b      (the highest bit of each on the left)
"""

import numpy as np
from numba import types

from tokenfeed.kernels.jit import inlined, kernel, step
from tokenfeed.kernels.memory import get_word
from tokenfeed.kernels.posix import int32s, int64s, uint8s, uint16s, uint32s

MOST_BITS = 56
"""Most bits of a number: they lie in 64 from any byte on."""
OVERREAD_BYTES = 7
"""Bytes after the last number that `unpack_row` may look at."""

_U = np.uint64


@inlined
def _widen(narrow, wide, sign):
    """`sign` is the sign bit of the narrow numbers, 0 where they have none:  0xFFFE ^ 0x8000 - 0x8000 = -2"""
    for i in range(wide.size):
        wide[i] = (types.int64(narrow[i]) ^ sign) - sign


@inlined
def widen_row(source, number_bytes, is_signed, target, out_bytes, count):
    """Numbers at address `source`, of 1, 2 or 4 bytes, as wider ones at `target`; the two may not overlap."""
    sign = is_signed << (8 * number_bytes - 1)
    if out_bytes == 8:
        numbers = int64s(target, count)
        if number_bytes == 1:
            _widen(uint8s(source, count), numbers, sign)
        elif number_bytes == 2:
            _widen(uint16s(source, count), numbers, sign)
        else:
            _widen(uint32s(source, count), numbers, sign)
    else:
        halves = int32s(target, count)
        if number_bytes == 1:
            _widen(uint8s(source, count), halves, sign)
        else:
            _widen(uint16s(source, count), halves, sign)


@step
def _take(source, bit, mask, sign):
    word = get_word(source + (bit >> 3), 0) >> _U(bit & 7)
    return (types.int64(word & mask) ^ sign) - sign


@inlined
def _unpack(source, first_bit, bits, is_signed, numbers):
    """Eight numbers are `bits` bytes, so the places of all eights are the same: LLVM computes them once, a third of
    the time."""
    mask = (_U(1) << _U(bits)) - _U(1)
    sign = is_signed << (bits - 1)
    eights = numbers.size >> 3
    for i in range(eights):
        for j in range(8):
            numbers[8 * i + j] = _take(source + i * bits, first_bit + j * bits, mask, sign)
    for i in range(8 * eights, numbers.size):
        numbers[i] = _take(source, first_bit + i * bits, mask, sign)


@inlined
def unpack_row(source, first_bit, bits, is_signed, target, out_bytes, count):
    """Numbers of 1 to MOST_BITS bits, from `first_bit` of the bytes at `source` on, as numbers of `out_bytes` bytes.

    Up to OVERREAD_BYTES after the last of these bits must be readable. 10 GB/s of 4-byte numbers.
    """
    if out_bytes == 4:
        _unpack(source, first_bit, bits, is_signed, uint32s(target, count))
    elif out_bytes == 8:
        _unpack(source, first_bit, bits, is_signed, int64s(target, count))
    elif out_bytes == 2:
        _unpack(source, first_bit, bits, is_signed, uint16s(target, count))
    else:
        _unpack(source, first_bit, bits, is_signed, uint8s(target, count))


@kernel
def pack_numbers(numbers, bits):
    """The lowest `bits` bits of each of 8 · n unsigned numbers, as n · `bits` bytes."""
    packed = np.empty(numbers.size // 8 * bits, np.uint8)
    mask = (_U(1) << _U(bits)) - _U(1)
    word = _U(0)
    filled = 0
    at = 0
    for i in range(numbers.size):
        word |= (_U(numbers[i]) & mask) << _U(filled)
        filled += bits
        while filled >= 8:
            packed[at] = word & _U(255)
            word >>= _U(8)
            filled -= 8
            at += 1
    return packed
