"""Numbers at addresses, for steps of kernels that take addresses in place of arrays.

A call that is given an array counts references to it; where a step takes nanoseconds, that halves its rate.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = [
    "get_byte",
    "get_int32",
    "get_int64",
    "get_uint16",
    "get_word",
    "put_int32",
    "put_uint32",
    "put_word",
    "trailing_zeros",
]


def _getter(kind: Any) -> Any:
    """A function for kernels: number `index` of those of a kind at an address, aligned or not."""
    bits = ir.IntType(kind.bitwidth)

    @intrinsic
    def get(_context: Any, address: Any, index: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            place = builder.gep(builder.inttoptr(arguments[0], bits.as_pointer()), [arguments[1]])
            return builder.load(place, align=1)

        return kind(types.intp, types.intp), generate

    return get


def _putter(kind: Any) -> Any:
    """A function for kernels: replace number `index` of those of a kind at an address, aligned or not."""
    bits = ir.IntType(kind.bitwidth)

    @intrinsic
    def put(_context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            place = builder.gep(builder.inttoptr(arguments[0], bits.as_pointer()), [arguments[1]])
            builder.store(arguments[2], place, align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, kind), generate

    return put


get_byte, get_uint16, get_int32 = map(_getter, (types.uint8, types.uint16, types.int32))
get_int64, get_word = map(_getter, (types.int64, types.uint64))
put_int32, put_uint32, put_word = map(_putter, (types.int32, types.uint32, types.uint64))


@intrinsic
def trailing_zeros(_context: Any, word: Any) -> Any:
    """The number of zero bits below the lowest one of a word that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate
