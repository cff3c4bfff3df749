"""Document boundaries for formats that have none: from a `.csv.gz` beside the file, or by EOS."""

import csv
import gzip
import operator
import zlib
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError
from tokenfeed.format.foreign.file import Boundaries, read_slices, whole, wrong
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import reading
from tokenfeed.types import Ints

__all__ = ["by_eos", "from_csv"]

_LONGEST_ROW = 1 << 18
"""Most characters of a row. A longer one is cut into several, which are not valid rows."""


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
    end = 0
    empty = 0
    for row in _rows(path):
        start, end = _follow(path, len(starts), row, end, num_items)
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
            with gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
                yield from csv.reader(iter(lambda: file.readline(_LONGEST_ROW), ""))
        except (gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
            raise CorruptionError(f"{path} is not valid CSV compressed with gzip: {error}") from error


def _follow(path: Path, number: int, row: list[str], previous_end: int, num_items: int) -> tuple[int, int]:
    try:
        start, end = int(row[0]), int(row[1])
    except (ValueError, IndexError) as error:
        found = repr(",".join(row))[:80]
        raise wrong(path, f"row {number}", expected="start,end,…", found=found) from error
    if start != previous_end:
        raise wrong(path, f"start of row {number}", expected=previous_end, found=start)
    if not start <= end <= num_items:
        expected = f"from {start:,} to {num_items:,}, the number of items"
        raise wrong(path, f"end of row {number}", expected=expected, found=end)
    return start, end
