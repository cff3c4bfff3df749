"""Files of plain items: nanoGPT `.bin`, OLMo-core `.npy` without a header; and NumPy's `.npy`."""

from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.format.foreign.access import agree, count_items, is_file, measure, read_at, wrong
from tokenfeed.format.foreign.boundaries import by_eos, from_csv
from tokenfeed.format.foreign.file import ForeignFile
from tokenfeed.format.npy import check_dtype, parse_header
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import reading

__all__ = ["open_npy", "open_olmo", "open_raw"]


def open_raw(path: Path, *, dtype: np.dtype[Any], eos: int | None) -> ForeignFile:
    """Items of `dtype` from the first byte to the last. Reads nothing."""
    part = Part(str(path), measure(path))
    num_items = count_items(path, part.file_bytes, dtype)
    return ForeignFile(path, num_items, {"tokens": (dtype, part)}, by_eos(part, num_items, dtype, eos))


def open_olmo(path: Path, *, dtype: np.dtype[Any] | None, eos: int | None) -> ForeignFile:
    """A `.npy` without a header, with boundaries from the `.csv.gz` of the same stem if there is one."""
    if dtype is None:
        raise ArgumentError(
            f"{path} has no NumPy header, so it is a raw file of OLMo-core, which does not record its dtype; give "
            "dtype='uint8', 'uint16', 'uint32' or 'uint64'"
        )
    if dtype.kind != "u":
        raise ArgumentError(f"dtype is {dtype}; a raw .npy file ({path}) holds uint8, uint16, uint32 or uint64")
    part = Part(str(path), measure(path))
    num_items = count_items(path, part.file_bytes, dtype)
    table = path.with_suffix(".csv.gz")
    boundaries = from_csv(table, num_items) if is_file(table) else by_eos(part, num_items, dtype, eos)
    return ForeignFile(path, num_items, {"tokens": (dtype, part)}, boundaries)


def open_npy(path: Path, *, dtype: np.dtype[Any] | None, eos: int | None) -> ForeignFile:
    """A one-dimensional little-endian array written by `numpy.save`. Reads the header."""
    with reading(str(path)), path.open("rb") as file:
        stated, shape, byte_start = parse_header(file, str(path))
    if len(shape) != 1:
        raise wrong(path, "shape", expected="one dimension", found=shape, kind=FormatError)
    try:
        check_dtype(stated, what=str(path))
    except ArgumentError as error:
        raise FormatError(str(error)) from error
    agree(path, stated, dtype)
    file_bytes = measure(path)
    if byte_start + shape[0] * stated.itemsize != file_bytes:
        expected = f"{byte_start + shape[0] * stated.itemsize:,} bytes for {shape[0]:,} items of {stated}"
        raise wrong(path, "size", expected=expected, found=f"{file_bytes:,} bytes")
    part = Part(str(path), file_bytes, byte_start, read_at(path, 0, byte_start))
    return ForeignFile(path, shape[0], {"tokens": (stated, part)}, by_eos(part, shape[0], stated, eos))
