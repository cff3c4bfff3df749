"""Measures how fast this machine reads a store: the work of `tokenfeed bench`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.permutation import Permutation
from tokenfeed.store.store import Store
from tokenfeed.store.windows import Windows

__all__ = ["Measurement", "measure_store"]

_WARM_BATCHES = 3


@dataclass(frozen=True)
class Measurement:
    """The speed of one way of reading."""

    name: str
    seconds: float
    """Measured time."""
    batches: int
    windows: int
    items: int
    num_bytes: int
    seconds_to_first: float
    """Time from opening the store to the first batch."""

    def rates(self) -> dict[str, float]:
        """Windows, items and bytes per second."""
        counts = {"windows": self.windows, "items": self.items, "bytes": self.num_bytes}
        return {f"{name}_per_second": count / max(self.seconds, 1e-9) for name, count in counts.items()}


def measure_store(
    open_store: Callable[..., Store], *, length: int, batch_size: int, seconds: float, threads: int, seed: int = 0
) -> Iterator[Measurement]:
    """Read shuffled windows for `seconds` in all, in three ways: positional reads, mapped files, and a loader.

    `open_store(backend=…)` opens the store again for each way. A remote store is read by a loader only. The page cache
    stays as it is and fills while measuring. Ctrl-C stops at once.
    """
    began = time.perf_counter()
    windows = open_store(backend="pread").windows(length)
    if len(windows) == 0:
        raise ArgumentError(f"the store has no window of {length:,} + 1 items; choose a smaller length")
    backends = () if windows.reader.remote is not None else ("pread", "mmap")
    share = seconds / (len(backends) + 1)
    with Loader(windows, batch_size, seed=seed, threads=threads, rank=0, world_size=1) as loader:
        next(loader)  # includes loading the kernels in a new process
        first = time.perf_counter() - began
        for backend in backends:
            opened = time.perf_counter()
            view = open_store(backend=backend).windows(length)
            order = Permutation(len(view), seed=seed + 1)
            batches = (order(np.arange(start, start + batch_size) % len(view)) for start in count(0, batch_size))
            reads = (len(view.read(indices)) for indices in batches)
            next(reads)
            yield _measure(backend, reads, share, view, time.perf_counter() - opened)
        yield _measure("loader", (len(batch.samples) for batch in loader), share, windows, first)


def _measure(name: str, reads: Iterator[int], seconds: float, view: Windows, first: float) -> Measurement:
    """Take batches, of which `reads` tells the number of windows, for so long."""
    for _ in range(_WARM_BATCHES):
        next(reads)
    began, batches, windows = time.perf_counter(), 0, 0
    while (elapsed := time.perf_counter() - began) < seconds or not batches:
        windows += next(reads)
        batches += 1
    return Measurement(name, elapsed, batches, windows, windows * view.length, windows * view.sample_bytes, first)
