"""Reads foreign files: exact byte ranges, long arrays in slices, and the checks that all formats share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, TruncatedError
from tokenfeed.format.npy import check_dtype
from tokenfeed.storage.local import reading
from tokenfeed.types import Array, Ints

__all__ = [
    "SLICE_ITEMS",
    "agree",
    "as_dtype",
    "check_sorted",
    "count_items",
    "is_file",
    "measure",
    "peek",
    "read_at",
    "read_slices",
    "wrong",
]

SLICE_ITEMS = 1 << 20
"""Items read at once: a few MB, so that Ctrl-C works within milliseconds."""


def wrong(
    path: Path,
    field: str,
    *,
    expected: object,
    found: object,
    kind: type[FormatError] = CorruptionError,
    advice: str = "",
) -> FormatError:
    """The error for a field that is not what it must be."""
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in (found, expected)]
    return kind(f"{path}: {field} is {shown[0]}, expected {shown[1]}{advice and f'. {advice}'}")


def is_file(path: Path) -> bool:
    with reading(str(path)):
        return path.is_file()


def measure(path: Path) -> int:
    """Size of a file in bytes."""
    with reading(str(path)):
        return path.stat().st_size


def peek(path: Path, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file, or all of it if it is shorter."""
    with reading(str(path)), path.open("rb") as file:
        return file.read(num_bytes)


def read_at(path: Path, byte_start: int, num_bytes: int) -> bytes:
    """Bytes [byte_start, byte_start + num_bytes) of a file that had them when it was opened."""
    with reading(str(path)), path.open("rb") as file:
        file.seek(byte_start)
        data = file.read(num_bytes)
    if len(data) < num_bytes:
        raise _ended(path, byte_start + num_bytes)
    return data


def read_slices(path: Path, dtype: npt.DTypeLike, count: int, *, byte_start: int = 0) -> Iterator[tuple[int, Array]]:
    """(number of the first item, items) of successive slices of `SLICE_ITEMS`, in one sequential pass."""
    dtype = np.dtype(dtype)
    with reading(str(path)), path.open("rb") as file:
        file.seek(byte_start)
        for first in range(0, count, SLICE_ITEMS):
            wanted = min(SLICE_ITEMS, count - first) * dtype.itemsize
            data = file.read(wanted)
            if len(data) < wanted:
                raise _ended(path, byte_start + count * dtype.itemsize)
            yield first, np.frombuffer(data, dtype)


def _ended(path: Path, expected: int) -> TruncatedError:
    return TruncatedError(
        f"{path} ended early: it had at least {expected:,} bytes when it was opened. Another process truncated or "
        "replaced it",
        filename=str(path),
    )


def count_items(path: Path, num_bytes: int, dtype: np.dtype[Any]) -> int:
    """Number of items in `num_bytes`, which must be a multiple of the item size."""
    if num_bytes % dtype.itemsize:
        expected = f"a multiple of {dtype.itemsize} bytes ({dtype})"
        raise wrong(path, "size of the items", expected=expected, found=f"{num_bytes:,} bytes")
    return num_bytes // dtype.itemsize


def check_sorted(path: Path, field: str, values: Ints) -> None:
    """Raise CorruptionError if a value is smaller than the one before it. Uses one byte of memory per value."""
    falls = np.flatnonzero(values[1:] < values[:-1])
    if falls.size:
        at = int(falls[0])
        where = f"{field}[{at + 1}]"
        raise wrong(path, where, expected=f"at least {values[at]:,}", found=int(values[at + 1]))


def as_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The `dtype` argument as a dtype that a column can have; None if it was not given."""
    if dtype is None:
        return None
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ArgumentError(f"dtype is {dtype!r}, expected a NumPy dtype such as 'uint16' ({error})") from error
    return check_dtype(known, what="the dtype argument")


def agree(path: Path, stated: np.dtype[Any], given: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype that a file records; it must equal the one given, if any."""
    if given is not None and given != stated:
        raise ArgumentError(f"dtype is {given}, but {path} records {stated}; leave dtype out")
    return stated
