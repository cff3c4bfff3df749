"""The checksum of stored bytes: XXH3, 64 bits, seed 0, default secret, computed as a stream.

The algorithm is the public one of https://xxhash.com (BSD-2), written here from its specification, so that any XXH3
library can verify what we store. It finds damage, not malice.

A stream is cut into blocks of 16 stripes of 64 bytes. Every stripe stirs eight 64-bit lanes, every block but the last
then scrambles them, and the last stripe is the last 64 bytes, wherever they begin. So the latest 1 to 1024 bytes are
held back, with the 64 before them. Pointers are unchecked; they stay in bounds because a block is read from the input
only while more than a block of it is left, and all else from the held-back bytes, which never exceed their buffer.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tokenfeed.kernels.jit import inlined

__all__ = ["Checksum", "block_checksum", "bytes_of", "checksum"]

_STRIPE, _STRIPES, _BLOCK = 64, 16, 1024
_U = np.uint64  # Numba makes a float of int64 with uint64, so every constant that meets a word is wrapped

_PRIME_1, _PRIME_2, _PRIME_3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
_PRIME32, _MIX_1, _MIX_2 = _U(0x9E3779B1), _U(0x165667919E3779F9), _U(0x9FB21C651E98DF25)
_PRIMES = [0xC2B2AE3D, _PRIME_1, _PRIME_2, _PRIME_3, 0x85EBCA77C2B2AE63, 0x85EBCA77, 0x27D4EB2F165667C5, _PRIME32]
_START = np.array(_PRIMES, np.uint64)
_SECRET_HEX = (
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_SECRET = np.frombuffer(bytes.fromhex(_SECRET_HEX), np.uint8)


class Checksum:
    """The XXH3-64 of all bytes given to `update`, however they were cut. One thread at a time may use it."""

    def __init__(self) -> None:
        self._lanes = _START.copy()
        self._held = np.empty(_STRIPE + _BLOCK, np.uint8)
        self._fill = self._size = 0

    def update(self, data: Any) -> None:
        """Append a C-contiguous buffer or array, read in place, in 2 µs and one pass over the memory without the GIL.

        Raises ValueError or BufferError for what is not C-contiguous, TypeError for what has no plain bytes (objects,
        str); the state is then unchanged.
        """
        view = bytes_of(data)
        self._fill = _absorb(self._lanes, self._held, self._fill, view)
        self._size += view.size

    def hexdigest(self) -> str:
        """The checksum so far, as 16 lower-case hexadecimal digits; the stream may go on. Costs 1 µs."""
        return f"{_finish(self._lanes.copy(), self._held, self._fill, self._size):016x}"


def checksum(data: Any) -> str:
    """The XXH3-64 of one C-contiguous buffer or array, as `Checksum` computes it."""
    state = Checksum()
    state.update(data)
    return state.hexdigest()


def bytes_of(data: Any) -> Any:
    """The bytes of a C-contiguous buffer or array, in place."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("a checksum needs a C-contiguous array")
        data = np.asarray(data).reshape(-1).view(np.uint8)  # datetime64 and others know no buffer protocol
    return np.frombuffer(memoryview(data).toreadonly(), np.uint8)  # always read-only: kernels compile for one type


# What Numba has no words for: unaligned reads, 128-bit products, and eight lanes as one vector. Left to itself it
# makes scalar or half-vector code of the stirring, two to four times slower; and of a slice's copy, 3 s to compile.
_BYTE, _WORD, _LANES = ir.IntType(8), ir.IntType(64), ir.VectorType(ir.IntType(64), 8)
_NEIGHBOURS = ir.VectorType(ir.IntType(32), 8)([1, 0, 3, 2, 5, 4, 7, 6])


def _pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any, to: Any) -> Any:
    base = builder.bitcast(context.make_array(kind)(context, builder, array).data, _BYTE.as_pointer())
    return builder.bitcast(builder.gep(base, [at]), to.as_pointer())


@intrinsic
def _load(_: Any, data: Any, at: Any) -> Any:
    """The word at byte `at` of `data`. Little-endian, as is every machine that Numba compiles for."""

    def emit(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.load(_pointer(context, builder, data, given[0], given[1], _WORD), align=1)

    return types.uint64(data, types.intp), emit


@intrinsic
def _copy(_: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:
    """Copy `size` bytes from byte `at` of `source` to byte `to` of `target`; the two do not overlap."""

    def emit(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        there = _pointer(context, builder, target, given[0], given[1], _BYTE)
        here = _pointer(context, builder, source, given[2], given[3], _BYTE)
        cgutils.raw_memcpy(builder, there, here, given[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), emit


@intrinsic
def _fold(_: Any, one: Any, other: Any) -> Any:
    """The two halves of the 128-bit product, xored."""

    def emit(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(given[0], wide), builder.zext(given[1], wide))
        return builder.trunc(builder.xor(product, builder.lshr(product, wide(64))), _WORD)

    return types.uint64(types.uint64, types.uint64), emit


@intrinsic
def _byteswap(_: Any, word: Any) -> Any:
    return types.uint64(types.uint64), lambda _context, builder, _signature, given: builder.bswap(given[0])


@intrinsic
def _stir(_: Any, lanes: Any, data: Any, at: Any, key: Any, key_at: Any, stripes: Any) -> Any:
    """Each lane gains its neighbour's word, and the product of the halves of its own word xored with the key."""

    def emit(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        home = _pointer(context, builder, lanes, given[0], _WORD(0), _LANES)
        state = cgutils.alloca_once_value(builder, builder.load(home, align=8))
        with cgutils.for_range(builder, given[5]) as loop:
            here = builder.add(given[2], builder.mul(loop.index, _WORD(_STRIPE)))
            there = builder.add(given[4], builder.mul(loop.index, _WORD(8)))
            words = builder.load(_pointer(context, builder, data, given[1], here, _LANES), align=1)
            keyed = builder.load(_pointer(context, builder, key, given[3], there, _LANES), align=1)
            keyed = builder.xor(keyed, words)
            product = builder.mul(builder.and_(keyed, _LANES([0xFFFFFFFF] * 8)), builder.lshr(keyed, _LANES([32] * 8)))
            gain = builder.add(product, builder.shuffle_vector(words, words, _NEIGHBOURS))
            builder.store(builder.add(builder.load(state), gain), state)
        builder.store(builder.load(state), home, align=8)
        return context.get_dummy_value()

    return types.void(lanes, data, types.intp, key, types.intp, types.intp), emit


@inlined
def _block(lanes: Any, data: Any, at: Any) -> Any:
    _stir(lanes, data, at, _SECRET, 0, _STRIPES)
    for i in range(8):
        lanes[i] = (lanes[i] ^ lanes[i] >> _U(47) ^ _load(_SECRET, 128 + 8 * i)) * _PRIME32


@inlined
def _absorb(lanes: Any, held: Any, fill: Any, data: Any) -> Any:
    """Take in `data` and return the new `fill`. In `held`, the `fill` held-back bytes follow the 64 before them."""
    taken = min(_BLOCK - fill, data.size)
    _copy(held, _STRIPE + fill, data, 0, taken)
    if taken == data.size:
        return fill + taken
    _block(lanes, held, _STRIPE)
    _copy(held, 0, held, _BLOCK, _STRIPE)
    while data.size - taken > _BLOCK:
        _block(lanes, data, taken)
        taken += _BLOCK
    if taken >= _STRIPE:  # else the 64 bytes before the rest are not all in `data`: those of `held` stay
        _copy(held, 0, data, taken - _STRIPE, _STRIPE)
    fill = data.size - taken
    _copy(held, _STRIPE, data, taken, fill)
    return fill


@inlined
def _finish(lanes: Any, held: Any, fill: Any, size: Any) -> Any:
    """The hash of the `size` bytes taken in; `lanes` is spoilt, `held` is not."""
    if size <= 16:
        return _short(held, size)
    if size <= 240:
        return _medium(held, size)
    _stir(lanes, held, _STRIPE, _SECRET, 0, (fill - 1) // _STRIPE)
    _stir(lanes, held, fill, _SECRET, 121, 1)
    x = _U(size) * _PRIME_1
    for i in range(4):
        x += _mix(lanes, 16 * i, 16 * i + 11)
    return _avalanche(x)


@inlined
def block_checksum(data: Any) -> Any:
    """The hash of an array of bytes, inside a kernel: what `checksum` gives, as a number."""
    lanes = _START.copy()
    held = np.empty(_STRIPE + _BLOCK, np.uint8)
    fill = _absorb(lanes, held, np.int64(0), data)
    return _finish(lanes, held, fill, data.size)


@inlined
def _short(held: Any, size: Any) -> Any:
    """The hash of 0 to 16 bytes."""
    length = _U(size)
    first, last = _load(held, _STRIPE), _load(held, _STRIPE + size - 8)  # within `held`, though not within the input
    if size > 8:
        low = first ^ _load(_SECRET, 24) ^ _load(_SECRET, 32)
        high = last ^ _load(_SECRET, 40) ^ _load(_SECRET, 48)
        return _avalanche(length + _byteswap(low) + high + _fold(low, high))
    if size > 3:
        x = (last >> _U(32) | first << _U(32)) ^ _load(_SECRET, 8) ^ _load(_SECRET, 16)
        x ^= (x << _U(49) | x >> _U(15)) ^ (x << _U(24) | x >> _U(40))
        x *= _MIX_2
        x = (x ^ ((x >> _U(35)) + length)) * _MIX_2
        return x ^ x >> _U(28)
    x = _load(_SECRET, 56) ^ _load(_SECRET, 64)
    if size > 0:
        key = _load(_SECRET, 0)
        x = (first & _U(0xFF)) << _U(16) | _U(held[_STRIPE + size // 2]) << _U(24) | length << _U(8) | last >> _U(56)
        x ^= (key ^ key >> _U(32)) & _U(0xFFFFFFFF)
    x = (x ^ x >> _U(33)) * _PRIME_2
    x = (x ^ x >> _U(29)) * _PRIME_3
    return x ^ x >> _U(32)


@inlined
def _medium(held: Any, size: Any) -> Any:
    """The hash of 17 to 240 bytes."""
    x = _U(size) * _PRIME_1
    if size <= 128:
        for i in range((size + 31) // 32):
            x += _mix(held, _STRIPE + 16 * i, 32 * i) + _mix(held, _STRIPE + size - 16 - 16 * i, 32 * i + 16)
        return _avalanche(x)
    for i in range(8):
        x += _mix(held, _STRIPE + 16 * i, 16 * i)
    x = _avalanche(x)
    for i in range(8, size // 16):
        x += _mix(held, _STRIPE + 16 * i, 16 * (i - 8) + 3)
    return _avalanche(x + _mix(held, _STRIPE + size - 16, 119))


@inlined
def _mix(data: Any, at: Any, key: Any) -> Any:
    return _fold(_load(data, at) ^ _load(_SECRET, key), _load(data, at + 8) ^ _load(_SECRET, key + 8))


@inlined
def _avalanche(x: Any) -> Any:
    x = (x ^ x >> _U(37)) * _MIX_1
    return x ^ x >> _U(32)
