"""`ForeignFile`: what every format is turned into, and how such a file is identified."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.format.foreign.access import read_at
from tokenfeed.format.manifest import Column
from tokenfeed.format.npy import descr_to_json
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.files import Part

__all__ = ["Boundaries", "ForeignFile", "Starts", "describe"]

Starts = npt.NDArray[np.int64]

_BLOCKS, _BLOCK_BYTES = 16, 4096


@dataclass(frozen=True)
class Boundaries:
    """Where documents begin: how to find out, and what the answer depends on besides the tokens."""

    find: Callable[[], Starts]
    files: tuple[Part, ...] = ()
    eos: int | None = None


@dataclass(frozen=True)
class ForeignFile:
    """A token file of another system, described and not read: opening costs O(1) whatever its size."""

    name: str
    """The file name, for messages and locations."""
    num_items: int
    columns: Mapping[str, Column]
    """`tokens`, and what else has one value per token."""
    parts: Mapping[str, Part]
    """Where each column lies."""
    document_starts: Callable[[], Starts] | None
    """The first item of each document, non-decreasing from 0. Reads O(documents), or all tokens where they are found
    by their EOS, in slices; checks what it reads. None where nothing says where documents begin."""
    identity: Callable[[], str]
    """A checksum of dtypes, sizes, headers, 16 blocks of 4 KiB of each file, and the EOS that cuts documents. It does
    not depend on the path. Reads at most 64 KiB a file."""


def describe(
    path: Path, num_items: int, columns: Mapping[str, tuple[np.dtype[Any], Part]], boundaries: Boundaries | None
) -> ForeignFile:
    """The foreign file at `path` with these columns, each a dtype and the part that holds it."""
    return ForeignFile(
        name=path.name,
        num_items=num_items,
        columns={name: Column(dtype) for name, (dtype, _) in columns.items()},
        parts={name: part for name, (_, part) in columns.items()},
        document_starts=None if boundaries is None else boundaries.find,
        identity=partial(_identify, columns, boundaries),
    )


def _identify(columns: Mapping[str, tuple[np.dtype[Any], Part]], boundaries: Boundaries | None) -> str:
    files = [part for _, part in columns.values()]
    if boundaries is not None:
        files += boundaries.files
    described = [
        [[name, descr_to_json(dtype)] for name, (dtype, _) in columns.items()],
        [[part.file_bytes, part.header.hex()] for part in files],
        None if boundaries is None else boundaries.eos,
    ]
    return checksum(json.dumps(described).encode() + b"".join(block for part in files for block in _sample(part)))


def _sample(part: Part) -> Sequence[bytes]:
    """Evenly spaced blocks, the first and the last bytes among them; all of a file that is no longer than those."""
    if part.file_bytes <= _BLOCKS * _BLOCK_BYTES:
        return [read_at(Path(part.path), 0, part.file_bytes)]
    last = part.file_bytes - _BLOCK_BYTES
    starts = [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return [read_at(Path(part.path), start, _BLOCK_BYTES) for start in starts]
