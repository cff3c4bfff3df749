"""What all tokenizers are asked: the same texts in batches of 1,024, delivered as NumPy, by one thread and by two."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from vocabulary import load_encoding

__all__ = ["Rival"]

_BATCH = 1024
Encode = Callable[[list[str], int], Any]  # texts, threads → a flat array


class Rival:
    """`encode(texts, threads)` gives a flat array of tokens."""

    def __init__(self) -> None:
        self.encode: Encode | None = None

    def load(self, folder: str, encode: Encode) -> dict[str, Any]:
        texts = [text for text in pq.read_table(Path(folder) / "0.parquet").column("text").to_pylist() if text]
        self.batches = [texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)]
        self.megabytes = sum(len(text.encode()) for text in texts) / 1e6
        self.encode = encode
        encoding, _ = load_encoding(Path(folder))
        expected = _digest(ids for batch in self.batches for ids in encoding.encode_ordinary_batch(batch))
        return {"exact": _digest(self.encode(batch, 2) for batch in self.batches) == expected}

    def measure(self) -> dict[str, float]:
        return {name: self._rate(threads) for name, threads in (("one", 1), ("two", 2))}

    def _rate(self, threads: int) -> float:
        assert self.encode is not None
        began = time.perf_counter()
        for batch in self.batches:
            self.encode(batch, threads)
        return self.megabytes / (time.perf_counter() - began)


def _digest(parts: Any) -> str:
    """Of all tokens in a row, however they are cut."""
    digest = hashlib.sha1()
    for part in parts:
        digest.update(np.asarray(part, np.uint32).tobytes())
    return digest.hexdigest()
