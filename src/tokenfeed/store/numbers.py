"""Numbers of samples and items: as arrays, in slices, in runs, and checked."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError, quantity
from tokenfeed.types import Ints

__all__ = ["as_indices", "check_inside", "lay", "outside", "slices"]

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
_SLICE = 1 << 16


def as_indices(indices: Any, what: str = "sample numbers") -> Ints:
    """Whole numbers as a contiguous int64 array; anything else, or more than one dimension, is refused."""
    try:
        array = indices if type(indices) is np.ndarray else np.asarray(indices)
    except ValueError as error:  # lists of several lengths
        raise ArgumentError(f"{what} must be whole numbers in one dimension: {error}") from error
    if array.dtype == _INT64 and array.ndim == 1 and array.flags.carray:
        return array
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise ArgumentError(f"{what} must be whole numbers in one dimension, not {array.dtype} {array.shape}")
    if array.dtype == _UINT64 and array.size > 0 and array.max() > np.iinfo(np.int64).max:
        raise SampleIndexError(f"{what} reach {array.max()}; the largest there can be is 2**63 - 1")
    # A read-only array would be another type to Numba, and every kernel would be compiled once more.
    return np.require(array, np.int64, ["C", "W"])


def check_inside(numbers: Ints, count: int) -> None:
    """Raise a SampleIndexError unless all are numbers of a view of `count` samples."""
    if numbers.size and numbers.view(_UINT64).max() >= count:  # a negative number is a large one there
        raise outside(numbers[(numbers < 0) | (numbers >= count)][0], count)


def outside(number: Any, count: int) -> SampleIndexError:
    """The error for a number that is not one of a view of `count` samples."""
    return SampleIndexError(f"sample {number} is outside the view, which has {quantity(count, 'sample')}")


def slices(count: int, size: int = _SLICE) -> Iterator[Ints]:
    """Numbers 0 … count − 1, so many at a time: between two of them Ctrl-C is heard."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def lay(firsts: Ints, counts: Ints) -> Ints:
    """Numbers of runs laid end to end: firsts 5, 1 and counts 3, 2 give 5 6 7 1 2."""
    ends = np.cumsum(counts)
    numbers: Ints = np.repeat(firsts - (ends - counts), counts) + np.arange(ends[-1] if ends.size else 0)
    return numbers
