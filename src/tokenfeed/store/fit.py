"""Converts values to a column's dtype without loss, or says which value does not fit."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import FitError
from tokenfeed.format.manifest import Column

__all__ = ["fit"]


def fit(values: Any, column: Column, name: str) -> npt.NDArray[Any]:
    """`values` as a C-contiguous array of the column's dtype, shape (number of items, *inner shape).

    No value changes, except that floating-point numbers may be rounded. An array that already has the dtype is not
    copied.
    """
    is_list = isinstance(values, list | tuple)  # structured items can only be given as tuples of a known dtype
    array = np.asarray(values, dtype=column.dtype if is_list and column.dtype.names is not None else None)
    if array.ndim != 1 + len(column.shape) or array.shape[1:] != column.shape:
        shape = ", ".join(["items", *map(str, column.shape)])
        raise FitError(f"column {name!r} expects an array of shape ({shape}), got {array.shape}")
    if array.dtype != column.dtype:
        array = _convert(array, column.dtype, name)
    return np.ascontiguousarray(array)


def _convert(array: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    if array.size == 0 or np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    kinds = array.dtype.kind + dtype.kind
    if kinds in ("ii", "iu", "ui", "uu"):
        low, high = int(array.min()), int(array.max())
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            worst = low if low < limits.min else high
            raise FitError(f"column {name!r} is {dtype}, which holds {limits.min} to {limits.max}; got {worst}")
        return array.astype(dtype)
    if kinds in ("ff", "cc", "if", "uf", "fc"):
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        exact = kinds in ("if", "uf")
        bad = converted != array if exact else ~np.isfinite(converted) & np.isfinite(array)
        if bad.any():
            raise FitError(f"column {name!r} is {dtype}, which cannot hold {array[bad].reshape(-1)[0]} exactly")
        return converted
    raise FitError(f"column {name!r} is {dtype}; values of {array.dtype} cannot be converted to it without loss")
