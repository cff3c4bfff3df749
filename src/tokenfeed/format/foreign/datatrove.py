"""datatrove: `.ds` holds the tokens, `.index` the ends of documents, `.metadata` the token size, `.loss` a mask.

All but the first are optional: a context shuffle writes neither index nor metadata.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, FormatError
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
from tokenfeed.format.foreign.boundaries import by_eos
from tokenfeed.format.foreign.file import Boundaries, ForeignFile
from tokenfeed.storage.files import Part
from tokenfeed.types import Ints

__all__ = ["open_datatrove"]

_DTYPES: dict[str, np.dtype[Any]] = {"2": np.dtype("<u2"), "4": np.dtype("<u4")}
_LONGEST_METADATA = 1 << 16


def open_datatrove(path: Path, *, dtype: np.dtype[Any] | None, eos: int | None) -> ForeignFile:
    """A `.ds` with the files beside it. Reads the metadata and the last end; `document_starts` reads the index."""
    stated, stated_count = _read_metadata(_beside(path, "metadata"))
    dtype = _choose_dtype(path, stated, dtype)
    part = Part(str(path), measure(path))
    num_items = count_items(path, part.file_bytes, dtype)
    if stated_count is not None and stated_count != num_items:
        where = _beside(path, "metadata")
        expected = f"{num_items:,}, the {dtype} items in {path.name}"
        raise wrong(where, "token count", expected=expected, found=stated_count)
    columns = {"tokens": (dtype, part)}
    loss = _beside(path, "loss")
    if is_file(loss):
        columns["loss"] = (np.dtype(np.bool_), _open_loss(loss, num_items))
    index = _beside(path, "index")
    boundaries = _open_index(index, num_items) if is_file(index) else by_eos(part, num_items, dtype, eos)
    return ForeignFile(path, num_items, columns, boundaries)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.name}.{kind}")


def _read_metadata(path: Path) -> tuple[np.dtype[Any] | None, int | None]:
    """(dtype, token count), each None if not recorded; early versions wrote no token size.

    The first line is `tokenizer|token size`, and the tokenizer may contain `|` as well: `Unknown Tokenizer|2|2`.
    """
    if not is_file(path):
        return None, None
    lines = peek(path, _LONGEST_METADATA).decode("utf-8", "replace").splitlines()
    return (_parse_dtype(path, lines[0]) if lines else None), (_parse_count(path, lines[1]) if lines[1:] else None)


def _parse_dtype(path: Path, line: str) -> np.dtype[Any] | None:
    _, bar, size = line.rpartition("|")
    if bar and size not in _DTYPES:
        raise wrong(path, "token size", expected="2 or 4", found=repr(size[:80]), kind=FormatError)
    return _DTYPES.get(size) if bar else None


def _parse_count(path: Path, line: str) -> int:
    try:
        return int(line)
    except ValueError as error:
        found = repr(line[:80])
        raise wrong(path, "token count", expected="a number", found=found) from error


def _choose_dtype(path: Path, stated: np.dtype[Any] | None, given: np.dtype[Any] | None) -> np.dtype[Any]:
    if stated is not None:
        return agree(_beside(path, "metadata"), stated, given)
    if given is None:
        raise ArgumentError(f"{path} has no .metadata with the size of a token; give dtype='uint16' or 'uint32'")
    if given not in _DTYPES.values():
        raise ArgumentError(f"dtype is {given}; a datatrove file ({path}) holds uint16 or uint32")
    return given


def _open_loss(path: Path, num_items: int) -> Part:
    part = Part(str(path), measure(path))
    if part.file_bytes != num_items:
        expected = f"{num_items:,} bytes, one per token"
        raise wrong(path, "size", expected=expected, found=f"{part.file_bytes:,} bytes")
    return part


def _open_index(path: Path, num_items: int) -> Boundaries:
    part = Part(str(path), measure(path))
    count = count_items(path, part.file_bytes, np.dtype("<u8"))
    last = int.from_bytes(read_at(path, part.file_bytes - 8, 8), "little") if count else 0
    if last != num_items:
        expected = f"{num_items:,}, the number of tokens"
        raise wrong(path, "end of the last document", expected=expected, found=last)
    return Boundaries(partial(_find_documents, path, count), (part,))


def _find_documents(path: Path, count: int) -> Ints:
    """One pass over the index, in slices; 8 bytes of memory per document.

    Ends 3 3 8: documents [0, 3) [3, 3) [3, 8), starts 0 3 3.
    """
    starts = np.zeros(count + 1, np.int64)
    for first, ends in read_slices(path, "<i8", count):  # an end of 2**63 and more shows as negative, so unsorted
        starts[first + 1 : first + 1 + ends.size] = ends
    check_sorted(path, "document start", starts)
    return starts[:-1]
