"""Files of plain items, with or without a header; documents by EOS, or by the `.csv.gz` beside an OLMo-core file.

nanoGPT `.bin` and OLMo-core `.npy` have none; NumPy's `.npy` has its own; `.bin` of llm.c, modded-nanogpt and NeMo
Automodel begins with 256 × i32: magic, version, token count.
"""

import csv
import gzip
import operator
import struct
import zlib
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError
from tokenfeed.format.foreign import file as access
from tokenfeed.format.foreign.file import Boundaries, ForeignFile, check_size, is_file, peek, read_slices, whole, wrong
from tokenfeed.format.npy import check_dtype, parse_header
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import open_binary, reading
from tokenfeed.types import Ints

__all__ = ["by_eos", "is_headed", "open_headed", "open_npy", "open_olmo", "open_raw"]

_HEADER_BYTES = 256 * 4
_EVALUATION = 20240522
_KINDS = {20240520: ("llm.c", 1, 2), 20240801: ("llm.c (Llama 3)", 7, 4), 278895051: ("NeMo Automodel", 1, None)}
"""Writer, version, and bytes per item, by magic; None if the header records the bytes, after the count."""

_LONGEST_ROW = 1 << 18
"""Most characters of a row of CSV. A longer one is cut into several, which are not valid rows."""


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
    with reading(str(path)), open_binary(path) as file:
        stated, shape, byte_start = parse_header(file, str(path))
    if len(shape) != 1:
        raise wrong(path, "shape", expected="one dimension", found=shape, kind=FormatError)
    try:
        check_dtype(stated, what=str(path))
    except ArgumentError as error:
        raise FormatError(str(error)) from error
    access.agree(path, stated, dtype)
    file_bytes = byte_start + shape[0] * stated.itemsize
    check_size(path, file_bytes, f" for {shape[0]:,} items of {stated}")
    return _describe(Part(str(path), file_bytes, byte_start, access.read_at(path, 0, byte_start)), stated, eos)


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


def by_eos(part: Part, dtype: np.dtype[Any], eos: int | None) -> Boundaries | None:
    """Documents that end after each `eos` (the last may lack it); None if `eos` is not given.

    Tokens 5 7 0 0 3 with eos 0: documents [5 7 0] [0] [3], starts 0 3 4.
    """
    if eos is None:
        return None
    try:
        token = operator.index(eos)
    except TypeError as error:
        raise ArgumentError(f"eos is {eos!r}; expected a token number") from error
    if dtype.kind not in "iu":
        raise ArgumentError(f"eos is {token}, but {part.path} has items of {dtype}; it needs integers")
    limits = np.iinfo(dtype)
    if not limits.min <= token <= limits.max:
        raise ArgumentError(f"eos is {token}, but {part.path} has items of {dtype}, which cannot hold it")
    return Boundaries(partial(_scan, part, dtype, token), eos=token)


def _scan(part: Part, dtype: np.dtype[Any], eos: int) -> Ints:
    """One pass over all items, in slices; 8 bytes of memory per document."""
    num_items = (part.file_bytes - part.byte_start) // dtype.itemsize
    found = [np.zeros(min(1, num_items), np.int64)]
    for first, items in read_slices(Path(part.path), dtype, num_items, byte_start=part.byte_start):
        found.append(np.flatnonzero(items == eos) + (first + 1))
    starts = np.concatenate(found)
    return starts[:-1] if starts.size and starts[-1] == num_items else starts


def from_csv(path: Path, num_items: int) -> Boundaries:
    """Documents from rows `start, end, …`, each of which starts where the previous ends, from 0 on.

    Items after the last row are one more document: OLMo-core writes a row for every EOS, and the last may be missing.
    """
    return Boundaries(partial(_parse, path, num_items), (whole(path),))


def _parse(path: Path, num_items: int) -> Ints:
    """One pass over the rows, about 2 µs each; 8 bytes of memory per document."""
    starts = array("q")
    end = empty = 0
    for number, row in enumerate(_rows(path)):
        previous_end = end
        try:
            start, end = int(row[0]), int(row[1])
        except (ValueError, IndexError) as error:
            raise wrong(path, f"row {number}", expected="start,end,…", found=repr(",".join(row))[:80]) from error
        if start != previous_end:
            raise wrong(path, f"start of row {number}", expected=previous_end, found=start)
        if not start <= end <= num_items:
            expected = f"from {start:,} to {num_items:,}, the number of items"
            raise wrong(path, f"end of row {number}", expected=expected, found=end)
        starts.append(start)
        empty += start == end
        if empty > num_items:  # 100 MB of such rows compress to 100 KB
            raise wrong(path, "empty documents", expected=f"at most {num_items:,}", found="more")
    if end < num_items:
        starts.append(end)
    return np.array(starts, np.int64)


def _rows(path: Path) -> Iterator[list[str]]:
    with reading(str(path)):
        try:
            with (
                open_binary(path) as stored,
                gzip.open(stored, "rt", encoding="utf-8", errors="replace", newline="") as file,
            ):
                yield from csv.reader(iter(lambda: file.readline(_LONGEST_ROW), ""))
        except (gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
            raise CorruptionError(f"{path} is not valid CSV compressed with gzip: {error}") from error
