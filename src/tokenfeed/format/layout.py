"""File names in a store: the only module that knows them. `docs/format.md` describes the layout."""

import re
from collections.abc import Mapping

import numpy as np

from tokenfeed.errors import FormatError

__all__ = [
    *("CHECKED_BYTES", "MANIFEST", "PREPARED", "PREPARE_PLAN", "SHARD", "SHARD_SUMS", "SPAN_DTYPE", "SUM_DTYPE"),
    *("check_name", "column_file", "first_sums", "span_files"),
]

MANIFEST = "manifest.json"
PREPARE_PLAN = ".prepare/plan.json"
"""Plan of a store that `prepare` made or is making. Such a store is complete once it is sealed."""
PREPARED = ".prepare/slices"
"""Folder of its records: one for each part of its inputs that is done, which names the shards made of it."""
SHARD = "shard.json"
SHARD_SUMS = "shard.blocks.npy"
CHECKED_BYTES = 4096
"""Size of the blocks that it has checksums of."""

SPAN_DTYPE = np.dtype("<i8")
SUM_DTYPE = np.dtype("<u8")

_NAMES = {
    "column": re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}"),
    "span table": re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}"),
    "split": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"),
    "shard": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}"),
}


def check_name(kind: str, name: object, where: str) -> str:
    """Return `name` if it is plain: no separators, no leading dot, nothing that could point outside the store."""
    if not isinstance(name, str) or not _NAMES[kind].fullmatch(name):
        raise FormatError(f"{where}: {name!r} is not a valid name for a {kind}; expected {_NAMES[kind].pattern}")
    return name


def column_file(column: str) -> str:
    return f"{column}.npy"


def span_files(table: str, *, payloads: bool = True) -> list[str]:
    """Starts and anchors of a span table; and offsets and payload, if it has payloads: in the kernels' order."""
    names = ("starts.npy", "anchors.npy", "offsets.npy", "payload.bin")
    return [f"{table}.{name}" for name in (names if payloads else names[:2])]


def first_sums(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Position of each file's first block checksum in the file of them all, given all sizes; and the number of all.

    Files are in the order of their names:  a 5000 bytes, b 0, c 4096   →   a 0, b 2, c 2; 3 in all
    """
    firsts, total = {}, 0
    for name in sorted(sizes):
        firsts[name] = total
        total += -(-sizes[name] // CHECKED_BYTES)
    return firsts, total
