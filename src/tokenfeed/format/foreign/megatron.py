"""Megatron-LM: `.bin` holds the items; `.idx` says where sequences begin, and which of them form a document.

    byte 0   MMIDIDX\\0\\0, u64 version = 1, u8 dtype code, u64 n_seq, u64 n_doc
    byte 34  i32 length[n_seq], in items
             i64 pointer[n_seq], in bytes
             i64 doc_idx[n_doc]: document d is sequences [doc_idx[d], doc_idx[d + 1])
             i8  mode[n_seq], in multimodal files

There is no flag for modes; the size of the file shows whether there are any.
"""

import struct
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import FormatError, NotFoundError
from tokenfeed.format.foreign import file
from tokenfeed.format.foreign.file import Boundaries, ForeignFile, is_file, peek, read_at, read_slices, whole, wrong
from tokenfeed.storage.files import Part
from tokenfeed.types import Ints

__all__ = ["MAGIC", "is_index", "open_megatron"]

MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


class _Index(NamedTuple):
    """An `.idx` whose header agrees with its size."""

    path: Path
    part: Part
    dtype: np.dtype[Any]
    num_sequences: int
    num_boundaries: int
    """Number of entries of doc_idx: documents + 1."""
    lengths_byte: int
    pointers_byte: int
    documents_byte: int


def is_index(path: Path) -> bool:
    return is_file(path) and peek(path, len(MAGIC)) == MAGIC


def open_megatron(index_path: Path, *, dtype: np.dtype[Any] | None) -> ForeignFile:
    """The `.bin` beside an `.idx`. Reads the header and the last sequence; finding documents reads all of the index."""
    index = _open_index(index_path)
    file.agree(index_path, index.dtype, dtype)
    path = index_path.with_suffix(".bin")
    if not is_file(path):
        raise NotFoundError(f"{index_path} is a Megatron index, but the file of its tokens, {path}, does not exist")
    part = whole(path, index.dtype)
    file.check_size(path, _end_of_last_sequence(index), f", where the last sequence of {index_path.name} ends")
    return ForeignFile(
        {"tokens": (index.dtype, part)}, Boundaries(partial(_find_documents, index, part), (index.part,))
    )


def _open_index(path: Path) -> _Index:
    header, size = peek(path, _HEADER.size), whole(path).file_bytes
    if header[: len(MAGIC)] != MAGIC:
        raise wrong(path, "magic", expected=f"{MAGIC!r} (Megatron)", found=repr(header[: len(MAGIC)]), kind=FormatError)
    if len(header) < _HEADER.size:
        file.check_size(path, _HEADER.size, " or more, a Megatron header")
    _, version, code, num_sequences, num_boundaries = _HEADER.unpack(header)
    if version != 1:
        raise wrong(path, "version", expected=1, found=version, kind=FormatError)
    if code not in _DTYPES:
        raise wrong(path, "dtype code", expected=f"one of {sorted(_DTYPES)}", found=code, kind=FormatError)
    pointers = _HEADER.size + 4 * num_sequences
    documents = pointers + 8 * num_sequences
    end = documents + 8 * num_boundaries
    if size != end + num_sequences:
        counts = f"{num_sequences:,} sequences and {num_boundaries:,} document boundaries"
        file.check_size(path, end, f" for {counts}, or {end + num_sequences:,} with modes")
    if num_boundaries == 0:
        raise wrong(path, "length of doc_idx", expected="at least 1", found=0)
    part, dtype = Part(str(path), size, header=header), np.dtype(_DTYPES[code])
    return _Index(path, part, dtype, num_sequences, num_boundaries, _HEADER.size, pointers, documents)


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


def _find_documents(index: _Index, part: Part) -> Ints:
    """One pass over the index, in slices.

    Each sequence number in `starts`, which rise, is replaced by the first item of that sequence as soon as the slice
    with its pointer has been read and checked.
    """
    starts = _read_boundaries(index)
    done = byte = 0
    lengths_of = read_slices(index.path, "<i4", index.num_sequences, byte_start=index.lengths_byte)
    pointers_of = read_slices(index.path, "<i8", index.num_sequences, byte_start=index.pointers_byte)
    for (first, lengths), (_, pointers) in zip(lengths_of, pointers_of, strict=True):
        file.check_each(index.path, "length", lengths < 0, lengths, lambda _: "at least 0", first)
        sizes = lengths.astype(np.int64) * index.dtype.itemsize
        begins = byte + np.cumsum(sizes) - sizes
        differs, where = pointers != begins, "where the sequence before it ends"
        file.check_each(index.path, "pointer", differs, pointers, lambda at: f"{begins[at]:,}, {where}", first)  # noqa: B023
        byte = int(begins[-1] + sizes[-1])
        if byte > part.file_bytes:
            expected = f"at most {part.file_bytes:,}, the size of the .bin"
            raise wrong(index.path, "sum of the lengths in bytes", expected=expected, found=byte)
        stop = done + int(np.searchsorted(starts[done:], first + lengths.size))
        starts[done:stop] = pointers[starts[done:stop] - first] // index.dtype.itemsize
        done = stop
    starts[done:] = part.file_bytes // index.dtype.itemsize  # documents after the last sequence are empty
    return starts[:-1]


def _read_boundaries(index: _Index) -> Ints:
    """doc_idx, checked to rise from 0 to n_seq."""
    boundaries = np.empty(index.num_boundaries, np.int64)
    for first, values in read_slices(index.path, "<i8", index.num_boundaries, byte_start=index.documents_byte):
        boundaries[first : first + values.size] = values
    for at, expected in ((0, 0), (index.num_boundaries - 1, index.num_sequences)):
        if boundaries[at] != expected:
            raise wrong(index.path, f"doc_idx[{at}]", expected=expected, found=int(boundaries[at]))
    file.check_sorted(index.path, "doc_idx", boundaries)
    return boundaries
