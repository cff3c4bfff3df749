"""`.bin` files with a header of 256 × i32 (magic, version, token count): llm.c, modded-nanogpt and NeMo Automodel."""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError, FormatError
from tokenfeed.format.foreign.access import measure, mismatch, peek
from tokenfeed.format.foreign.boundaries import by_eos
from tokenfeed.format.foreign.file import ForeignFile, describe
from tokenfeed.storage.files import Part

__all__ = ["is_headed", "open_headed"]

_HEADER_BYTES = 256 * 4
_RAW = "If it is no such file but raw items that begin like one, give their dtype."


class _Kind(NamedTuple):
    writer: str
    version: int
    item_bytes: int | None
    """None where the header says it, behind the count."""


_EVALUATION = 20240522
_KINDS = {
    20240520: _Kind("llm.c", 1, 2),
    20240801: _Kind("llm.c (Llama 3)", 7, 4),
    278895051: _Kind("NeMo Automodel", 1, None),
}


def is_headed(start: bytes) -> bool:
    """Whether a file that begins with these bytes has such a header."""
    magic = int.from_bytes(start[:4], "little")
    return len(start) >= 4 and (magic == _EVALUATION or magic in _KINDS)


def open_headed(path: Path, *, eos: int | None) -> ForeignFile:
    """The items behind the header. Reads the header."""
    header = peek(path, _HEADER_BYTES)
    magic = int.from_bytes(header[:4], "little")
    if magic == _EVALUATION:
        raise FormatError(
            f"{path}: magic is {magic}, a file of llm.c evaluation examples; expected a file of tokens. {_RAW}"
        )
    kind = _KINDS[magic]
    if len(header) < _HEADER_BYTES:
        expected = f"at least {_HEADER_BYTES:,} bytes, the header of a {kind.writer} file"
        raise CorruptionError(f"{mismatch(path, 'size', expected=expected, found=f'{len(header):,} bytes')}. {_RAW}")
    version, count, stated = struct.unpack_from("<3i", header, 4)
    if version != kind.version:
        expected = f"{kind.version} in a {kind.writer} file"
        raise FormatError(f"{mismatch(path, 'version', expected=expected, found=version)}. {_RAW}")
    item_bytes = stated if kind.item_bytes is None else kind.item_bytes
    if item_bytes not in (2, 4):
        raise FormatError(f"{mismatch(path, 'item size', expected='2 or 4', found=item_bytes)}. {_RAW}")
    if count < 0:
        raise CorruptionError(f"{mismatch(path, 'token count', expected='at least 0', found=count)}. {_RAW}")
    dtype, file_bytes = np.dtype(f"<u{item_bytes}"), measure(path)
    if _HEADER_BYTES + count * item_bytes != file_bytes:
        expected = f"{_HEADER_BYTES + count * item_bytes:,} bytes for a token count of {count:,} ({dtype})"
        raise CorruptionError(f"{mismatch(path, 'size', expected=expected, found=f'{file_bytes:,} bytes')}. {_RAW}")
    part = Part(str(path), file_bytes, _HEADER_BYTES, header)
    return describe(path, count, {"tokens": (dtype, part)}, by_eos(part, count, dtype, eos))
