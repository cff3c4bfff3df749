"""`Segment`: a part of a run that repeats one period, and the tables that periods are looked up in."""

from dataclasses import dataclass
from functools import lru_cache

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
        return _find_table(self.counts.tobytes())

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


@lru_cache(5)  # at most 60 MiB of them; small ones are soon built again
def _find_table(counts: bytes) -> Table:
    """The table of a period, which depends on nothing but its counts: all schedules share those used last."""
    return Table(np.frombuffer(counts, np.int64).copy())  # Numba takes a read-only array for another type
