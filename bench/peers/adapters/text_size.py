"""Bytes of text in Parquet files."""

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["text_bytes"]


def text_bytes(folder: Path) -> int:
    return sum(
        pc.sum(pc.binary_length(pq.read_table(path).column("text"))).as_py() for path in folder.glob("*.parquet")
    )
