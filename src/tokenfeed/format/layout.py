"""Where everything lies in a store: the only place that knows a file name. `docs/format.md` is its prose."""

import re
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import FormatError
from tokenfeed.format.npy import build_header

__all__ = [
    "MANIFEST",
    "SHARD",
    "SPAN_DTYPE",
    "SPAN_HEADER_BYTES",
    "SpanFiles",
    "check_name",
    "column_file",
    "span_files",
]

MANIFEST = "manifest.json"
SHARD = "shard.json"

SPAN_DTYPE = np.dtype("<i8")
SPAN_HEADER_BYTES = len(build_header(SPAN_DTYPE, (), 0))

_NAMES = {
    "column": re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}"),
    "span table": re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}"),
    "split": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"),
    "shard": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}"),
}


class SpanFiles(NamedTuple):
    """The file names of one span table, in the order in which kernels number them."""

    starts: str
    anchors: str
    offsets: str
    payload: str


def check_name(kind: str, name: object, *, where: str) -> str:
    """`name`, if it is a plain one: no separators, no leading dot, nothing that could point outside the store."""
    if not isinstance(name, str) or not _NAMES[kind].fullmatch(name):
        raise FormatError(f"{where}: {name!r} is no name for a {kind}; docs/format.md says which are")
    return name


def column_file(column: str) -> str:
    return f"{column}.npy"


def span_files(table: str) -> SpanFiles:
    return SpanFiles(f"{table}.starts.npy", f"{table}.anchors.npy", f"{table}.offsets.npy", f"{table}.payload.bin")
