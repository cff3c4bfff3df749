"""Bringing a dataset's files into a folder, several at a time."""

import asyncio
import contextlib
import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tokenfeed.errors import ArgumentError, DownloadError
from tokenfeed.storage.local import writing
from tokenfeed.storage.retries import Patience
from tokenfeed.storage.runtime import LoopThread
from tokenfeed.text.download.datasets import Dataset, RemoteFile, default_folder, find_dataset
from tokenfeed.text.download.transfer import fetch
from tokenfeed.text.sources.finding import Listing, read_listing, write_listing

__all__ = ["Arrival", "Downloaded", "download"]

_MOST_FAILURES = 20


@dataclass(frozen=True)
class Downloaded:
    """The result of a download."""

    folder: Path
    paths: tuple[Path, ...]
    """Files that are there now: those to train on in order, then those for validation."""
    val: tuple[str, ...]
    """Names of the files for validation; where there are none, `stream` and `prepare` hold out a share of the text."""
    left_out: tuple[str, ...]
    """Names of files of the dataset that are for tests, and were not fetched."""
    skipped: tuple[str, ...]
    """Names of the files that were there before."""
    failed: dict[str, str]
    """Name → reason why the file did not come."""

    @property
    def ok(self) -> bool:
        return not self.failed


@dataclass(frozen=True)
class Arrival:
    """How far one file has come."""

    name: str
    state: Literal["arriving", "arrived", "there", "failed"]
    """State of the file; `there` means that it was there before."""
    num_bytes: int
    total: int | None
    """Size of the file, if it is known."""
    num_files: int
    """Number of files of the whole download."""


def download(
    dataset: str | Dataset,
    folder: str | os.PathLike[str] | None = None,
    *,
    count: int = -1,
    workers: int = 4,
    progress: bool | Callable[[Arrival], None] = False,
    timeout: float | None = None,
) -> Downloaded:
    """Bring the first `count` files of a dataset (−1: all) and those for validation into a folder.

    `dataset` is a name, `hf://owner/name`, or an address of numbered files (`datasets.py`). The folder defaults to
    `~/.cache/tokenfeed/<name>`, or `$TOKENFEED_CACHE/<name>`. First `files.json` is written there with the names of all
    these files, so that a stream can begin with the first of them. A later call with a greater count makes that list
    longer; no call makes it shorter or changes the files for validation. Then come the first file, those for
    validation, and the rest in order, `workers` at a time. Files that are there are skipped, parts continued.

    A file is given up after `timeout` seconds without progress (default: TOKENFEED_TIMEOUT, or 120). It is then listed
    in `failed` and the others go on, unless 20 in a row fail: then the rest is not tried. A disk that cannot be written
    to raises WriteError, a list of files that cannot be had DownloadError. Ctrl-C ends it within a second, and keeps
    everything that has arrived. `progress` may be a function, which is called on another thread.
    """
    if count < -1:
        raise ArgumentError(f"count is {count}; it must be at least 0, or −1 for all")
    if workers < 1:
        raise ArgumentError(f"workers is {workers}; it must be at least 1")
    patience = Patience.from_environment() if timeout is None else Patience.of(timeout)
    place = None if folder is None else Path(folder).expanduser()
    if isinstance(dataset, str):
        dataset = find_dataset(dataset, count=count, folder=place)
    place = place or default_folder(dataset.name)
    train = dataset.train if count < 0 else dataset.train[:count]
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    val = tuple(file.name for file in dataset.val)
    _extend_listing(place, Listing(tuple(file.name for file in train), val))
    with _bars() if progress is True else contextlib.nullcontext(progress or _ignore) as tell:
        work = _Work(place, (*train[:1], *dataset.val, *train[1:]), patience, tell)
        # A loop of its own: disks may be slow, and other requests of this process must not wait for them.
        with LoopThread("tokenfeed-download") as loop:
            loop.run(work.run(workers))
    paths = tuple(place / file.name for file in (*train, *dataset.val) if file.name not in work.failed)
    return Downloaded(place, paths, val, dataset.left_out, tuple(work.skipped), work.failed)


def _extend_listing(folder: Path, listing: Listing) -> None:
    """Make the list of a folder hold these files. If two processes do so at once, the longer list remains."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: two that start at once must agree by chance
            fcntl.flock(fd, fcntl.LOCK_EX)
        before = read_listing(folder)
        names = {*before.train, *before.val} if before is not None else set()
        if before is None or not any(child.name.removesuffix(".tmp") in names for child in folder.iterdir()):
            write_listing(folder, listing)  # nothing of an earlier list has arrived, or begun to
            return
        for split, there, here in (("train", before.train, listing.train), ("val", before.val, listing.val)):
            for number, (old, new) in enumerate(zip(there, here, strict=False)):
                if old != new:
                    raise ArgumentError(
                        f"{folder} holds another dataset: {split} file {number} is {old!r} in its files.json and "
                        f"{new!r} in this one. Choose another folder."
                    )
        if len(before.train) < len(listing.train):
            write_listing(folder, listing)
    finally:
        os.close(fd)


class _Work:
    """The files of one download, and how they fare."""

    def __init__(
        self, folder: Path, files: tuple[RemoteFile, ...], patience: Patience, tell: Callable[[Arrival], None]
    ) -> None:
        self.skipped: list[str] = []
        self.failed: dict[str, str] = {}
        self._folder, self._patience, self._tell = folder, patience, tell
        self._num_files = len(files)
        self._waiting = deque(files)
        self._failed_in_a_row = 0

    async def run(self, workers: int) -> None:
        """Fetch all files. Raises errors that are not about one file alone, such as a full disk."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(workers, self._num_files)):
                    group.create_task(self._work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _work(self) -> None:
        while self._waiting:
            file = self._waiting.popleft()
            try:
                arrived = await fetch(file, self._folder, self._patience, partial(self._report, file, "arriving"))
            except DownloadError as error:
                self.failed[file.name] = str(error)
                self._report(file, "failed", 0, None)
                self._failed_in_a_row += 1
                if self._failed_in_a_row == _MOST_FAILURES:  # take back the files that nobody has begun with
                    names = sorted(file.name for file in self._waiting)
                    reason = f"not tried, because {_MOST_FAILURES} files in a row had failed"
                    self.failed |= dict.fromkeys(names, reason)
                    self._waiting.clear()
                continue
            self._failed_in_a_row = 0
            if not arrived:
                self.skipped.append(file.name)
            size = (self._folder / file.name).stat().st_size
            self._report(file, "arrived" if arrived else "there", size, size)

    def _report(
        self, file: RemoteFile, state: Literal["arriving", "arrived", "there", "failed"], done: int, total: int | None
    ) -> None:
        self._tell(Arrival(file.name, state, done, total, self._num_files))


def _ignore(arrival: Arrival) -> None:
    pass


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[Arrival], None]]:
    """Shows one bar for all files and one for each under way, on standard error, if that is a terminal. Thread-safe.

    The bytes of all files together are mostly unknown before the last one begins. Until then the bar for all files goes
    by the mean size of those that are known.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    rates = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    progress = rich.Progress(*columns, *rates, console=console, transient=True, disable=not console.is_terminal)
    overall = progress.add_task("files", total=None)
    tasks: dict[str, rich.TaskID] = {}
    arriving: dict[str, Arrival] = {}
    lock = threading.Lock()
    num_bytes = known = num_known = finished = skipped = 0

    def tell(arrival: Arrival) -> None:
        nonlocal num_bytes, known, num_known, finished, skipped
        with lock:
            name = arrival.name
            before = arriving.pop(name, Arrival(name, "arriving", 0, None, 0))
            if arrival.state in ("arriving", "arrived"):
                num_bytes += arrival.num_bytes - before.num_bytes
                known += (arrival.total or 0) - (before.total or 0)
                num_known += (arrival.total is not None) - (before.total is not None)
            if arrival.state == "arriving":
                arriving[name] = arrival
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=arrival.total)
                progress.update(tasks[name], completed=arrival.num_bytes, total=arrival.total)
            else:
                finished += 1
                skipped += arrival.state != "arrived"
                if name in tasks:
                    progress.remove_task(tasks.pop(name))
            total = known / num_known * (arrival.num_files - skipped) if num_known else None
            description = f"{finished:,} of {arrival.num_files:,} files"
            progress.update(overall, completed=num_bytes, total=total, description=description)

    with progress:
        yield tell
