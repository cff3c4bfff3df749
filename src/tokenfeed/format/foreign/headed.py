"""`.bin` files with a header of 256 × i32 (magic, version, token count): llm.c, modded-nanogpt and NeMo Automodel."""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import FormatError
from tokenfeed.format.foreign.access import measure, peek, wrong
from tokenfeed.format.foreign.boundaries import by_eos
from tokenfeed.format.foreign.file import ForeignFile
from tokenfeed.storage.files import Part

__all__ = ["is_headed", "open_headed"]

_HEADER_BYTES = 256 * 4
_RAW = "If the file is raw items that happen to begin like this, give their dtype"


class _Kind(NamedTuple):
    writer: str
    version: int
    item_bytes: int | None
    """Bytes per item; None if the header records it, after the count."""


_EVALUATION = 20240522
_KINDS = {
    20240520: _Kind("llm.c", 1, 2),
    20240801: _Kind("llm.c (Llama 3)", 7, 4),
    278895051: _Kind("NeMo Automodel", 1, None),
}


def is_headed(start: bytes) -> bool:
    """Whether a file that starts with these bytes has such a header."""
    magic = int.from_bytes(start[:4], "little")
    return len(start) >= 4 and (magic == _EVALUATION or magic in _KINDS)


def open_headed(path: Path, *, eos: int | None) -> ForeignFile:
    """The items after the header. Reads the header."""
    header = peek(path, _HEADER_BYTES)
    magic = int.from_bytes(header[:4], "little")
    if magic == _EVALUATION:
        raise FormatError(f"{path}: magic is {magic}, evaluation examples of llm.c; expected a file of tokens. {_RAW}")
    kind = _KINDS[magic]
    if len(header) < _HEADER_BYTES:
        expected = f"at least {_HEADER_BYTES:,} bytes, the header of a {kind.writer} file"
        raise wrong(path, "size", expected=expected, found=f"{len(header):,} bytes", advice=_RAW)
    version, count, stated = struct.unpack_from("<3i", header, 4)
    if version != kind.version:
        expected = f"{kind.version} in a {kind.writer} file"
        raise wrong(path, "version", expected=expected, found=version, kind=FormatError, advice=_RAW)
    item_bytes = stated if kind.item_bytes is None else kind.item_bytes
    if item_bytes not in (2, 4):
        raise wrong(path, "item size", expected="2 or 4", found=item_bytes, kind=FormatError, advice=_RAW)
    if count < 0:
        raise wrong(path, "token count", expected="at least 0", found=count, advice=_RAW)
    dtype, file_bytes = np.dtype(f"<u{item_bytes}"), measure(path)
    if _HEADER_BYTES + count * item_bytes != file_bytes:
        expected = f"{_HEADER_BYTES + count * item_bytes:,} bytes for a token count of {count:,} ({dtype})"
        raise wrong(path, "size", expected=expected, found=f"{file_bytes:,} bytes", advice=_RAW)
    part = Part(str(path), file_bytes, _HEADER_BYTES, header)
    return ForeignFile(path, count, {"tokens": (dtype, part)}, by_eos(part, count, dtype, eos))
