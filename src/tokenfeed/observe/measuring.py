"""Measures how fast this machine reads a store: the work of `tokenfeed bench`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.permutation import Permutation
from tokenfeed.store.store import Store

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
    ways: list[Literal["pread", "mmap"]] = [] if windows.reader.remote is not None else ["pread", "mmap"]
    share = seconds / (len(ways) + 1)
    loader = Loader(windows, batch_size, seed=seed, threads=threads, rank=0, world_size=1)
    next(loader)
    first = time.perf_counter() - began  # includes loading the kernels in a new process
    for backend in ways:
        yield _measure_reads(backend, open_store, length, batch_size, share, seed)
    for _ in range(_WARM_BATCHES):
        next(loader)
    began = time.perf_counter()
    before = loader.stats()
    while time.perf_counter() - began < share:
        next(loader)
    stats = loader.stats()
    loader.close()
    samples = stats.samples - before.samples
    yield Measurement(
        "loader",
        time.perf_counter() - began,
        stats.batches - before.batches,
        samples,
        stats.items - before.items,
        samples * windows.sample_bytes,
        first,
    )


def _measure_reads(
    backend: str, open_store: Callable[..., Store], length: int, batch_size: int, seconds: float, seed: int
) -> Measurement:
    opened = time.perf_counter()
    windows = open_store(backend=backend).windows(length)
    order = Permutation(len(windows), seed=seed + 1)
    number, first = 0, 0.0
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds or number <= _WARM_BATCHES:
        if number == _WARM_BATCHES:
            began = now
        samples = (np.arange(batch_size) + number * batch_size) % len(windows)
        batch: Any = windows.read(order(samples))
        number += 1
        first = first or time.perf_counter() - opened
    elapsed = time.perf_counter() - began
    read = (number - _WARM_BATCHES) * len(batch)
    return Measurement(
        backend, elapsed, number - _WARM_BATCHES, read, read * length, read * windows.sample_bytes, first
    )
