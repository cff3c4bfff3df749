"""Bringing a dataset's files into a folder, several at a time."""

import contextlib
import fcntl
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokenfeed.errors import ArgumentError, DownloadError
from tokenfeed.storage.local import writing
from tokenfeed.text.download.bars import bars
from tokenfeed.text.download.client import Client
from tokenfeed.text.download.datasets import Dataset, RemoteFile, find_dataset, hub_endpoint
from tokenfeed.text.download.events import Arrival
from tokenfeed.text.download.hub import list_repository
from tokenfeed.text.download.retries import Stopped
from tokenfeed.text.download.transfer import fetch
from tokenfeed.text.sources.listing import Listing, read_listing, write_listing

__all__ = ["Downloaded", "default_folder", "download"]

_MOST_FAILURES = 20
_LAST_SECONDS = 0.5


@dataclass(frozen=True)
class Downloaded:
    """What a download brought."""

    folder: Path
    paths: tuple[Path, ...]
    """The files that are there now: those to train on in order, then the one for validation."""
    skipped: tuple[str, ...]
    """The names of those that were there before."""
    failed: dict[str, str]
    """Name → why it could not be had."""

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
    timeout: float = 30.0,
    retries: int = 5,
    backoff: float = 1.0,
) -> Downloaded:
    """Bring the first `count` files of a dataset (−1: all) and the one for validation into a folder.

    `dataset` is a name, `hf://owner/name`, or an address of numbered files (`datasets.py`). The folder is by
    default `~/.cache/tokenfeed/<name>`, or `$TOKENFEED_CACHE/<name>`. First of all `files.json` is written there with
    the names of all these files, so that a feed can begin with the first of them; a later call with a greater count
    makes that list longer, and none makes it shorter or changes the file for validation. Then come the first file, the
    one for validation, and the rest in order, `workers` at a time. Files that are there are skipped, parts continued.

    A file that cannot be had is listed in `failed` and the others go on, unless 20 in a row fail: then the rest is not
    tried. A disk that will not be written to raises WriteError, a list of files that cannot be had DownloadError.
    `timeout`, `retries` and `backoff` (half the seconds before the third attempt; they double) say how long one file
    may stand still: see `retries.py`. Ctrl-C ends it within a second; everything that has arrived is kept.
    """
    if count < -1:
        raise ArgumentError(f"count is {count}; it must be at least 0, or −1 for all")
    for name, value, least in (("workers", workers, 1), ("retries", retries, 0), ("timeout", timeout, 0.001)):
        if value < least:
            raise ArgumentError(f"{name} is {value}; it must be at least {least}")
    endpoint = hub_endpoint()
    client = Client(
        workers=workers,
        timeout=timeout,
        retries=retries,
        backoff=backoff,
        token=os.environ.get("HF_TOKEN", "").strip() or None,
        token_url=endpoint,
    )
    with contextlib.closing(client):
        place = None if folder is None else Path(folder).expanduser()
        if isinstance(dataset, str):
            dataset = find_dataset(
                dataset,
                count=count,
                list_repository=lambda address: list_repository(client, address),
                earlier_val=lambda name: _val(place or default_folder(name)),
            )
        place = place or default_folder(dataset.name)
        train = dataset.train if count < 0 else dataset.train[:count]
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        _extend_listing(place, Listing(tuple(file.name for file in train), (dataset.val.name,)))
        with bars() if progress is True else contextlib.nullcontext(progress or _ignore) as tell:
            work = _Work(client, place, (*train[:1], dataset.val, *train[1:]), tell)
            work.run(workers)
    paths = tuple(place / file.name for file in (*train, dataset.val) if file.name not in work.failed)
    return Downloaded(place, paths, tuple(work.skipped), work.failed)


def default_folder(name: str) -> Path:
    """Where a dataset goes unless told otherwise."""
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
    """Make the list of a folder hold these files. Of two processes that do so at once, the longer list remains."""
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


@dataclass
class _Outcome:
    file: RemoteFile
    state: Literal["arrived", "there", "failed"] = "failed"
    error: BaseException | None = None


@dataclass
class _Work:
    """The files of one download, and the threads that fetch them."""

    client: Client
    folder: Path
    files: tuple[RemoteFile, ...]
    tell: Callable[[Arrival], None]
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    _waiting: "queue.SimpleQueue[RemoteFile]" = field(default_factory=queue.SimpleQueue)
    _outcomes: "queue.SimpleQueue[_Outcome]" = field(default_factory=queue.SimpleQueue)

    def run(self, workers: int) -> None:
        for file in self.files:
            self._waiting.put(file)
        # Daemons, because a thread that waits for a name server can be neither interrupted nor joined within a second.
        threads = [threading.Thread(target=self._fetch_all, daemon=True) for _ in range(min(workers, len(self.files)))]
        for thread in threads:
            thread.start()
        try:
            self._collect()
        finally:
            self.client.stop()
            deadline = time.monotonic() + _LAST_SECONDS
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _fetch_all(self) -> None:
        while not self.client.stopping.is_set():
            try:
                file = self._waiting.get_nowait()
            except queue.Empty:
                return
            outcome = _Outcome(file)
            try:
                fetched = fetch(self.client, file, self.folder, functools.partial(self._report, file))
                outcome.state = "arrived" if fetched else "there"
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001  the thread that waits decides what becomes of it
                outcome.error = error
            self._outcomes.put(outcome)

    def _report(self, file: RemoteFile, done: int, total: int | None) -> None:
        self.tell(Arrival(file.name, "arriving", done, total, len(self.files)))

    def _collect(self) -> None:
        """Take in the outcome of every file; raises what is not about one file alone, such as a full disk."""
        in_a_row = 0
        left = {file.name for file in self.files}
        while left:
            outcome = self._outcomes.get()
            name = outcome.file.name
            left.discard(name)
            size = None
            if outcome.error is None:
                in_a_row = 0
                size = (self.folder / name).stat().st_size
                if outcome.state == "there":
                    self.skipped.append(name)
            elif isinstance(outcome.error, DownloadError):
                in_a_row += 1
                self.failed[name] = str(outcome.error)
            else:
                raise outcome.error
            self.tell(Arrival(name, outcome.state, size or 0, size, len(self.files)))
            if in_a_row == _MOST_FAILURES:
                left -= self._give_up()

    def _give_up(self) -> set[str]:
        """Take back the files that nobody has begun with."""
        taken = set()
        with contextlib.suppress(queue.Empty):
            while True:
                taken.add(self._waiting.get_nowait().name)
        self.failed |= dict.fromkeys(sorted(taken), f"not tried, because {_MOST_FAILURES} files in a row had failed")
        return taken
