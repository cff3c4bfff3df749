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
    """`make(folder)` gives, for the vocabulary in that folder, `encode(texts, threads)`."""

    def __init__(self, make: Callable[[Path], Encode]) -> None:
        self.make = make
        self.encode: Encode | None = None

    def load(self, folder: str, vocabulary: str, megabytes: float) -> dict[str, Any]:
        """MB/s of a first pass by two threads, and whether its tokens are those of tiktoken."""
        texts, size = [], 0.0
        for text in pq.read_table(Path(folder) / "0.parquet").column("text").to_pylist():
            if text and size < megabytes:
                texts.append(text)
                size += len(text.encode()) / 1e6
        self.batches = [texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)]
        self.megabytes = size
        self.encode = self.make(Path(folder) / vocabulary)
        self.encode(["first use"], 1)
        digest = hashlib.sha1()
        seconds = 0.0
        for batch in self.batches:
            began = time.perf_counter()
            tokens = self.encode(batch, 2)
            seconds += time.perf_counter() - began
            digest.update(np.asarray(tokens, np.uint32).tobytes())
        encoding, _ = load_encoding(Path(folder) / vocabulary)
        expected = hashlib.sha1()
        for batch in self.batches:
            for tokens in encoding.encode_ordinary_batch(batch):
                expected.update(np.asarray(tokens, np.uint32).tobytes())
        return {"first": [self.megabytes / seconds], "exact": digest.digest() == expected.digest()}

    def measure(self) -> dict[str, float]:
        return {name: self._rate(threads) for name, threads in (("one", 1), ("two", 2))}

    def _rate(self, threads: int) -> float:
        assert self.encode is not None
        began = time.perf_counter()
        for batch in self.batches:
            self.encode(batch, threads)
        return self.megabytes / (time.perf_counter() - began)
