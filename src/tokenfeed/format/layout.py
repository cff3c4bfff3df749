"""Where everything lies in a store: the only place that knows a file name. `docs/format.md` is its prose."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import FormatError
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.checked import CHECKED_BYTES

__all__ = [
    "MANIFEST",
    "SHARD",
    "SHARD_SUMS",
    "SPAN_DTYPE",
    "SPAN_HEADER_BYTES",
    "SUM_DTYPE",
    "SpanFiles",
    "check_name",
    "column_file",
    "first_sums",
    "shard_files",
    "span_files",
]

MANIFEST = "manifest.json"
SHARD = "shard.json"
SHARD_SUMS = "shard.blocks.npy"

SPAN_DTYPE = np.dtype("<i8")
SPAN_HEADER_BYTES = len(build_header(SPAN_DTYPE, (), 0))
SUM_DTYPE = np.dtype("<u8")

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


def shard_files(columns: Mapping[str, object], spans: Mapping[str, str | None]) -> list[str]:
    """The files of data that a shard has, sorted. `spans` gives the codecs; a table without has no payloads."""
    names = [column_file(column) for column in columns]
    for table, codec in spans.items():
        names += span_files(table) if codec is not None else span_files(table)[:2]
    return sorted(names)


def first_sums(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where in a file of block checksums those of each file begin, given the sizes of all; and how many there are.

    They follow each other in the order of the names:  a 5000 bytes, b 0, c 4096   →   a 0, b 2, c 2; 3 in all
    """
    firsts, total = {}, 0
    for name in sorted(sizes):
        firsts[name] = total
        total += -(-sizes[name] // CHECKED_BYTES)
    return firsts, total
