"""Reading foreign files: exact byte ranges, long arrays in slices, and the checks that every format shares."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, TruncatedError
from tokenfeed.format.npy import check_dtype
from tokenfeed.storage.local import reading

__all__ = [
    "SLICE_ITEMS",
    "agree",
    "as_dtype",
    "check_sorted",
    "count_items",
    "is_file",
    "measure",
    "mismatch",
    "peek",
    "read_at",
    "read_slices",
]

SLICE_ITEMS = 1 << 20
"""Items read at once: some MB, so that Ctrl-C works within milliseconds."""


def mismatch(path: Path, field: str, *, expected: object, found: object) -> str:
    """The message for a field that is not what it must be."""
    return f"{path}: {field} is {_plain(found)}, expected {_plain(expected)}"


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def is_file(path: Path) -> bool:
    with reading(str(path)):
        return path.is_file()


def measure(path: Path) -> int:
    """Bytes in a file."""
    with reading(str(path)):
        return path.stat().st_size


def peek(path: Path, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file, or all of it if it is shorter."""
    with reading(str(path)), path.open("rb") as file:
        return file.read(num_bytes)


def read_at(path: Path, byte_start: int, num_bytes: int) -> bytes:
    """Bytes [byte_start, byte_start + num_bytes) of a file that was seen to have them."""
    with reading(str(path)), path.open("rb") as file:
        file.seek(byte_start)
        data = file.read(num_bytes)
    if len(data) < num_bytes:
        raise _ended(path, byte_start + num_bytes)
    return data


def read_slices(
    path: Path, dtype: npt.DTypeLike, count: int, *, byte_start: int = 0
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """(number of its first item, items) for one slice of `SLICE_ITEMS` after the other. One sequential pass."""
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
        f"{path} ended while it was being read: it had at least {expected:,} bytes when it was opened. "
        "Something truncated or replaced it.",
        filename=str(path),
    )


def count_items(path: Path, num_bytes: int, dtype: np.dtype[Any]) -> int:
    """How many items `num_bytes` are, if they are a whole number of them."""
    if num_bytes % dtype.itemsize:
        expected = f"a multiple of {dtype.itemsize} bytes ({dtype})"
        raise CorruptionError(mismatch(path, "size of the items", expected=expected, found=f"{num_bytes:,} bytes"))
    return num_bytes // dtype.itemsize


def check_sorted(path: Path, field: str, values: npt.NDArray[np.int64]) -> None:
    """Raise CorruptionError unless no value is smaller than the one before it. One byte a value, for a moment."""
    wrong = np.flatnonzero(values[1:] < values[:-1])
    if wrong.size:
        at = int(wrong[0])
        where = f"{field}[{at + 1}]"
        raise CorruptionError(mismatch(path, where, expected=f"at least {values[at]:,}", found=int(values[at + 1])))


def as_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The `dtype` argument as a dtype that a column can have; None where it was not given."""
    if dtype is None:
        return None
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ArgumentError(f"dtype is {dtype!r}, expected a NumPy dtype such as 'uint16' ({error})") from error
    return check_dtype(known, what="the dtype argument")


def agree(path: Path, stated: np.dtype[Any], given: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype a file states, unless another was given."""
    if given is not None and given != stated:
        raise ArgumentError(f"dtype is {given}, but {path} says that its items are {stated}; leave dtype out")
    return stated
