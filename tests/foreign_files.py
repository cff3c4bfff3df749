"""Files of other systems, made byte by byte, and what a `ForeignFile` says of them."""

import gzip
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenfeed.errors import (
    CorruptionError,
    TokenfeedError,
)
from tokenfeed.format.foreign import ForeignFile, open_foreign

TOKENS = [5, 7, 0, 0, 3, 9, 0, 2]  # by EOS 0: [5 7 0] [0] [3 9 0] [2]
STARTS_BY_EOS = [0, 3, 4, 7]
Error = type[TokenfeedError]


def read(file: ForeignFile, column: str = "tokens") -> list[Any]:
    part = file.parts[column]
    data = Path(part.path).read_bytes()
    assert len(data) == part.file_bytes
    assert data.startswith(part.header)
    values = np.fromfile(part.path, file.columns[column].dtype, offset=part.byte_start)
    assert len(values) == file.num_items
    return list(values.tolist())


def starts(file: ForeignFile) -> list[int]:
    assert file.boundaries is not None
    found = file.boundaries.find()
    assert found.dtype == np.int64
    return list(found.tolist())


def refuse(path: Path, error: Error, message: str, **arguments: Any) -> None:
    with pytest.raises(error, match=message):
        open_foreign(path, **arguments)


def refuse_documents(path: Path, message: str, **arguments: Any) -> None:
    file = open_foreign(path, **arguments)
    with pytest.raises(CorruptionError, match=message):
        starts(file)


def put(path: Path, values: Sequence[int], dtype: str = "<u2") -> Path:
    path.write_bytes(np.array(values, dtype).tobytes())
    return path


def beside(path: Path, kind: str) -> Path:
    return path.with_name(path.name + kind)


def resize(path: Path, change: int) -> None:
    os.truncate(path, path.stat().st_size + change)


def megatron(
    folder: Path,
    lengths: Sequence[int] = (2, 1, 0, 4, 1),
    documents: Sequence[int] = (0, 2, 2, 4, 5),
    *,
    dtype: str = "<u2",
    code: int = 8,
    version: int = 1,
    magic: bytes = b"MMIDIDX\0\0",
    counts: tuple[int, int] | None = None,
    pointers: Sequence[int] | None = None,
    modes: bool = False,
) -> Path:
    """The prefix of a Megatron pair whose tokens are 0, 1, 2, …"""
    prefix = folder / "data.v1_document"
    items = np.arange(sum(lengths)).astype(dtype)
    beside(prefix, ".bin").write_bytes(items.tobytes())
    if pointers is None:
        pointers = [sum(lengths[:i]) * items.itemsize for i in range(len(lengths))]
    header = magic + struct.pack("<QBQQ", version, code, *(counts or (len(lengths), len(documents))))
    tables = np.array(lengths, "<i4").tobytes() + np.array([*pointers, *documents], "<i8").tobytes()
    beside(prefix, ".idx").write_bytes(header + tables + (bytes(len(lengths)) if modes else b""))
    return prefix


def datatrove(folder: Path, dtype: str = "<u2", ends: Sequence[int] = (3, 3, 8), metadata: str | None = None) -> Path:
    path = put(folder / "000_merged.ds", TOKENS, dtype)
    put(beside(path, ".index"), ends, "<u8")
    beside(path, ".loss").write_bytes(bytes([True, False] * 4))
    beside(path, ".metadata").write_text(metadata or f"a/b|c|{np.dtype(dtype).itemsize}\n{len(TOKENS)}\n8.00 T")
    return path


def olmo(folder: Path, rows: str | None = None, dtype: str = "<u2") -> Path:
    if rows is not None:
        (folder / "part-0.00.csv.gz").write_bytes(gzip.compress(rows.encode()))
    return put(folder / "part-0.00.npy", TOKENS, dtype)


def headed(path: Path, header: Sequence[int] = (20240520, 1, len(TOKENS)), dtype: str = "<u2") -> Path:
    padded = np.array([*header, *[0] * (256 - len(header))], "<i4")
    path.write_bytes(padded.tobytes() + np.array(TOKENS, dtype).tobytes())
    return path
