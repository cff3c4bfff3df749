"""`ForeignFile`: the common description of a token file of another system, and its identity."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.format.foreign.access import read_at
from tokenfeed.format.manifest import Column
from tokenfeed.format.npy import descr_to_json
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.files import Part
from tokenfeed.types import Ints

__all__ = ["Boundaries", "ForeignFile"]

_BLOCKS, _BLOCK_BYTES = 16, 4096


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of documents: how to find them, and what they depend on besides the tokens."""

    find: Callable[[], Ints]
    """First item of each document, non-decreasing from 0. Reads O(documents), or all tokens where an EOS ends a
    document, in slices, and checks what it reads."""
    files: tuple[Part, ...] = ()
    eos: int | None = None


@dataclass(frozen=True)
class ForeignFile:
    """A token file of another system, described without reading it: opening takes O(1) whatever its size."""

    path: Path
    num_items: int
    dtypes: Mapping[str, tuple[np.dtype[Any], Part]]
    """Dtype and file of each column: `tokens`, and anything else with one value per token."""
    boundaries: Boundaries | None
    """Boundaries of documents; None if nothing says where documents begin."""

    @property
    def name(self) -> str:
        """File name, for messages and locations."""
        return self.path.name

    @property
    def columns(self) -> dict[str, Column]:
        return {name: Column(dtype) for name, (dtype, _) in self.dtypes.items()}

    @property
    def parts(self) -> dict[str, Part]:
        """File of each column."""
        return {name: part for name, (_, part) in self.dtypes.items()}

    @property
    def document_starts(self) -> Callable[[], Ints] | None:
        """Function that finds the first item of each document."""
        return None if self.boundaries is None else self.boundaries.find

    def identity(self) -> str:
        """Checksum of dtypes, sizes, headers, 16 blocks of 4 KiB of each file, and the EOS that ends documents.

        It does not depend on the path. Reads at most 64 KiB per file.
        """
        files = list(self.parts.values())
        if self.boundaries is not None:
            files += self.boundaries.files
        described = [
            [[name, descr_to_json(dtype)] for name, (dtype, _) in self.dtypes.items()],
            [[part.file_bytes, part.header.hex()] for part in files],
            None if self.boundaries is None else self.boundaries.eos,
        ]
        return checksum(json.dumps(described).encode() + b"".join(block for part in files for block in _sample(part)))


def _sample(part: Part) -> Sequence[bytes]:
    """Evenly spaced blocks, including the first and last bytes; the whole file if it is no longer than the blocks."""
    if part.file_bytes <= _BLOCKS * _BLOCK_BYTES:
        return [read_at(Path(part.path), 0, part.file_bytes)]
    last = part.file_bytes - _BLOCK_BYTES
    starts = [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return [read_at(Path(part.path), start, _BLOCK_BYTES) for start in starts]
