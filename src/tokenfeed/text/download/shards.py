"""Bringing a dataset's files into a folder, several at a time."""

import asyncio
import contextlib
import fcntl
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenfeed.errors import ArgumentError, DownloadError
from tokenfeed.storage.local import writing
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.runtime import LoopThread
from tokenfeed.text.download.bars import Arrival, bars
from tokenfeed.text.download.datasets import Dataset, RemoteFile, find_dataset
from tokenfeed.text.download.hub import list_repository
from tokenfeed.text.download.transfer import fetch
from tokenfeed.text.sources.finding import Listing, read_listing, write_listing

__all__ = ["Downloaded", "default_folder", "download"]

_MOST_FAILURES = 20


@dataclass(frozen=True)
class Downloaded:
    """The result of a download."""

    folder: Path
    paths: tuple[Path, ...]
    """Files that are there now: those to train on in order, then the one for validation."""
    skipped: tuple[str, ...]
    """Names of the files that were there before."""
    failed: dict[str, str]
    """Name → reason why the file did not come."""

    @property
    def ok(self) -> bool:
        return not self.failed


def download(
    dataset: str | Dataset,
    folder: str | os.PathLike[str] | None = None,
    *,
    count: int = -1,
    workers: int = 4,
    progress: bool | Callable[[Arrival], None] = False,
    timeout: float | None = None,
) -> Downloaded:
    """Bring the first `count` files of a dataset (−1: all) and the one for validation into a folder.

    `dataset` is a name, `hf://owner/name`, or an address of numbered files (`datasets.py`). The folder defaults to
    `~/.cache/tokenfeed/<name>`, or `$TOKENFEED_CACHE/<name>`. First `files.json` is written there with the names of all
    these files, so that a stream can begin with the first of them. A later call with a greater count makes that list
    longer; no call makes it shorter or changes the file for validation. Then come the first file, the one for
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
        dataset = find_dataset(
            dataset,
            count=count,
            list_repository=list_repository,
            earlier_val=lambda name: _val(place or default_folder(name)),
        )
    place = place or default_folder(dataset.name)
    train = dataset.train if count < 0 else dataset.train[:count]
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    _extend_listing(place, Listing(tuple(file.name for file in train), (dataset.val.name,)))
    with bars() if progress is True else contextlib.nullcontext(progress or _ignore) as tell:
        work = _Work(place, (*train[:1], dataset.val, *train[1:]), patience, tell)
        # A loop of its own: disks may be slow, and other requests of this process must not wait for them.
        with LoopThread("tokenfeed-download") as loop:
            loop.run(work.run(workers))
    paths = tuple(place / file.name for file in (*train, dataset.val) if file.name not in work.failed)
    return Downloaded(place, paths, tuple(work.skipped), work.failed)


def default_folder(name: str) -> Path:
    """The folder of a dataset if the caller names none."""
    cache = os.environ.get("TOKENFEED_CACHE")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache" / "tokenfeed") / name


def _val(folder: Path) -> str | None:
    listing = read_listing(folder)
    return listing.val[0] if listing and listing.val else None


def _ignore(arrival: Arrival) -> None:
    pass


def _has_any(folder: Path, listing: Listing) -> bool:
    """Whether anything of a list has arrived, or begun to."""
    names = {*listing.train, *listing.val}
    return any(child.name.removesuffix(".tmp") in names for child in folder.iterdir())


def _extend_listing(folder: Path, listing: Listing) -> None:
    """Make the list of a folder hold these files. If two processes do so at once, the longer list remains."""
    with _locked(folder):
        before = read_listing(folder)
        if before is not None:
            for split, there, here in (("train", before.train, listing.train), ("val", before.val, listing.val)):
                for number, (old, new) in enumerate(zip(there, here, strict=False)):
                    if old != new and _has_any(folder, before):
                        raise ArgumentError(
                            f"{folder} holds another dataset: {split} file {number} is {old!r} in its files.json and "
                            f"{new!r} in this one. Choose another folder."
                        )
            if len(before.train) >= len(listing.train) and _has_any(folder, before):
                return
        write_listing(folder, listing)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: two that start at once must agree by chance
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class _Work:
    """The files of one download, and how they fare."""

    def __init__(
        self, folder: Path, files: tuple[RemoteFile, ...], patience: Patience, tell: Callable[[Arrival], None]
    ) -> None:
        self.skipped: list[str] = []
        self.failed: dict[str, str] = {}
        self._folder = folder
        self._num_files = len(files)
        self._waiting = deque(files)
        self._patience = patience
        self._tell = tell
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
                arrived = await fetch(file, self._folder, self._patience, functools.partial(self._report, file))
            except DownloadError as error:
                self.failed[file.name] = str(error)
                self._report(file, 0, None, state="failed")
                self._failed_in_a_row += 1
                if self._failed_in_a_row == _MOST_FAILURES:
                    self._give_up()
                continue
            self._failed_in_a_row = 0
            if not arrived:
                self.skipped.append(file.name)
            size = (self._folder / file.name).stat().st_size
            self._report(file, size, size, state="arrived" if arrived else "there")

    def _report(
        self,
        file: RemoteFile,
        done: int,
        total: int | None,
        *,
        state: Literal["arriving", "arrived", "there", "failed"] = "arriving",
    ) -> None:
        self._tell(Arrival(file.name, state, done, total, self._num_files))

    def _give_up(self) -> None:
        """Take back the files that nobody has begun with."""
        names = sorted(file.name for file in self._waiting)
        self.failed |= dict.fromkeys(names, f"not tried, because {_MOST_FAILURES} files in a row had failed")
        self._waiting.clear()
