"""MDS, the shards of MosaicML Streaming: `index.json` names shards and columns; a sample is a row of all columns.

    shard    u32 count, u32 offset[count + 1] in bytes from the start of the file, JSON, then the samples
    sample   u32 size of every column that has no fixed size, then the columns, sorted by name

A column of tokens is an `ndarray` of integers with one dimension, or `bytes`, whose dtype must be given. Samples are
documents. What lies between their tokens is passed over as they are read. Opening reads the offsets.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError
from tokenfeed.format.foreign import file
from tokenfeed.format.foreign.file import INDEX, Boundaries, ForeignFile, is_file, read_at, wrong
from tokenfeed.format.records import reader
from tokenfeed.storage.files import Extents, Part
from tokenfeed.types import Ints

__all__ = ["find_index", "open_mds"]

_NAMES = ("tokens", "input_ids")
_CODES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 32: "u4", 33: "i4", 64: "u8", 65: "i8"}
_SHAPE_BYTES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class _File:
    basename: str
    bytes: int


@dataclass(frozen=True, slots=True)
class _Shard:
    column_encodings: tuple[str, ...]
    column_names: tuple[str, ...]
    column_sizes: tuple[int | None, ...]
    raw_data: _File
    samples: int
    format: str = ""
    version: int = 2
    compression: str | None = None


@dataclass(frozen=True, slots=True)
class _Index:
    shards: tuple[_Shard, ...]


def find_index(folder: Path) -> _Index | None:
    """The index of MDS in a folder, if it has one: other systems have an `index.json` too."""
    value = file.read_index(folder)
    if not isinstance(value.get("shards"), list) or not value["shards"]:
        return None
    index: _Index = reader(_Index)(value, f"{folder / INDEX}:")
    return index


def open_mds(folder: Path, index: _Index, *, name: str | None = None, dtype: np.dtype[Any] | None) -> list[ForeignFile]:
    """The shard of that name, or all in their order."""
    return [_open_shard(folder, shard, dtype) for shard in index.shards if name in (None, shard.raw_data.basename)]


def _open_shard(folder: Path, shard: _Shard, given: np.dtype[Any] | None) -> ForeignFile:
    index, name = folder / INDEX, shard.raw_data.basename
    if shard.format != "mds" or shard.version != 2:
        raise FormatError(f"{index}: a shard is of format {shard.format!r}, version {shard.version}; expected mds, 2")
    if shard.compression and Path(name).name == name and not is_file(folder / name):
        raise FormatError(
            f"{index}: shards are compressed ({shard.compression}), and cannot be read in place. Let Streaming "
            "unpack them (StreamingDataset leaves raw shards in its `local` folder), or write them again without "
            "compression"
        )
    path = file.listed(folder, name)
    if not len(shard.column_names) == len(shard.column_encodings) == len(shard.column_sizes):
        raise CorruptionError(f"{index}: names, encodings and sizes of columns are not equally many")
    file.check_size(path, shard.raw_data.bytes, " as the index says")
    offsets = file.read_offsets(path, shard.samples, shard.raw_data.bytes)
    column = _choose(index, shard)
    starts, sizes = _find_column(path, shard, column, offsets)
    dtype, starts, sizes = _strip(path, shard.column_encodings[column], starts, sizes, given)
    uneven = sizes % dtype.itemsize != 0
    file.check_each(path, "size of the tokens", uneven, sizes, lambda _: f"whole items of {dtype.itemsize} bytes", 0)
    outside = (sizes < 0) | (starts + sizes > offsets[1:])
    file.check_each(path, "size of the tokens", outside, sizes, lambda _: "no more than the sample has", 0)
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    part = Part(str(path), shard.raw_data.bytes, extents=Extents(firsts, starts))
    documents = firsts[:-1] // dtype.itemsize
    return ForeignFile({"tokens": (dtype, part)}, Boundaries(lambda: documents))


def _choose(index: Path, shard: _Shard) -> int:
    """The number of the column that holds the tokens."""
    kinds = [encoding.partition(":")[0] for encoding in shard.column_encodings]
    able = [number for number, kind in enumerate(kinds) if kind in ("ndarray", "bytes")]
    named = [number for name in _NAMES for number in able if shard.column_names[number] == name]
    if not named and len(able) != 1:
        columns = ", ".join(map(": ".join, zip(shard.column_names, shard.column_encodings, strict=True)))
        raise FormatError(
            f"{index}: no column is known to hold tokens among {columns}. Expected an ndarray of integers or bytes, "
            "called tokens or input_ids, or the only one of its kind. Text is read by StreamingDataset: give "
            "tokenfeed.prepare or stream a function that iterates it"
        )
    return (named or able)[0]


def _find_column(path: Path, shard: _Shard, column: int, offsets: Ints) -> tuple[Ints, Ints]:
    """First byte and size of a column of every sample. Reads the samples' own headers where others vary too."""
    varying = [number for number, size in enumerate(shard.column_sizes) if size is None]
    fixed = [size or 0 for size in shard.column_sizes]
    header = 4 * len(varying)
    begin = offsets[:-1] + header + sum(fixed[:column])
    if column not in varying and not any(number < column for number in varying):
        return begin, np.full(begin.size, fixed[column], np.int64)
    if varying == [column]:
        return begin, np.diff(offsets) - header - sum(fixed)
    if not begin.size:
        return begin, begin
    if (np.diff(offsets) < header).any():
        raise CorruptionError(f"{path}: a sample is shorter than its header of {header} bytes")
    data = np.memmap(path, np.uint8, "r")
    places = offsets[:-1, None] + np.arange(header)
    sizes = np.ascontiguousarray(data[places]).view("<u4").astype(np.int64)
    before = sizes[:, [number < column for number in varying]].sum(axis=1)
    own = sizes[:, varying.index(column)] if column in varying else np.full(begin.size, fixed[column], np.int64)
    return begin + before, own


def _strip(
    path: Path, encoding: str, starts: Ints, sizes: Ints, given: np.dtype[Any] | None
) -> tuple[np.dtype[Any], Ints, Ints]:
    """(dtype, first byte, size) of the items, without what an ndarray begins with: dtype and shape, if not fixed.

    The size of a shape follows from the size of the array; the first and the last are compared with what they say.
    """
    kind, _, rest = encoding.partition(":")
    if kind == "bytes":
        if given is None:
            raise ArgumentError(f"{path}: tokens are stored as bytes, without their dtype; give dtype='uint16'")
        return given, starts, sizes
    match = re.fullmatch(r"(u?int(?:8|16|32|64))?(?::([\d,]+))?", rest)
    if not match:
        raise FormatError(f"{path}: the encoding of tokens is {encoding!r}; expected an ndarray of integers")
    lead = 0
    if match[1]:
        stated = np.dtype(match[1]).newbyteorder("<")
    else:
        code = read_at(path, int(starts[0]), 1)[0] if starts.size else 16
        if code not in _CODES:
            raise wrong(path, "dtype of an array", expected=f"one of {sorted(_CODES)}", found=code, kind=FormatError)
        stated, lead = np.dtype(f"<{_CODES[code]}"), 1
    dtype = file.agree(path, stated, given)
    if match[2]:
        return dtype, starts + lead, sizes - lead
    headers = np.full(sizes.size, -1, np.int64)
    for bytes_of_shape, least, limit in zip(_SHAPE_BYTES, (0, 1 << 8, 1 << 16, 1 << 32), (8, 16, 32, 63), strict=True):
        counts, uneven = np.divmod(sizes - lead - 1 - bytes_of_shape, dtype.itemsize)
        fits = (uneven == 0) & (counts >= least) & (counts < 1 << limit)
        headers[fits & (headers < 0)] = lead + 1 + bytes_of_shape
    for number in {0, sizes.size - 1} if sizes.size else ():
        data = read_at(path, int(starts[number]), min(int(sizes[number]), 16))
        size = int(headers[number]) - lead - 1
        count = (int(sizes[number]) - lead - 1 - size) // dtype.itemsize
        shape = int.from_bytes(data[lead + 1 : lead + 1 + max(0, size)], "little")
        is_same = match[1] or _CODES.get(data[0]) == dtype.str[1:]
        if size < 1 or not is_same or data[lead] != 4 | _SHAPE_BYTES.index(size) or shape != count:
            raise FormatError(
                f"{path}, sample {number}: tokens are not an array of one dimension of {dtype}, or not all of one "
                "dtype; only such arrays are read in place"
            )
    file.check_each(path, "size of an array", headers < 0, sizes, lambda _: "one dimension of whole items", 0)
    return dtype, starts + headers, sizes - headers
