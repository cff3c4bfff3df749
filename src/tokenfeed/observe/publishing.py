"""`publish(loader, path)`: a thread writes the loader's counters to a file once a second, for `tokenfeed top`."""

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
from tokenfeed.loader.delivery import Delivery, PlacedLoader, Stats
from tokenfeed.observe.machine import measure_memory
from tokenfeed.observe.rates import NO_STATS
from tokenfeed.observe.snapshots import Snapshot, predecessor_of
from tokenfeed.storage.local import writing
from tokenfeed.text.tokenizer.engines.workers import available_cores

__all__ = ["Publisher", "find_loader", "publish"]

_numbers = count()


def publish(loader: Any, path: str | os.PathLike[str], *, every: float = 1.0, max_bytes: int = 4 << 20) -> "Publisher":
    """Write the loader's counters to a file, now and `every` that many seconds, until the loader or the process ends.

    The ranks of one machine may share a file. The file is limited to `max_bytes`, and so is its predecessor
    `<path>.1`. A write takes about 0.1 ms in a background thread. The first write happens before this function returns,
    and raises if it fails; later failures (such as a full disk) only leave a gap in the file.

    Name it `run.stats.jsonl`, beside the run file `run.jsonl`, and `tokenfeed top run.jsonl` finds it too.
    """
    if not 0.01 <= every <= 3600:
        raise ArgumentError(f"every is {every}; expected 0.01 to 3,600 seconds")
    if max_bytes < 4096:
        raise ArgumentError(f"max_bytes is {max_bytes}; expected 4,096 or more")
    publisher = Publisher(find_loader(loader), Path(path), every=every, max_bytes=max_bytes)
    publisher._start()
    return publisher


def find_loader(loader: Any) -> Delivery:
    """The loader itself, or the loader whose batches `to_device` or `to_arrays` passes on."""
    found = loader.loader if isinstance(loader, PlacedLoader) else loader
    if not isinstance(found, Delivery):
        raise ArgumentError(
            f"expected a Loader, a stream, or what to_device or to_arrays makes of one; got {type(loader).__name__}"
        )
    return found


class Publisher:
    """Writes until it is closed or its loader is collected. The caller need not keep it."""

    def __init__(self, loader: Delivery, path: Path, *, every: float, max_bytes: int) -> None:
        self.path = path
        self._loader = weakref.ref(loader)
        self._last = NO_STATS
        self._max_bytes = max_bytes
        # The finalizer of a loader calls `close` in any thread at any moment. Releasing a lock is safe there; setting
        # an Event is not, if that thread is the one waiting for it.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._closed = threading.Lock()
        self._pid = os.getpid()
        self._every = every
        self._number = next(_numbers)
        self._host = socket.gethostname()
        self._rank, self._world_size = loader.rank, loader.world_size

    def _start(self) -> None:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(ended=False)
        loader = self._loader()
        if loader is not None:
            weakref.finalize(loader, self.close)  # at exit too, to distinguish a run that ended from one that died
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
            cores=available_cores(),
            cpu_seconds=round(time.process_time(), 3),
            memory_bytes=measure_memory(),
            ended=ended,
            stats=stats,
        ).to_json()
        # The file is opened for every line, so that one rank may rename it while others write. Each line is one write,
        # with a line break before it: the line stays whole even after the half line of a killed process.
        with self.path.open("ab", buffering=0) as file:
            if file.tell() + len(line) + 2 <= self._max_bytes:
                os.write(file.fileno(), f"\n{line}\n".encode())
                return
        self.path.replace(predecessor_of(self.path))
        with self.path.open("ab", buffering=0) as file:
            os.write(file.fileno(), f"\n{line}\n".encode())

    def close(self) -> None:
        """Write the last line and stop."""
        if os.getpid() == self._pid and self._closed.acquire(blocking=False):
            self._wake.release()
            with contextlib.suppress(OSError):
                self._write(ended=True)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
