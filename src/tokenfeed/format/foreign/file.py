"""`ForeignFile`: a token file of another system; and how such files are read and checked."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, TruncatedError
from tokenfeed.format.manifest import Column
from tokenfeed.format.npy import check_dtype, descr_to_json
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import open_binary, reading
from tokenfeed.types import Array, Bools, Ints

__all__ = [
    *("Boundaries", "ForeignFile", "agree", "as_dtype", "check_each", "check_size", "check_sorted"),
    *("is_file", "peek", "read_at", "read_slices", "whole", "wrong"),
]

SLICE_ITEMS = 1 << 20
"""Items read at once: a few MB, so that Ctrl-C works within milliseconds."""

_BLOCKS, _BLOCK_BYTES = 16, 4096


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of documents: how to find them, and what they depend on besides the tokens."""

    find: Callable[[], Ints]
    """First item of each document, non-decreasing from 0. Reads O(documents), or all tokens where an EOS ends a
    document, in slices, and checks what it reads."""
    files: tuple[Part, ...] = ()
    eos: int | None = None


@dataclass(frozen=True)
class ForeignFile:
    """A token file of another system, described without reading it: opening takes O(1) whatever its size."""

    dtypes: Mapping[str, tuple[np.dtype[Any], Part]]
    """Dtype and file of each column: `tokens`, and anything else with one value per token."""
    boundaries: Boundaries | None
    """Boundaries of documents; None if nothing says where documents begin."""

    @property
    def name(self) -> str:
        """File name, for messages and locations."""
        return Path(self.parts["tokens"].path).name

    @property
    def num_items(self) -> int:
        dtype, part = self.dtypes["tokens"]
        return (part.file_bytes - part.byte_start) // dtype.itemsize

    @property
    def columns(self) -> dict[str, Column]:
        return {name: Column(dtype) for name, (dtype, _) in self.dtypes.items()}

    @property
    def parts(self) -> dict[str, Part]:
        return {name: part for name, (_, part) in self.dtypes.items()}

    def identity(self) -> str:
        """Checksum of dtypes, sizes, headers, 16 blocks of 4 KiB of each file, and the EOS that ends documents.

        It does not depend on the path. Reads at most 64 KiB per file.
        """
        files = [*self.parts.values(), *(self.boundaries.files if self.boundaries else ())]
        described = [
            [[name, descr_to_json(dtype)] for name, (dtype, _) in self.dtypes.items()],
            [[part.file_bytes, part.header.hex()] for part in files],
            self.boundaries.eos if self.boundaries else None,
        ]
        return checksum(json.dumps(described).encode() + b"".join(block for part in files for block in _sample(part)))


def _sample(part: Part) -> Sequence[bytes]:
    """Evenly spaced blocks, including the first and last bytes; the whole file if it is no longer than the blocks."""
    if part.file_bytes <= _BLOCKS * _BLOCK_BYTES:
        return [read_at(Path(part.path), 0, part.file_bytes)]
    last = part.file_bytes - _BLOCK_BYTES
    return [read_at(Path(part.path), last * block // (_BLOCKS - 1), _BLOCK_BYTES) for block in range(_BLOCKS)]


def wrong(
    path: Path, field: str, *, expected: object, found: object, kind: type[FormatError] = CorruptionError
) -> FormatError:
    """The error for a field that is not what it must be."""
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in (found, expected)]
    return kind(f"{path}: {field} is {shown[0]}, expected {shown[1]}")


def is_file(path: Path) -> bool:
    with reading(str(path)):
        return path.is_file()


def whole(path: Path, dtype: np.dtype[Any] | None = None) -> Part:
    """All of a file, which must hold whole items of `dtype`."""
    with reading(str(path)):
        part = Part(str(path), path.stat().st_size)
    if dtype is not None and part.file_bytes % dtype.itemsize:
        expected = f"a multiple of {dtype.itemsize} bytes ({dtype})"
        raise wrong(path, "size of the items", expected=expected, found=f"{part.file_bytes:,} bytes")
    return part


def check_size(path: Path, expected: int, why: str) -> None:
    found = whole(path).file_bytes
    if found != expected:
        raise wrong(path, "size", expected=f"{expected:,} bytes{why}", found=f"{found:,} bytes")


def peek(path: Path, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file, or all of it if it is shorter."""
    with reading(str(path)), open_binary(path) as file:
        return file.read(num_bytes)


def read_at(path: Path, byte_start: int, num_bytes: int) -> bytes:
    """Bytes [byte_start, byte_start + num_bytes) of a file that had them when it was opened."""
    return b"".join(items.tobytes() for _, items in read_slices(path, "u1", num_bytes, byte_start=byte_start))


def read_slices(path: Path, dtype: npt.DTypeLike, count: int, *, byte_start: int = 0) -> Iterator[tuple[int, Array]]:
    """(number of the first item, items) of successive slices of `SLICE_ITEMS`, in one sequential pass."""
    dtype = np.dtype(dtype)
    with reading(str(path)), open_binary(path) as file:
        file.seek(byte_start)
        for first in range(0, count, SLICE_ITEMS):
            wanted = min(SLICE_ITEMS, count - first) * dtype.itemsize
            data = file.read(wanted)
            if len(data) < wanted:
                raise TruncatedError(
                    f"{path} ended early: it had at least {byte_start + count * dtype.itemsize:,} bytes when it was "
                    "opened. Another process truncated or replaced it",
                    filename=str(path),
                )
            yield first, np.frombuffer(data, dtype)


def check_each(path: Path, field: str, bad: Bools, values: Array, expected: Callable[[int], str], first: int) -> None:
    """Raise CorruptionError for the first of some values that is `bad`; `first` is the number of values[0]."""
    if bad.any():
        at = int(bad.argmax())
        raise wrong(path, f"{field}[{first + at}]", expected=expected(at), found=int(values[at]))


def check_sorted(path: Path, field: str, values: Ints) -> None:
    """Raise CorruptionError if a value is smaller than the one before it. Uses one byte of memory per value."""
    falls = values[1:] < values[:-1]
    check_each(path, field, falls, values[1:], lambda at: f"at least {values[at]:,}", 1)


def as_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The `dtype` argument as a dtype that a column can have; None if it was not given."""
    if dtype is None:
        return None
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ArgumentError(f"dtype is {dtype!r}, expected a NumPy dtype such as 'uint16' ({error})") from error
    return check_dtype(known, what="the dtype argument")


def agree(path: Path, stated: np.dtype[Any], given: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype that a file records; it must equal the one given, if any."""
    if given is not None and given != stated:
        raise ArgumentError(f"dtype is {given}, but {path} records {stated}; leave dtype out")
    return stated
