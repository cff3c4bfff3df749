"""Files of plain items, with or without a header.

nanoGPT `.bin` and OLMo-core `.npy` have none; NumPy's `.npy` has its own; `.bin` of llm.c, modded-nanogpt and NeMo
Automodel begins with 256 × i32: magic, version, token count.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.format.foreign.boundaries import by_eos, from_csv
from tokenfeed.format.foreign.file import ForeignFile, agree, check_size, is_file, peek, read_at, whole, wrong
from tokenfeed.format.npy import check_dtype, parse_header
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import reading

__all__ = ["is_headed", "open_headed", "open_npy", "open_olmo", "open_raw"]

_HEADER_BYTES = 256 * 4
_EVALUATION = 20240522
_KINDS = {20240520: ("llm.c", 1, 2), 20240801: ("llm.c (Llama 3)", 7, 4), 278895051: ("NeMo Automodel", 1, None)}
"""Writer, version, and bytes per item, by magic; None if the header records the bytes, after the count."""


def open_raw(path: Path, *, dtype: np.dtype[Any], eos: int | None) -> ForeignFile:
    """Items of `dtype` from the first byte to the last. Reads nothing."""
    return _describe(whole(path, dtype), dtype, eos)


def open_olmo(path: Path, *, dtype: np.dtype[Any] | None, eos: int | None) -> ForeignFile:
    """A `.npy` without a header, with boundaries from the `.csv.gz` of the same stem if there is one."""
    if dtype is None:
        raise ArgumentError(
            f"{path} has no NumPy header, so it is a raw file of OLMo-core, which does not record its dtype; give "
            "dtype='uint8', 'uint16', 'uint32' or 'uint64'"
        )
    if dtype.kind != "u":
        raise ArgumentError(f"dtype is {dtype}; a raw .npy file ({path}) holds uint8, uint16, uint32 or uint64")
    part, table = whole(path, dtype), path.with_suffix(".csv.gz")
    if not is_file(table):
        return _describe(part, dtype, eos)
    return ForeignFile({"tokens": (dtype, part)}, from_csv(table, part.file_bytes // dtype.itemsize))


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
    file_bytes = byte_start + shape[0] * stated.itemsize
    check_size(path, file_bytes, f" for {shape[0]:,} items of {stated}")
    return _describe(Part(str(path), file_bytes, byte_start, read_at(path, 0, byte_start)), stated, eos)


def is_headed(start: bytes) -> bool:
    """Whether a file that starts with these bytes has a header of 256 × i32."""
    magic = int.from_bytes(start[:4], "little")
    return len(start) >= 4 and (magic == _EVALUATION or magic in _KINDS)


def open_headed(path: Path, *, eos: int | None) -> ForeignFile:
    """The items after a header of 256 × i32. Reads the header."""
    try:
        return _open_headed(path, eos)
    except FormatError as error:
        raw = "If the file is raw items that happen to begin like this, give their dtype"
        raise type(error)(f"{error}. {raw}") from None


def _open_headed(path: Path, eos: int | None) -> ForeignFile:
    header = peek(path, _HEADER_BYTES)
    magic = int.from_bytes(header[:4], "little")
    if magic == _EVALUATION:
        raise FormatError(f"{path}: magic is {magic}, evaluation examples of llm.c; expected a file of tokens")
    writer, expected, item_bytes = _KINDS[magic]
    if len(header) < _HEADER_BYTES:
        check_size(path, _HEADER_BYTES, f" or more, the header of a {writer} file")
    version, count, stated = struct.unpack_from("<3i", header, 4)
    if version != expected:
        raise wrong(path, "version", expected=f"{expected} in a {writer} file", found=version, kind=FormatError)
    item_bytes = item_bytes or stated
    if item_bytes not in (2, 4):
        raise wrong(path, "item size", expected="2 or 4", found=item_bytes, kind=FormatError)
    if count < 0:
        raise wrong(path, "token count", expected="at least 0", found=count)
    dtype, file_bytes = np.dtype(f"<u{item_bytes}"), _HEADER_BYTES + count * item_bytes
    check_size(path, file_bytes, f" for a token count of {count:,} ({dtype})")
    return _describe(Part(str(path), file_bytes, _HEADER_BYTES, header), dtype, eos)


def _describe(part: Part, dtype: np.dtype[Any], eos: int | None) -> ForeignFile:
    return ForeignFile({"tokens": (dtype, part)}, by_eos(part, dtype, eos))
