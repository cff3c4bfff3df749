"""`History`: a stats file as it grows. What is new is read, what is old is thinned; memory is bounded."""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenfeed.observe.snapshots import Snapshot, find_stats_file, parse_snapshots, predecessor_of
from tokenfeed.storage.local import reading

__all__ = ["History", "Point", "Series", "Source"]

_MOST_BYTES = 8 << 20
"""Read at once: what a stats file and its predecessor have together, unless the publisher was told otherwise."""
_MOST_SOURCES = 64
_LATEST = 128
_MOST_POINTS = 1500
_FULL_SECONDS = 600
_SPACING = 0.9
"""Snapshots are a second apart; closer ones make no better chart."""


class Point(NamedTuple):
    """Values at a moment."""

    number: int
    """Points of all series are numbered in the order in which they came, from 1."""
    time: float
    values: tuple[float, ...]


class Series:
    """Points in time. Those of the last ten minutes are all there, older ones ever further apart.

    Counters are kept, not rates: whatever is left out, the rate between two points that remain is exact.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._spacing = _SPACING

    def add(self, point: Point) -> bool:
        """Whether it was taken: not if it is too close to the last one."""
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
        """Those with a greater number."""
        return self.points[bisect_right(self.points, number, key=lambda point: point.number) :]


class Source:
    """One loader of a stats file: its latest snapshots, and the counters that charts are made of."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Sources are numbered as they appear."""
        self.latest: deque[Snapshot] = deque(maxlen=_LATEST)
        self.series = Series()

    @property
    def last(self) -> Snapshot:
        return self.latest[-1]


class History:
    """All that a stats file has told so far. Not for several threads at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """It need not be there yet."""
        self._path = path
        self._inode = 0
        self._offset = 0
        self._num_sources = 0
        self.sources: dict[tuple[str, int, int], Source] = {}
        self.number = 0
        """Of the last point."""

    def update(self) -> None:
        """Read what was appended since the last time: at most 8 MiB, the latest. No file is NotAStoreError."""
        path = find_stats_file(self._path)
        for snapshot in parse_snapshots(self._read_new(path)):
            self._add(snapshot)

    def _read_new(self, path: Path) -> bytes:
        """Whole lines from where the last call ended; a file that was set aside in between is read to its end."""
        with reading(str(path)):
            try:
                with path.open("rb") as file:
                    before = b""
                    inode = os.fstat(file.fileno()).st_ino
                    if inode != self._inode:
                        before = self._read_rest(predecessor_of(path))
                        self._inode, self._offset = inode, 0
                    return before + self._read_lines(file.fileno())
            except FileNotFoundError:
                return b""

    def _read_rest(self, path: Path) -> bytes:
        """What was not read yet of the file that was set aside: all of it, if it is not the one that was read."""
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != self._inode:
                    self._offset = 0
                return self._read_lines(file.fileno())
        except FileNotFoundError:
            return b""

    def _read_lines(self, file: int) -> bytes:
        size = os.fstat(file).st_size
        if size < self._offset:
            self._offset = 0
        self._offset = max(self._offset, size - _MOST_BYTES)
        data = os.pread(file, size - self._offset, self._offset)
        data = data[: data.rfind(b"\n") + 1]  # what follows is half a line, which may become whole
        self._offset += len(data)
        return data

    def _add(self, snapshot: Snapshot) -> None:
        source = self.sources.get(snapshot.source)
        if source is None:
            if len(self.sources) == _MOST_SOURCES:
                oldest = min(self.sources.values(), key=lambda each: each.last.time)
                del self.sources[oldest.last.source]
            source = self.sources[snapshot.source] = Source(self._num_sources)
            self._num_sources += 1
        source.latest.append(snapshot)
        stats = snapshot.stats
        values = (
            stats.items,
            stats.wall_seconds,
            stats.wait_seconds,
            stats.queued,
            snapshot.cpu_seconds,
            snapshot.memory_bytes,
        )
        self.add_point(source.series, snapshot.time, values)

    def add_point(self, series: Series, time: float, values: tuple[float, ...]) -> None:
        """Number a point, and add it to a series: one of a source, or one that somebody else keeps beside them."""
        if series.add(Point(self.number + 1, time, values)):
            self.number += 1
