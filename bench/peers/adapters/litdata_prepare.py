"""litdata: optimize with a function that encodes the documents of one file."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from litdata import TokensLoader, optimize
from text_size import text_bytes
from vocabulary import load_encoding

PACKAGES = ("litdata", "tiktoken")
SETTINGS = (
    "optimize(num_workers=2, chunk_size=2049·8012, TokensLoader), one Parquet file an input, tiktoken a document "
    "at a time"
)
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def _encode(folder: str, path: str) -> Any:
    encoding, bos = load_encoding(Path(folder))
    for text in pq.read_table(path).column("text").to_pylist():
        yield torch.tensor([bos, *encoding.encode_ordinary(text)], dtype=torch.uint16)


def prepare(folder: str, out: str, workers: int) -> Any:
    parts = Path(folder) / "parts"
    began = time.perf_counter()
    optimize(
        fn=partial(_encode, folder),
        inputs=[str(path) for path in sorted(parts.glob("*.parquet"))],
        output_dir=f"{out}/chunks",
        chunk_size=2049 * 8012,
        item_loader=TokensLoader(),
        num_workers=workers,
        verbose=False,
    )
    seconds = time.perf_counter() - began
    index = json.loads((Path(out) / "chunks" / "index.json").read_text())
    tokens = sum(chunk["dim"] for chunk in index["chunks"])
    return {"megabytes_per_second": text_bytes(parts) / 1e6 / seconds, "tokens": tokens}
