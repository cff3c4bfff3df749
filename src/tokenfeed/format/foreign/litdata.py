"""litdata: `index.json` names the chunks and the dtype; a chunk holds the tokens of its items one after the other.

    byte 0   u32 count, u32 offset[count + 1] in bytes from the start of the file, then the items

In chunks written for `TokensLoader` the items lie side by side. In others, where an item is one array of tokens, its
u32 size comes before it, and is passed over as items are read. Items of several parts are refused.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import FormatError
from tokenfeed.format.foreign import file
from tokenfeed.format.foreign.file import INDEX, Boundaries, ForeignFile, read_at, wrong
from tokenfeed.format.records import reader, refuse
from tokenfeed.storage.files import Extents, Part
from tokenfeed.types import Ints

__all__ = ["find_index", "open_litdata"]

_TORCH = {11: "u1", 12: "i1", 13: "i2", 14: "i2", 15: "i4", 16: "i4", 17: "i8", 18: "i8", 20: "u2"}
_NUMPY = dict(enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")))
_ADVICE = (
    "Copy its items in a loop, as docs/guides/migrating.md shows, or write it again with item_loader=TokensLoader()"
)


@dataclass(frozen=True, slots=True)
class _Chunk:
    filename: str
    chunk_size: int
    """Number of items."""
    dim: int | None = None
    """Number of tokens, if items are plain tokens."""


@dataclass(frozen=True, slots=True)
class _Config:
    data_format: tuple[str, ...] | None
    compression: str | None = None
    encryption: Any = None


@dataclass(frozen=True, slots=True)
class _Index:
    chunks: tuple[_Chunk, ...]
    config: _Config


def find_index(folder: Path) -> _Index | None:
    """The index of litdata in a folder, if it has one: other systems have an `index.json` too."""
    value = file.read_index(folder)
    if not value.keys() >= {"chunks", "config"}:
        return None
    index: _Index = reader(_Index)(value, f"{folder / INDEX}:")
    return index


def open_litdata(
    folder: Path, index: _Index, *, name: str | None = None, dtype: np.dtype[Any] | None
) -> list[ForeignFile]:
    """The chunk of that name, or all in their order. Items are documents. Reads the ends of each chunk's header."""
    path, config = folder / INDEX, index.config
    stated = re.fullmatch(r"no_header_(tensor|numpy):(\d{1,4})", " ".join(config.data_format or ()))
    for problem in (
        config.compression and f"its chunks are compressed ({config.compression})",
        config.encryption and "its chunks are encrypted",
        not stated and f"an item is {config.data_format}",
    ):
        if problem:
            raise FormatError(f"{path} is of litdata, and cannot be read in place: {problem}. {_ADVICE}")
    assert stated is not None
    known = (_TORCH if stated[1] == "tensor" else _NUMPY).get(int(stated[2]))
    if known is None:
        refuse(stated[0], f"{path}: data_format", "whole numbers")
    chosen = file.agree(path, np.dtype(f"<{known}"), dtype)
    return [_open_chunk(folder, chunk, chosen) for chunk in index.chunks if name in (None, chunk.filename)]


def _open_chunk(folder: Path, chunk: _Chunk, dtype: np.dtype[Any]) -> ForeignFile:
    path, start = file.listed(folder, chunk.filename), 4 * (chunk.chunk_size + 2)
    if chunk.dim is None:
        return _open_items(path, chunk.chunk_size, dtype)
    size = start + chunk.dim * dtype.itemsize
    file.check_size(path, size, f" for {chunk.chunk_size:,} items of {chunk.dim:,} tokens ({dtype})")
    header = read_at(path, 0, 8)
    ends = np.frombuffer(header + read_at(path, start - 4, 4), "<u4")
    for field, found, expected in zip(
        ("count", "offset[0]", "last offset"), ends, (chunk.chunk_size, start, size), strict=True
    ):
        if found != expected:
            raise wrong(path, field, expected=expected, found=int(found))
    find = partial(_find_documents, path, chunk.chunk_size, size, dtype.itemsize)
    return ForeignFile({"tokens": (dtype, Part(str(path), size, start, header))}, Boundaries(find))


def _open_items(path: Path, count: int, dtype: np.dtype[Any]) -> ForeignFile:
    """A chunk whose items have their sizes before them. Reads the offsets; the first and the last size are compared."""
    size = file.whole(path).file_bytes
    offsets = file.read_offsets(path, count, size)
    if offsets[0] != 4 * (count + 2):
        raise wrong(path, "offset[0]", expected=4 * (count + 2), found=int(offsets[0]))
    sizes = np.diff(offsets) - 4
    uneven = (sizes < 0) | (sizes % dtype.itemsize != 0)
    file.check_each(path, "size of an item", uneven, sizes, lambda _: f"whole items of {dtype.itemsize} bytes", 0)
    for number in {0, count - 1} if count else ():
        found = int.from_bytes(read_at(path, int(offsets[number]), 4), "little")
        if found != sizes[number]:
            raise wrong(path, f"size of item {number}", expected=int(sizes[number]), found=found)
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    part = Part(str(path), size, header=read_at(path, 0, 8), extents=Extents(firsts, offsets[:-1] + 4))
    documents = firsts[:-1] // dtype.itemsize
    return ForeignFile({"tokens": (dtype, part)}, Boundaries(lambda: documents))


def _find_documents(path: Path, count: int, size: int, item_bytes: int) -> Ints:
    """One pass over the offsets, in slices; 8 bytes of memory per document."""
    offsets = file.read_offsets(path, count, size)
    starts: Ints = offsets[:-1] - offsets[0]
    uneven = starts % item_bytes != 0
    file.check_each(path, "offset", uneven, offsets, lambda _: f"whole items of {item_bytes} bytes", 0)
    starts //= item_bytes
    return starts
