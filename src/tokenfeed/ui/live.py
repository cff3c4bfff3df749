"""A running loader: its stats file as it grows, and what it is waiting for, in words.

Only new lines are read, and old points are thinned out, so work and memory are bounded however long the run.
"""

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokenfeed.errors import NotFoundError
from tokenfeed.observe.machine import Gpu, look_for_gpus
from tokenfeed.observe.snapshots import Snapshot, StatsFile
from tokenfeed.observe.watching import Watched, look
from tokenfeed.ui.messages import Json, Query, pick

if TYPE_CHECKING:
    from tokenfeed.ui.subject import Subject

__all__ = ["Live", "Point", "Series", "show_live"]

_RATES_SECONDS = 5.0
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


class _Loader:
    """One loader of a stats file: its latest snapshots, and the counters that its charts show."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the loader, in order of appearance."""
        self.latest: deque[Snapshot] = deque(maxlen=_LATEST)
        self.series = Series()

    @property
    def last(self) -> Snapshot:
        return self.latest[-1]


class Live:
    """The latest 64 loaders of a stats file and the GPUs of this machine. Any number of pages may ask `tell`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is the stats file. It may be created later."""
        self._name = Path(path).name
        self._lock = threading.Lock()
        self._file = StatsFile(path, _MOST_BYTES)
        self._num_loaders = 0
        self._gpus: dict[int, Series] = {}
        self.loaders: dict[tuple[str, int, int], _Loader] = {}
        self.number = 0
        """Number of the last point."""

    def update(self) -> None:
        """Read what was appended since the last call, at most the last 8 MiB. Raises NotFoundError without a file."""
        for snapshot in self._file.read():
            loader = self.loaders.get(snapshot.key)
            if loader is None:
                if len(self.loaders) == _MOST_LOADERS:
                    del self.loaders[min(self.loaders.values(), key=lambda each: each.last.time).last.key]
                loader = self.loaders[snapshot.key] = _Loader(self._num_loaders)
                self._num_loaders += 1
            loader.latest.append(snapshot)
            stats = snapshot.stats
            counters = stats.items, stats.wall_seconds, stats.wait_seconds, stats.queued
            self._add(loader.series, snapshot.time, (*counters, snapshot.cpu_seconds, snapshot.memory_bytes))

    def _add(self, series: Series, time: float, values: tuple[float, ...]) -> None:
        self.number += series.add(Point(self.number + 1, time, values))

    def tell(self, after: int) -> Json:
        """Every loader and GPU as it is now, and the chart points with numbers above `after`."""
        with self._lock:
            now, missing = time.time(), ""
            try:
                self.update()
            except NotFoundError:
                missing = self._name
            gpus, no_gpus = look_for_gpus()
            told_gpus = [self._describe_gpu(gpu, now, after) for gpu in gpus]
            watched = [look(list(each.latest), seconds=_RATES_SECONDS, now=now) for each in self.loaders.values()]
            latest = max((each.last.time for each in watched), default=now)
            pairs = zip(self.loaders.values(), watched, strict=True)
            return {
                "number": self.number,
                "now": now if any(each.state == "runs" for each in watched) else latest,
                "missing": missing,
                "loaders": [_describe_loader(*pair, latest, after) for pair in pairs],
                "gpus": told_gpus,
                "no_gpus": no_gpus,
            }

    def _describe_gpu(self, gpu: Gpu, now: float, after: int) -> Json:
        series = self._gpus.setdefault(gpu.index, Series())
        self._add(series, now, (gpu.busy, gpu.used_bytes))
        return {**pick(gpu, "index name total_bytes"), "points": _rows(series, after)}


def _describe_loader(loader: _Loader, watched: Watched, latest: float, after: int) -> Json:
    return {
        "id": loader.number,
        **pick(watched.last, "rank world_size host pid cores memory_bytes"),
        **pick(watched.last.stats, "items batches queued prefetch"),
        **pick(watched.rates, "items_per_second samples_per_second wait_fraction"),
        **pick(watched, "state words cpu"),
        "is_past": watched.is_past(latest),
        "points": _rows(loader.series, after),
    }


def _rows(series: Series, after: int) -> list[list[float]]:
    """[time, *values] of each point."""
    return [[round(point.time, 3), *point.values] for point in series.after(after)]


def show_live(subject: "Subject", query: Query) -> Json:
    """The news of all loaders since point number `after`."""
    return subject[Live].tell(query.whole("after", 0))
