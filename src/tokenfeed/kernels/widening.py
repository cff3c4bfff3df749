"""Whole numbers of 1, 2 or 4 bytes as wider ones: from the dtype tokens are stored in to the one a model takes."""

from numba import carray, types

from tokenfeed.kernels.jit import inlined
from tokenfeed.kernels.posix import int32_pointer, int64_pointer, uint8_pointer, uint16_pointer, uint32_pointer


@inlined
def _widen(narrow, wide, sign):
    for i in range(wide.size):
        wide[i] = (types.int64(narrow[i]) ^ sign) - sign


@inlined
def widen(source, target, count, narrow_bytes, wide_bytes, sign):
    """Numbers at address `source` as numbers of `wide_bytes` at `target`. The two may not overlap.

    `sign` is the sign bit of the narrow ones, 0 where they have none:  0xFFFE ^ 0x8000 - 0x8000 = -2
    """
    if wide_bytes == 8:
        numbers = carray(int64_pointer(target), (count,))
        if narrow_bytes == 1:
            _widen(carray(uint8_pointer(source), (count,)), numbers, sign)
        elif narrow_bytes == 2:
            _widen(carray(uint16_pointer(source), (count,)), numbers, sign)
        else:
            _widen(carray(uint32_pointer(source), (count,)), numbers, sign)
    else:
        halves = carray(int32_pointer(target), (count,))
        if narrow_bytes == 1:
            _widen(carray(uint8_pointer(source), (count,)), halves, sign)
        else:
            _widen(carray(uint16_pointer(source), (count,)), halves, sign)
