"""A running loader: the new lines of its stats file, and what it is waiting for, in words."""

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tokenfeed.errors import NotFoundError
from tokenfeed.observe.history import History, LoaderHistory, Series
from tokenfeed.observe.machine import Gpu, look_for_gpus
from tokenfeed.observe.watching import Watched, look
from tokenfeed.ui.query import Query
from tokenfeed.ui.telling import Json

if TYPE_CHECKING:
    from tokenfeed.ui.subject import Subject

__all__ = ["Live", "show_live"]

_RATES_SECONDS = 5.0


class Live:
    """The loaders of a stats file and the GPUs of this machine. Any number of pages may ask."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is the stats file. It may be created later."""
        self._name = Path(path).name
        self._lock = threading.Lock()
        self._history = History(path)
        self._gpus: dict[int, Series] = {}

    def tell(self, after: int) -> Json:
        """Every loader and GPU as it is now, and the chart points with numbers above `after`."""
        with self._lock:
            now, missing = time.time(), ""
            try:
                self._history.update()
            except NotFoundError:
                missing = self._name
            gpus, no_gpus = look_for_gpus()
            told_gpus = [self._describe_gpu(gpu, now, after) for gpu in gpus]
            histories = list(self._history.loaders.values())
            watched = [look(list(each.latest), seconds=_RATES_SECONDS, now=now) for each in histories]
            latest = max((each.last.time for each in watched), default=now)
            loaders = [_describe_loader(*both, latest, after) for both in zip(histories, watched, strict=True)]
            return {
                "number": self._history.number,
                "now": now if any(each.state == "runs" for each in watched) else latest,
                "missing": missing,
                "loaders": loaders,
                "gpus": told_gpus,
                "no_gpus": no_gpus,
            }

    def _describe_gpu(self, gpu: Gpu, now: float, after: int) -> Json:
        series = self._gpus.setdefault(gpu.index, Series())
        self._history.add_point(series, now, (gpu.busy, gpu.used_bytes))
        return {"index": gpu.index, "name": gpu.name, "total_bytes": gpu.total_bytes, "points": _rows(series, after)}


def _describe_loader(history: LoaderHistory, watched: Watched, latest: float, after: int) -> Json:
    last, rates = watched.last, watched.rates
    return {
        "id": history.number,
        "rank": last.rank,
        "world_size": last.world_size,
        "host": last.host,
        "pid": last.pid,
        "cores": last.cores,
        "state": watched.state,
        "is_past": watched.is_past(latest),
        "words": watched.words,
        "items": last.stats.items,
        "batches": last.stats.batches,
        "items_per_second": rates.items_per_second,
        "samples_per_second": rates.samples_per_second,
        "wait_fraction": rates.wait_fraction,
        "queued": last.stats.queued,
        "prefetch": last.stats.prefetch,
        "cpu": watched.cpu,
        "memory_bytes": last.memory_bytes,
        "points": _rows(history.series, after),
    }


def _rows(series: Series, after: int) -> list[list[float]]:
    """[time, *values] of each point."""
    return [[round(point.time, 3), *point.values] for point in series.after(after)]


def show_live(subject: "Subject", query: Query) -> Json:
    """The news of all loaders since point number `after`."""
    return subject.live.tell(query.whole("after", 0))
