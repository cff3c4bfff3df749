"""Texts encoded one at a time on a few threads, for engines that leave the division of work to us."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Workers", "available_cores"]


class Workers:
    """Threads that are kept from call to call, the calling one among them; started anew in a forked process."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0
        self._process = os.getpid()

    def encode_each(
        self, encode: Callable[[str], npt.NDArray[Any]], texts: Sequence[str], threads: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """What `encode` gives for every text, joined. Long texts are begun first, so that threads end together."""
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
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
