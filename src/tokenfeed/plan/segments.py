"""Segments of a schedule: a table of sources that is repeated; and the tables of many segments together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.kernels import mixture as kernels
from tokenfeed.plan.rounding import ONE, due
from tokenfeed.types import Floats, Ints

__all__ = ["MOST_PLACES", "MOST_SOURCES", "Many", "Segment", "pad", "stack"]

Number = TypeVar("Number", bound=np.generic)

MOST_PLACES = 6 << 20
"""Places of all tables that are kept at a time: 72 MiB at most."""
MOST_SOURCES = 1 << 12
"""Sources of which entries of many tables have room."""
_MAKING = Lock()


@dataclass(frozen=True, eq=False)
class Segment:
    """Samples [start, stop) of the run: one table, over and over. What it costs time to know is found when needed."""

    start: int
    stop: int
    rates: Ints
    counts: Ints
    """Number of places that each source has in the table: its rate, or what a tail has of it."""
    bases: Ints
    """Number of samples that each source had before."""
    carry: Ints
    """Samples that each source was owed before, in 2**-32 of a sample."""
    shares: Floats
    """Normalised weights that the rates stand for."""

    @cached_property
    def period(self) -> int:
        """Number of places in which the sources are due their rates."""
        return int(self.rates.sum())

    @cached_property
    def active(self) -> Ints:
        """Sources drawn, in order; the table numbers them 0, 1, …"""
        return np.flatnonzero(self.rates)

    @property
    def phases(self) -> Ints:
        """What sources are owed, in 2**-20 of a sample, so that nothing overflows."""
        return (self.carry + (1 << 11)) >> 12

    @cached_property
    def key(self) -> tuple[bytes, bytes, bytes]:
        """What the table depends on."""
        counts, rates, phases = (each[self.active].tobytes() for each in (self.counts, self.rates, self.phases))
        return counts, rates, phases

    @cached_property
    def size(self) -> int:
        """Number of places in the table."""
        return int(self.counts.sum())

    @property
    def places(self) -> int:
        """Number of places in the table that the segment reaches."""
        return min(self.size, self.stop - self.start)

    @property
    def table(self) -> "Table":
        """Its table, as far as the segment reaches."""
        return _TABLES.find(self.key, self.places)

    def locate(self, samples: Ints, sources: Ints, numbers: Ints) -> int:
        """Set the source, and the number in it, of those samples that lie in the segment. Returns how many do."""
        table, active = self.table, self.active
        args = active, self.bases[active], table.counts, table.sources, table.ranks, sources, numbers
        return int(kernels.locate(samples, self.start, self.stop, *args))

    def count(self, stop: int) -> Ints:
        """How many samples each source has had before sample `stop` of the run. O(sources)."""
        periods, places = divmod(stop - self.start, self.size)
        counts = self.bases + self.counts * periods
        if places:
            table, begun = self.table, np.empty(self.active.size, np.int64)
            kernels.count_before(places, table.sources.size, table.offsets, table.positions, begun)
            counts[self.active] += begun
        return counts

    def owed(self, stop: int) -> Ints:
        """Samples that each source is owed before sample `stop`, in 2**-32 of a sample."""
        periods, places = divmod(stop - self.start, self.period)
        ahead = self.count(stop) - self.bases - self.rates * periods
        return self.carry + due(self.rates, self.period, places) - ahead * ONE


class Table:
    """The places of a table with their indexes: three int32 a place. `kernels/mixture.py` has an example."""

    def __init__(self, counts: Ints, rates: Ints, phases: Ints, places: int) -> None:
        self.counts = counts
        self.sources, self.ranks, self.positions = np.empty((3, places), np.int32)
        kernels.build_table(counts, rates, phases, self.sources)
        self.offsets = np.zeros(counts.size + 1, np.int64)
        np.cumsum(np.bincount(self.sources, minlength=counts.size), out=self.offsets[1:])
        kernels.index_table(self.sources, self.offsets, self.ranks, self.positions)


class Tables:
    """The tables used last, at most 72 MiB of them; small ones are soon built again. All schedules share them."""

    def __init__(self) -> None:
        self._kept: dict[Any, Table] = {}
        self._places = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: tuple[bytes, bytes, bytes], places: int) -> Table:
        """The table of a segment, which depends on nothing but its key."""
        table = self._kept.get((key, places))
        if table is None:
            counts, rates, phases = (np.frombuffer(each, np.int64).copy() for each in key)  # read-only is another type
            while self._kept and self._places + places > MOST_PLACES:
                oldest = self._kept.pop(next(iter(list(self._kept))), None)
                self._places -= 0 if oldest is None else oldest.sources.size
            table = self._kept[key, places] = Table(counts, rates, phases, places)
            self._places += places
        return table


_TABLES = Tables()


class Many:
    """Many segments as one kernel takes them, whatever samples it is asked for. Tables are made when first needed."""

    def __init__(self, segments: Sequence[Segment], num_sources: int) -> None:
        """The segments have at most `MOST_PLACES` places in all, and there are fewer than `MOST_SOURCES`."""
        starts = np.array([each.start for each in segments], np.int64)
        rows = zip(*((each.counts, each.rates, each.phases, each.bases) for each in segments), strict=True)
        counts, rates, phases, bases = (stack(each, num_sources) for each in rows)
        self._known = np.stack([bases, counts], axis=2)
        self._offsets = np.cumsum([0, *(each.places for each in segments)])
        self.stop = segments[-1].stop
        self._tables = np.empty(int(self._offsets[-1]), np.uint32)
        self._is_made = np.zeros(len(segments), np.bool_)
        self._making = counts, rates, phases
        self._shift = max(0, int(starts[-1]).bit_length() - len(segments).bit_length() - 1)
        """Samples with the same k >> shift are of one bucket, in which few segments begin."""
        buckets = np.arange((int(starts[-1]) >> self._shift) + 2) << self._shift
        self._where = starts, np.maximum(np.searchsorted(starts, buckets, side="right") - 1, 0)

    def locate(self, samples: Ints, sources: Ints, numbers: Ints) -> bool:
        """Set the source, and the number in it, of samples. False where one lies in no segment."""
        where = samples, self._shift, self.stop, *self._where, self._offsets
        args = *where, self._known, self._tables, self._is_made, sources, numbers
        found = kernels.locate_many(*args)
        if found == -1:
            with _MAKING:  # another thread might read what is being written
                kernels.make_many(*where, *self._making, self._tables, self._is_made)
            found = kernels.locate_many(*args)
        return int(found) == samples.size


def pad(numbers: npt.NDArray[Number], size: int) -> npt.NDArray[Number]:
    """Zeros for the sources that came later."""
    if numbers.size == size:
        return numbers
    return np.concatenate([numbers, np.zeros(size - numbers.size, numbers.dtype)])


def stack(rows: Iterable[Ints], size: int) -> Ints:
    """Rows one below the other, with zeros for sources that came later."""
    return np.stack([pad(row, size) for row in rows])
