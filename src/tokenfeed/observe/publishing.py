"""`publish(loader, path)`: a thread writes what the loader has counted, once a second, for `tokenfeed top`."""

import contextlib
import os
import socket
import threading
import time
import weakref
from itertools import count
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Delivery, Stats
from tokenfeed.observe.diagnosis import count_cores
from tokenfeed.observe.machine import measure_cpu_seconds, measure_memory
from tokenfeed.observe.rates import NO_STATS
from tokenfeed.observe.snapshots import Snapshot
from tokenfeed.storage.local import writing

__all__ = ["Publisher", "find_loader", "publish"]

_numbers = count()


def publish(loader: Any, path: str | os.PathLike[str], *, every: float = 1.0, max_bytes: int = 4 << 20) -> "Publisher":
    """Write the loader's counters to a file, now and `every` so many seconds, until the loader or the process is gone.

    The ranks of one machine may share a file. It never grows beyond `max_bytes`, plus as much in `<path>.1`, its
    predecessor. A write takes about 0.1 ms of a background thread; that it fails (the disk is full) hurts nobody but
    who looks at the file. Only the first, made before this returns, raises.

    Called `run.stats.jsonl` beside the run file `run.jsonl`, it is found by `tokenfeed top run.jsonl` too.
    """
    if not 0.01 <= every <= 3600 or max_bytes < 4096:
        raise ArgumentError(
            f"every is {every}, max_bytes is {max_bytes}; they must be from 0.01 to 3,600 seconds, and 4,096 or more"
        )
    publisher = Publisher(find_loader(loader), Path(path), every=every, max_bytes=max_bytes)
    publisher._start()
    return publisher


def find_loader(loader: Any) -> Delivery:
    """The loader itself, or the one that a `DeviceLoader` takes its batches from."""
    found = loader if isinstance(loader, Delivery) else getattr(loader, "loader", None)
    if not isinstance(found, Delivery):
        raise ArgumentError(
            f"{type(loader).__name__} is no loader: a Loader, a stream, or to_device of one is expected"
        )
    return found


class Publisher:
    """Writes until it is closed, or its loader is gone. It need not be kept."""

    def __init__(self, loader: Delivery, path: Path, *, every: float, max_bytes: int) -> None:
        self.path = path
        self._loader = weakref.ref(loader)
        self._last = NO_STATS
        self._max_bytes = max_bytes
        # A loader may be collected in any thread, at any moment, and `close` is called then. Releasing a lock is safe
        # there; an Event is not, if it was the thread that waits for it.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._closed = threading.Lock()
        self._pid = os.getpid()
        self._every = every
        self._number = next(_numbers)
        self._host = socket.gethostname()
        self._rank, self._world_size = getattr(loader, "rank", 0), getattr(loader, "world_size", 1)

    def _start(self) -> None:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(ended=False)
        loader = self._loader()
        if loader is not None:
            weakref.finalize(loader, self.close)  # at exit too, so that a run that ended is told from one that died
        threading.Thread(target=self._run, name="tokenfeed-publish", daemon=True).start()

    def _run(self) -> None:
        while not self._wake.acquire(timeout=self._every):
            with contextlib.suppress(OSError):
                self._write(ended=False)

    def _stats(self) -> Stats:
        loader = self._loader()
        if loader is not None:
            self._last = loader.stats()
        return self._last

    def _write(self, *, ended: bool) -> None:
        stats = self._stats()
        if self._closed.locked() and not ended:
            return
        line = Snapshot(
            time=round(time.time(), 3),
            host=self._host,
            pid=self._pid,
            loader=self._number,
            rank=self._rank,
            world_size=self._world_size,
            every=self._every,
            cores=count_cores(),
            cpu_seconds=round(measure_cpu_seconds(), 3),
            memory_bytes=measure_memory(),
            ended=ended,
            stats=stats,
        ).to_json()
        # Opened for every line, so that one rank may set the file aside while others go on writing. One call writes
        # the line, behind a line break of its own: it stays whole, whatever a kill left before it.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(file).st_size + len(line) + 2 > self._max_bytes:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                os.close(file)
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.write(file, f"\n{line}\n".encode())
        finally:
            os.close(file)

    def close(self) -> None:
        """Write the last line, and no more."""
        if os.getpid() == self._pid and self._closed.acquire(blocking=False):
            self._wake.release()
            with contextlib.suppress(OSError):
                self._write(ended=True)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
