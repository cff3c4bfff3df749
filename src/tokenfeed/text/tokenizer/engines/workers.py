"""Parts that engines share: threads that encode texts one at a time, and vocabularies as rank files."""

import base64
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.text.tokenizer.vocabulary import Vocabulary
from tokenfeed.types import Ints

__all__ = ["Encoded", "RankFileEngine", "TokenIds", "Workers", "available_cores"]

TokenIds = npt.NDArray[np.uint32]
Encoded = tuple[TokenIds, Ints]
"""The tokens of all texts one after the other, and the offset of each text's first token, plus the end."""


class Workers:
    """Threads that are kept between calls. A forked process starts its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0
        self._process = os.getpid()

    def encode_each(self, encode: Callable[[str], TokenIds], texts: Sequence[str], threads: int) -> Encoded:
        """Encode text by text on `threads` threads, the caller's included. Long texts go first: all end together."""
        parts: list[Any] = [None] * len(texts)
        threads = min(threads, len(texts))
        if threads <= 1:
            for number, text in enumerate(texts):
                parts[number] = encode(text)
        else:
            numbers = iter(sorted(range(len(texts)), key=lambda number: len(texts[number]), reverse=True))

            def work() -> None:
                for number in numbers:
                    parts[number] = encode(texts[number])

            pool = self._threads(threads - 1)
            others = [pool.submit(work) for _ in range(threads - 1)]
            work()
            for other in others:
                other.result()
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
        return np.concatenate((np.empty(0, np.uint32), *parts)), offsets

    def _threads(self, size: int) -> ThreadPoolExecutor:
        if self._pool is None or size > self._size or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(size, thread_name_prefix="tokenfeed-encode")
            self._size, self._process = size, os.getpid()
        return self._pool


def available_cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class RankFileEngine(ABC):
    """An engine that loads a file of ranks, and that encodes a whole batch on all cores or one text on one.

    With fewer threads than cores, texts are encoded one at a time on that many threads.
    """

    is_parallel = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        # The file holds ordinary tokens only, numbered from 0 without holes: engines then find no special token in a
        # text. `_table` gives the ids of those numbers, if they differ.
        tokens = sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
        lines = [b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
        with tempfile.TemporaryDirectory(prefix="tokenfeed-") as folder:
            path = Path(folder, "ranks.tiktoken")
            path.write_bytes(b"".join(lines))
            self._load(str(path), vocabulary.pattern)
        ids = np.fromiter((vocabulary.ranks[token] for token in tokens), np.uint32, len(tokens))
        self._table = None if ids[-1] == len(ids) - 1 else ids
        self._cores = available_cores()
        self._workers = Workers()

    @abstractmethod
    def _load(self, path: str, pattern: str) -> None: ...

    @abstractmethod
    def _encode_one(self, text: str) -> TokenIds: ...

    @abstractmethod
    def _encode_all(self, texts: Sequence[str]) -> Encoded: ...

    def encode(self, texts: Sequence[str], threads: int) -> Encoded:
        if threads < self._cores:
            ids, offsets = self._workers.encode_each(self._encode_one, texts, threads)
        else:
            ids, offsets = self._encode_all(texts)
        return (ids if self._table is None else self._table[ids]), offsets
