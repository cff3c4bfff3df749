"""Text files read slice by slice, as `prepare` reads them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tokenfeed.preparation.inputs import cut, find_inputs, read_slice
from tokenfeed.text.sources.portions import Group, Portion, TextRules, as_str

__all__ = ["lines_of", "read", "strings", "texts", "zstd"]


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def lines_of(*documents: object) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def read(path: Path, how: TextRules | None = None, slice_bytes: int = 1 << 26) -> list[Portion]:
    (file,) = find_inputs(path)
    parts = cut(0, file, slice_bytes=slice_bytes)
    return [portion for part in parts for portion in read_slice(file, part, how or TextRules())]


def texts(portions: list[Portion]) -> list[str]:
    return [text for portion in portions for text in portion.texts]


def strings(group: Group, size: int) -> Iterator[tuple[int, list[str | None]]]:
    """`group.batches(size)`, whatever its texts are kept as."""
    for first, found in group.batches(size):
        yield first, [None if text is None else as_str(text) for text in found]
