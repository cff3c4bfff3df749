"""Megatron-LM: `.bin` holds the items; `.idx` says where sequences begin, and which of them form a document.

    byte 0   MMIDIDX\\0\\0, u64 version = 1, u8 dtype code, u64 n_seq, u64 n_doc
    byte 34  i32 length[n_seq], in items
             i64 pointer[n_seq], in bytes
             i64 doc_idx[n_doc]: document d is sequences [doc_idx[d], doc_idx[d + 1])
             i8  mode[n_seq], in multimodal files

There is no flag for modes; the size of the file shows whether there are any.
"""

import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import FormatError, NotFoundError
from tokenfeed.format.foreign.access import (
    agree,
    check_sorted,
    count_items,
    is_file,
    measure,
    peek,
    read_at,
    read_slices,
    wrong,
)
from tokenfeed.format.foreign.file import Boundaries, ForeignFile
from tokenfeed.storage.files import Part
from tokenfeed.types import Ints

__all__ = ["MAGIC", "is_index", "open_megatron"]

MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


@dataclass(frozen=True)
class _Index:
    """An `.idx` whose header agrees with its size."""

    path: Path
    header: bytes
    file_bytes: int
    dtype: np.dtype[Any]
    num_sequences: int
    num_boundaries: int
    """Number of entries of doc_idx: documents + 1."""

    lengths_byte = _HEADER.size

    @property
    def pointers_byte(self) -> int:
        return self.lengths_byte + 4 * self.num_sequences

    @property
    def documents_byte(self) -> int:
        return self.pointers_byte + 8 * self.num_sequences

    @property
    def modes_byte(self) -> int:
        return self.documents_byte + 8 * self.num_boundaries


def is_index(path: Path) -> bool:
    return is_file(path) and peek(path, len(MAGIC)) == MAGIC


def open_megatron(index_path: Path, *, dtype: np.dtype[Any] | None) -> ForeignFile:
    """The `.bin` beside an `.idx`. Reads the header and the last sequence; `document_starts` reads all of the index."""
    index = _open_index(index_path)
    agree(index_path, index.dtype, dtype)
    path = index_path.with_suffix(".bin")
    if not is_file(path):
        raise NotFoundError(f"{index_path} is a Megatron index, but the file of its tokens, {path}, does not exist")
    part = Part(str(path), measure(path))
    num_items = count_items(path, part.file_bytes, index.dtype)
    end = _end_of_last_sequence(index)
    if end != part.file_bytes:
        expected = f"{end:,} bytes, where the last sequence of {index_path.name} ends"
        raise wrong(path, "size", expected=expected, found=f"{part.file_bytes:,} bytes")
    index_part = Part(str(index_path), index.file_bytes, header=index.header)
    boundaries = Boundaries(partial(_find_documents, index, num_items), (index_part,))
    return ForeignFile(path, num_items, {"tokens": (index.dtype, part)}, boundaries)


def _open_index(path: Path) -> _Index:
    header = peek(path, _HEADER.size)
    if header[: len(MAGIC)] != MAGIC:
        raise wrong(path, "magic", expected=f"{MAGIC!r} (Megatron)", found=repr(header[: len(MAGIC)]), kind=FormatError)
    size = measure(path)
    if len(header) < _HEADER.size:
        expected = f"at least {_HEADER.size} bytes, a Megatron header"
        raise wrong(path, "size", expected=expected, found=f"{size:,} bytes")
    _, version, code, num_sequences, num_boundaries = _HEADER.unpack(header)
    if version != 1:
        raise wrong(path, "version", expected=1, found=version, kind=FormatError)
    if code not in _DTYPES:
        raise wrong(path, "dtype code", expected=f"one of {sorted(_DTYPES)}", found=code, kind=FormatError)
    index = _Index(path, header, size, np.dtype(_DTYPES[code]), num_sequences, num_boundaries)
    if size not in (index.modes_byte, index.modes_byte + num_sequences):
        expected = (
            f"{index.modes_byte:,} bytes for {num_sequences:,} sequences and {num_boundaries:,} document boundaries, "
            f"or {index.modes_byte + num_sequences:,} with modes"
        )
        raise wrong(path, "size", expected=expected, found=f"{size:,} bytes")
    if num_boundaries == 0:
        raise wrong(path, "length of doc_idx", expected="at least 1", found=0)
    return index


def _end_of_last_sequence(index: _Index) -> int:
    """End of the last sequence in the `.bin`, in bytes."""
    last = index.num_sequences - 1
    if last < 0:
        return 0
    (length,) = struct.unpack("<i", read_at(index.path, index.lengths_byte + 4 * last, 4))
    (pointer,) = struct.unpack("<q", read_at(index.path, index.pointers_byte + 8 * last, 8))
    if length < 0 or pointer < 0:
        found = f"length {length:,} at byte {pointer:,}"
        raise wrong(index.path, "last sequence", expected="neither to be negative", found=found)
    return int(pointer + length * index.dtype.itemsize)


def _find_documents(index: _Index, num_items: int) -> Ints:
    """One pass over the index, in slices; 8 bytes of memory per document.

    Returns the array of doc_idx, in which each sequence number is replaced by the first item of that sequence as soon
    as the slice with its pointer has been read and checked.
    """
    item_bytes = index.dtype.itemsize
    starts = _read_boundaries(index)
    done = byte = 0
    lengths_of = read_slices(index.path, "<i4", index.num_sequences, byte_start=index.lengths_byte)
    pointers_of = read_slices(index.path, "<i8", index.num_sequences, byte_start=index.pointers_byte)
    for (first, lengths), (_, pointers) in zip(lengths_of, pointers_of, strict=True):
        _check_lengths(index, lengths, first)
        sizes = lengths.astype(np.int64) * item_bytes
        ends = byte + np.cumsum(sizes)
        _check_pointers(index, pointers, ends - sizes, first)
        byte = int(ends[-1])
        if byte > num_items * item_bytes:
            expected = f"at most {num_items * item_bytes:,}, the size of the .bin"
            raise wrong(index.path, "sum of the lengths in bytes", expected=expected, found=byte)
        stop = done + int(np.searchsorted(starts[done:], first + lengths.size))
        starts[done:stop] = pointers[starts[done:stop] - first] // item_bytes
        done = stop
    starts[done:] = num_items  # documents after the last sequence are empty
    return starts[:-1]


def _read_boundaries(index: _Index) -> Ints:
    """doc_idx, checked to rise from 0 to n_seq."""
    boundaries = np.empty(index.num_boundaries, np.int64)
    for first, values in read_slices(index.path, "<i8", index.num_boundaries, byte_start=index.documents_byte):
        boundaries[first : first + values.size] = values
    for at, expected in ((0, 0), (index.num_boundaries - 1, index.num_sequences)):
        if boundaries[at] != expected:
            raise wrong(index.path, f"doc_idx[{at}]", expected=expected, found=int(boundaries[at]))
    check_sorted(index.path, "doc_idx", boundaries)
    return boundaries


def _check_lengths(index: _Index, lengths: np.ndarray[Any, Any], first: int) -> None:
    negative = np.flatnonzero(lengths < 0)
    if negative.size:
        at = int(negative[0])
        field = f"length[{first + at}]"
        raise wrong(index.path, field, expected="at least 0", found=int(lengths[at]))


def _check_pointers(index: _Index, pointers: Ints, expected: Ints, first: int) -> None:
    differs = np.flatnonzero(pointers != expected)
    if differs.size:
        at = int(differs[0])
        expected_text = f"{expected[at]:,}, where the sequence before it ends"
        field = f"pointer[{first + at}]"
        raise wrong(index.path, field, expected=expected_text, found=int(pointers[at]))
