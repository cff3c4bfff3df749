"""`Segment`: a part of a run that repeats one period, and the tables that periods are looked up in."""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from tokenfeed.kernels import mixture as kernels
from tokenfeed.types import Floats, Ints

__all__ = ["Segment", "Table"]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Samples [start, stop) of the run: one period, over and over."""

    start: int
    stop: int
    period: int
    active: Ints
    """Sources drawn, in order; the table numbers them 0, 1, …"""
    counts: Ints
    """Number of places that each of them has in a period."""
    bases: Ints
    """Number of samples that each source, drawn or not, had before."""
    shares: Floats
    """Normalised weights that the counts stand for."""

    @classmethod
    def of(cls, start: int, stop: int, counts: Ints, bases: Ints, shares: Floats) -> "Segment":
        active = np.flatnonzero(counts).astype(np.int64)
        return cls(start, stop, int(counts.sum()), active, counts[active], bases, shares)

    @property
    def table(self) -> "Table":
        return _TABLES.get(self.counts)

    def locate(self, samples: Ints, sources: Ints, numbers: Ints) -> int:
        """Set the source, and the number in it, of those samples that lie in the segment. Returns how many do."""
        table, bases = self.table, self.bases[self.active]
        args = self.active, bases, self.counts, table.sources, table.ranks, sources, numbers
        return int(kernels.locate(samples, self.start, self.stop, *args))

    def count(self, stop: int) -> Ints:
        """How many samples each source has had before sample `stop` of the run. O(sources)."""
        periods, places = divmod(stop - self.start, self.period)
        inside = self.counts * periods
        if places:
            table, begun = self.table, np.empty_like(inside)
            kernels.count_before(places, self.period, table.offsets, table.positions, begun)
            inside += begun
        counts = self.bases.copy()
        counts[self.active] += inside
        return counts


class Table:
    """The places of a period with their indexes: three int32 a place. `kernels/mixture.py` has an example."""

    def __init__(self, counts: Ints) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.sources, self.ranks, self.positions = np.empty((3, int(self.offsets[-1])), np.int32)
        kernels.build_table(counts, self.sources)
        kernels.index_table(self.sources, self.offsets, self.ranks, self.positions)


class _TableCache:
    """The tables used last, shared by all schedules: a table depends on nothing but its counts."""

    def __init__(self, num_places: int) -> None:
        self._most = num_places
        self._num_places = 0
        self._kept: OrderedDict[bytes, Table] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self, counts: Ints) -> Table:
        key = counts.tobytes()
        with self._lock:
            table = self._kept.get(key)
            if table is not None:
                self._kept.move_to_end(key)
                return table
        table = Table(counts)
        with self._lock:
            if key not in self._kept:  # else another thread was faster
                self._kept[key] = table
                self._num_places += table.sources.size
            while self._num_places > self._most:
                self._num_places -= self._kept.popitem(last=False)[1].sources.size
        return table


_TABLES = _TableCache((64 << 20) // 12)  # 64 MiB of them
