"""datatrove: `.ds` holds the tokens, `.index` the ends of documents, `.metadata` the token size, `.loss` a mask.

The mask says which tokens are learned. It becomes the column `loss_mask`, which views apply unless told not to.

All files but the first are optional: a context shuffle writes neither index nor metadata.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.format.foreign import file
from tokenfeed.format.foreign.file import Boundaries, ForeignFile, is_file, read_slices, whole, wrong
from tokenfeed.format.foreign.plain import by_eos
from tokenfeed.types import Ints

__all__ = ["open_datatrove"]

_DTYPES: dict[str, np.dtype[Any]] = {"2": np.dtype("<u2"), "4": np.dtype("<u4")}
_LONGEST_METADATA = 1 << 16


def open_datatrove(path: Path, *, dtype: np.dtype[Any] | None, eos: int | None) -> ForeignFile:
    """A `.ds` with the files beside it. Reads the metadata and the last end; finding documents reads the index."""
    metadata, loss, index = (path.with_name(f"{path.name}.{kind}") for kind in ("metadata", "loss", "index"))
    stated, stated_count = _read_metadata(metadata)
    if stated is not None:
        dtype = file.agree(metadata, stated, dtype)
    elif dtype is None:
        raise ArgumentError(f"{path} has no .metadata with the size of a token; give dtype='uint16' or 'uint32'")
    elif dtype not in _DTYPES.values():
        raise ArgumentError(f"dtype is {dtype}; a datatrove file ({path}) holds uint16 or uint32")
    part = whole(path, dtype)
    num_items = part.file_bytes // dtype.itemsize
    if stated_count not in (None, num_items):
        expected = f"{num_items:,}, the {dtype} items in {path.name}"
        raise wrong(metadata, "token count", expected=expected, found=stated_count)
    columns = {"tokens": (dtype, part)}
    if is_file(loss):
        file.check_size(loss, num_items, ", one per token")
        columns["loss_mask"] = (np.dtype(np.bool_), whole(loss))
    boundaries = _open_index(index, num_items) if is_file(index) else by_eos(part, dtype, eos)
    return ForeignFile(columns, boundaries)


def _read_metadata(path: Path) -> tuple[np.dtype[Any] | None, int | None]:
    """(dtype, token count), each None if not recorded; early versions wrote no token size.

    The first line is `tokenizer|token size`, and the tokenizer may contain `|` as well: `Unknown Tokenizer|2|2`.
    """
    if not is_file(path):
        return None, None
    first, count, *_ = [*file.peek(path, _LONGEST_METADATA).decode("utf-8", "replace").splitlines(), "", ""]
    _, bar, size = first.rpartition("|")
    if bar and size not in _DTYPES:
        raise wrong(path, "token size", expected="2 or 4", found=repr(size[:80]), kind=FormatError)
    try:
        return _DTYPES[size] if bar else None, int(count) if count else None
    except ValueError as error:
        raise wrong(path, "token count", expected="a number", found=repr(count[:80])) from error


def _open_index(path: Path, num_items: int) -> Boundaries:
    part = whole(path, np.dtype("<u8"))
    last = int.from_bytes(file.read_at(path, part.file_bytes - 8, 8), "little") if part.file_bytes else 0
    if last != num_items:
        expected = f"{num_items:,}, the number of tokens"
        raise wrong(path, "end of the last document", expected=expected, found=last)
    return Boundaries(partial(_find_documents, path, part.file_bytes // 8), (part,))


def _find_documents(path: Path, count: int) -> Ints:
    """One pass over the index, in slices; 8 bytes of memory per document.

    Ends 3 3 8: documents [0, 3) [3, 3) [3, 8), starts 0 3 3.
    """
    starts = np.zeros(count + 1, np.int64)
    for first, ends in read_slices(path, "<i8", count):  # an end of 2**63 and more shows as negative, so unsorted
        starts[first + 1 : first + 1 + ends.size] = ends
    file.check_sorted(path, "document start", starts)
    return starts[:-1]
