"""`History`: a stats file as it grows. New lines are read, old points are thinned out, so memory is bounded."""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tokenfeed.observe.snapshots import Snapshot, StatsFile

__all__ = ["History", "LoaderHistory", "Point", "Series"]

_MOST_BYTES = 8 << 20
"""Bytes read at once: twice the default size limit of a stats file."""
_MOST_LOADERS = 64
_LATEST = 128
_MOST_POINTS = 1500
_FULL_SECONDS = 600
_SPACING = 0.9
"""Least seconds between two points of a chart. Snapshots are a second apart by default."""


class Point(NamedTuple):
    """Values at one moment."""

    number: int
    """Number of the point, from 1, counted over all series in the order of arrival."""
    time: float
    values: tuple[float, ...]


class Series:
    """Points in time: all of the last ten minutes, and fewer the older they are.

    The values are counters, not rates, so the rate between any two remaining points is exact.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._spacing = _SPACING

    def add(self, point: Point) -> bool:
        """Add a point. Returns False, and leaves it out, if it is too close to the last one."""
        if self.points and point.time - self.points[-1].time < _SPACING:
            return False
        self.points.append(point)
        if len(self.points) > _MOST_POINTS:
            self._thin(point.time - _FULL_SECONDS)
            while len(self.points) > 0.8 * _MOST_POINTS:
                self._spacing *= 2
                self._thin(point.time - _FULL_SECONDS)
        return True

    def _thin(self, full_from: float) -> None:
        kept = self.points[:1]
        for point in self.points[1:]:
            if point.time >= full_from or point.time - kept[-1].time >= self._spacing:
                kept.append(point)
        self.points = kept

    def after(self, number: int) -> Sequence[Point]:
        """The points with greater numbers."""
        return self.points[bisect_right(self.points, number, key=lambda point: point.number) :]


class LoaderHistory:
    """One loader of a stats file: its latest snapshots, and the counters that its charts show."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the loader, in order of appearance."""
        self.latest: deque[Snapshot] = deque(maxlen=_LATEST)
        self.series = Series()

    @property
    def last(self) -> Snapshot:
        return self.latest[-1]


class History:
    """Everything a stats file has said so far about its latest 64 loaders. Not thread-safe."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """The file may be created later."""
        self._file = StatsFile(path, _MOST_BYTES)
        self._num_loaders = 0
        self.loaders: dict[tuple[str, int, int], LoaderHistory] = {}
        self.number = 0
        """Number of the last point."""

    def update(self) -> None:
        """Read what was appended since the last call, at most the last 8 MiB. Raises NotFoundError without a file."""
        for snapshot in self._file.read():
            self._add(snapshot)

    def _add(self, snapshot: Snapshot) -> None:
        loader = self.loaders.get(snapshot.key)
        if loader is None:
            if len(self.loaders) == _MOST_LOADERS:
                oldest = min(self.loaders.values(), key=lambda each: each.last.time)
                del self.loaders[oldest.last.key]
            loader = self.loaders[snapshot.key] = LoaderHistory(self._num_loaders)
            self._num_loaders += 1
        loader.latest.append(snapshot)
        stats = snapshot.stats
        of_loader = stats.items, stats.wall_seconds, stats.wait_seconds, stats.queued
        self.add_point(loader.series, snapshot.time, (*of_loader, snapshot.cpu_seconds, snapshot.memory_bytes))

    def add_point(self, series: Series, time: float, values: tuple[float, ...]) -> None:
        """Number a point and add it to a series, of a loader here or of anything else on the same charts."""
        if series.add(Point(self.number + 1, time, values)):
            self.number += 1
