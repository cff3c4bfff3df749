"""Headers of `.npy` files: one canonical header for a dtype, an inner shape and a count.

Our headers depend only on what they describe, and their length does not depend on the count. So a writer can leave
space for the header and fill it in at the end, a reader knows where the items begin, and comparing bytes verifies a
header.
"""

import ast
import reprlib
import struct
from typing import Any, BinaryIO

import numpy as np

from tokenfeed.errors import ArgumentError, FormatError

__all__ = ["MAGIC", "build_header", "check_dtype", "descr_from_json", "descr_to_json", "parse_header"]

MAGIC = b"\x93NUMPY"
_ALIGNMENT = 64
_COUNT_DIGITS = 20
_LONGEST_HEADER = 1 << 16
_LARGEST = 1 << 64
_NO_DTYPE = (
    *(TypeError, ValueError, LookupError, SyntaxError, AttributeError, OverflowError),
    *(MemoryError, RecursionError),
)
"""Errors that NumPy raises for invalid descriptions of a dtype."""


def check_dtype(dtype: np.dtype[Any], *, what: str) -> np.dtype[Any]:
    """Return `dtype` if a column can have it: fixed size, little-endian, no Python objects, no sub-array."""
    if dtype.hasobject or dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ArgumentError(f"{what} has dtype {dtype}; a column needs a dtype of fixed size without Python objects")
    if dtype != dtype.newbyteorder("<"):
        raise ArgumentError(f"{what} has dtype {dtype.str!r}; stores are little-endian: use {dtype.newbyteorder('<')}")
    return dtype


def descr_to_json(dtype: np.dtype[Any]) -> Any:
    """The dtype as `.npy` headers describe it: a string, or a list of fields."""
    return np.lib.format.dtype_to_descr(dtype)


def descr_from_json(descr: Any, what: str) -> np.dtype[Any]:
    """The dtype that `descr_to_json` described, with lists where JSON has no tuples."""
    try:
        return check_dtype(np.lib.format.descr_to_dtype(_with_tuples(descr)), what=what)
    except _NO_DTYPE as error:
        shown = reprlib.repr(descr)  # limited to six levels
        raise FormatError(f"{what} has dtype {shown}, which is not a NumPy dtype ({error})") from error


def _with_tuples(descr: Any) -> Any:
    """Lists from JSON in the form NumPy expects: a list of fields, each a tuple (name, dtype[, shape])."""
    if not isinstance(descr, list):
        return descr
    return [(field[0], _with_tuples(field[1]), *(tuple(shape) for shape in field[2:])) for field in descr]


def build_header(dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> bytes:
    """The header of a file of `count` items of `dtype` and inner `shape`.

    >>> len(build_header(np.dtype("<u2"), (), 7))
    128
    """

    def text(count: int) -> str:
        return str({"descr": descr_to_json(dtype), "fortran_order": False, "shape": (count, *shape)})

    longest = 10 + len(text(10**_COUNT_DIGITS - 1)) + 1
    size = -(-longest // _ALIGNMENT) * _ALIGNMENT
    if size > _LONGEST_HEADER:
        raise ArgumentError(f"dtype {dtype} needs a header of {size} bytes; .npy files allow {_LONGEST_HEADER}")
    body = text(count).encode("latin1").ljust(size - 11) + b"\n"
    return MAGIC + bytes((1, 0)) + struct.pack("<H", len(body)) + body


def parse_header(file: BinaryIO, path: str, *, any_order: bool = False) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """(dtype, shape, first byte of the items) of any `.npy` file. Must be in C order unless `any_order`."""
    start = file.read(8)
    version = tuple(start[6:8])
    if start[:6] != MAGIC or version not in ((1, 0), (2, 0), (3, 0)):
        raise FormatError(f"{path} is not a .npy file: it begins with {start!r}")
    width = 2 if version == (1, 0) else 4
    size = int.from_bytes(file.read(width), "little")
    if size > _LONGEST_HEADER:
        raise FormatError(f"{path} claims a header of {size:,} bytes; expected at most {_LONGEST_HEADER:,}")
    text = file.read(size).decode("utf8" if version == (3, 0) else "latin1", "replace")
    try:
        fields = ast.literal_eval(text.strip())
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        fortran, shape = fields["fortran_order"], fields["shape"]
    except _NO_DTYPE as error:
        raise FormatError(f"{path} has an invalid .npy header: {text!r} ({error})") from error
    plain = isinstance(shape, tuple) and all(type(n) is int and 0 <= n < _LARGEST for n in shape)
    if not plain or fortran not in (False, True) or (fortran and len(shape) > 1 and not any_order):
        raise FormatError(f"{path} has shape {shape!r}, fortran_order {fortran!r}; expected a plain C-order array")
    return dtype, shape, 8 + width + size
