"""A running loader: its stats files as they grow, and what it is waiting for, in words.

Only new lines are read, and old points are thinned out, so work and memory are bounded however long the run.
"""

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tokenfeed.errors import NotFoundError
from tokenfeed.observe.diagnosis import CAUSES, Rates, find_cause
from tokenfeed.observe.snapshots import Snapshot, StatsFiles
from tokenfeed.observe.watching import Watched, judge, look
from tokenfeed.ui.messages import Json, pick

__all__ = ["Live", "Logged", "Point", "Series"]

_RATES_SECONDS = 5.0
_MOST_BYTES = 8 << 20
"""Bytes read at once, over the files of all ranks."""
_MOST_LOADERS = 512
_MOST_SCALARS = 16
_MOST_LOGGED = 4000
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
    """Points in time: all of the last ten minutes, and fewer, the older they are.

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


class Logged:
    """A scalar of the training loop by step, in bounded memory: of older values, the extremes are kept."""

    def __init__(self) -> None:
        self.points: list[tuple[int, int, float | None, float]] = []
        """(number of the point, step, value, time), in the order of arrival."""

    def add(self, number: int, step: int, value: float | None, time: float) -> None:
        self.points.append((number, step, value, time))
        if len(self.points) > _MOST_LOGGED:
            old, new = self.points[: _MOST_LOGGED // 2], self.points[_MOST_LOGGED // 2 :]
            kept = []
            for place in range(0, len(old), 4):
                four = old[place : place + 4]
                by_value = sorted(four, key=lambda each: float("inf") if each[2] is None else each[2])
                kept += sorted({by_value[0], by_value[-1]})
            self.points = kept + new


class _Loader:
    """One loader of a run: its latest snapshots, and the counters that its charts show."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the loader, in order of appearance."""
        self.latest: deque[Snapshot] = deque(maxlen=_LATEST)
        self.series = Series()
        self.waits = dict.fromkeys(CAUSES, 0.0)
        """Seconds that the loop waited, by what for."""

    @property
    def last(self) -> Snapshot:
        return self.latest[-1]

    def add(self, snapshot: Snapshot) -> tuple[float, ...]:
        """Count a snapshot; returns the values of its point."""
        stats = snapshot.stats
        if self.latest:
            before = self.last.stats
            grown = stats.wait_seconds - (before.wait_seconds if stats.wall_seconds >= before.wall_seconds else 0.0)
            self.waits[find_cause(Rates.between(before, stats))] += max(0.0, grown)
        else:
            self.waits["queue"] += stats.wait_seconds
        self.latest.append(snapshot)
        counters = stats.items, stats.wall_seconds, stats.wait_seconds, stats.queued
        return *counters, snapshot.cpu_seconds, snapshot.memory_bytes, *self.waits.values()


class Live:
    """The loaders of a run, and what they log. Any number of pages may ask `tell`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is what `observe.publish` was given. Nothing need be there yet."""
        self._name = Path(path).name
        self._lock = threading.Lock()
        self._files = StatsFiles(path, _MOST_BYTES)
        self._num_loaders = 0
        self._logged: dict[str, Logged] = {}
        self._logging_rank = -1
        self._delivered = Series()
        self.loaders: dict[tuple[str, int, int], _Loader] = {}
        self.number = 0
        """Number of the last point."""

    def update(self) -> None:
        """Read what was appended since the last call, at most 8 MiB in all. Raises NotFoundError without a file."""
        for snapshot in self._files.read():
            loader = self.loaders.get(snapshot.key)
            if loader is None:
                if len(self.loaders) == _MOST_LOADERS:
                    del self.loaders[min(self.loaders.values(), key=lambda each: each.last.time).last.key]
                loader = self.loaders[snapshot.key] = _Loader(self._num_loaders)
                self._num_loaders += 1
            self._add(loader.series, snapshot.time, loader.add(snapshot))
            if snapshot.stats.delivered:
                self._add(self._delivered, snapshot.time, (snapshot.stats.delivered,))
            self._log(snapshot)

    def _add(self, series: Series, time: float, values: tuple[float, ...]) -> None:
        self.number += series.add(Point(self.number + 1, time, values))

    def _log(self, snapshot: Snapshot) -> None:
        """Keep what the lowest rank logs: the others have the same to say, or a part of it."""
        rank, scalars = snapshot.rank, snapshot.scalars
        if not scalars or (rank > self._logging_rank >= 0):
            return
        if rank < self._logging_rank:
            self._logged.clear()
        self._logging_rank = rank
        for each in scalars:
            if each.name in self._logged or len(self._logged) < _MOST_SCALARS:
                self.number += 1
                self._logged.setdefault(each.name, Logged()).add(self.number, each.step, each.value, snapshot.time)

    def look(self, now: float) -> list[Watched]:
        """Every loader as it is."""
        return [look(list(each.latest), seconds=_RATES_SECONDS, now=now) for each in self.loaders.values()]

    def tell(self, after: int, now: float | None = None) -> Json:
        """Every loader as it is now, the verdict, and the chart points with numbers above `after`."""
        with self._lock:
            now, missing = time.time() if now is None else now, ""
            try:
                self.update()
            except NotFoundError:
                missing = self._name
            watched = self.look(now)
            latest = max((each.last.time for each in watched), default=now)
            past = [each.is_past(watched) for each in watched]
            present = [each for each, is_past in zip(watched, past, strict=True) if not is_past]
            running = [each for each in present if each.state == "runs"]
            triples = zip(self.loaders.values(), watched, past, strict=True)
            return {
                "number": self.number,
                "now": now if running else latest,
                "missing": missing,
                "verdict": asdict(judge(present)),
                "delivered": max((each.last.stats.delivered for each in present), default=0),
                "clock": _rows(self._delivered, after),
                "steps": next((each.last.steps for each in present if each.last.steps), None),
                "samples_per_second": sum(each.rates.samples_per_second for each in running),
                "causes": CAUSES,
                "loaders": [_describe_loader(*each, after) for each in triples],
                "scalars": {
                    name: [[*each[1:]] for each in logged.points if each[0] > after]
                    for name, logged in self._logged.items()
                },
            }


def _describe_loader(loader: _Loader, watched: Watched, is_past: bool, after: int) -> Json:
    return {
        "id": loader.number,
        **pick(watched.last, "rank world_size host pid cores memory_bytes"),
        **pick(watched.last.stats, "items batches queued prefetch"),
        **pick(watched.rates, "items_per_second samples_per_second wait_fraction"),
        **pick(watched, "state words cpu"),
        "last": watched.last.time,
        "is_past": is_past,
        "points": _rows(loader.series, after),
    }


def _rows(series: Series, after: int) -> list[list[float]]:
    """[time, *values] of each point."""
    return [[round(point.time, 3), *point.values] for point in series.after(after)]
