"""Encoding of texts one at a time on a few threads, for engines that do not divide the work themselves."""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Workers", "available_cores"]


class Workers:
    """Threads that are kept between calls. A forked process starts its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0
        self._process = os.getpid()

    def encode_each(
        self, encode: Callable[[str], npt.NDArray[Any]], texts: Sequence[str], threads: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The tokens of all texts, joined, and offsets. Long texts go first, so that all threads end together.

        The calling thread is one of the `threads`.
        """
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
