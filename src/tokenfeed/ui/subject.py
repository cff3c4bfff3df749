"""The subject of the page: a store, a run, or a running loader. Runs and stats may come later."""

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tokenfeed.errors import FormatError, MissingError, PlanMismatchError, TokenfeedError
from tokenfeed.observe.snapshots import SUFFIX, find_stats_files
from tokenfeed.runs.data import open_data
from tokenfeed.runs.run import Run
from tokenfeed.storage.address import local_file
from tokenfeed.store.store import Store, open_store
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.live import Live
from tokenfeed.ui.messages import last_name, pick

__all__ = ["Subject", "open_subject"]

Thing = TypeVar("Thing")

_FIRST_LINE_BYTES = 1 << 24
_MISSING: dict[type, str] = {
    Store: "does not lead to a store: the data has moved, or none was opened. Open the store itself to see samples",
    Run: "is not a run file, or not there yet; open the run file to see its history",
    Live: "is neither a run file nor a stats file written by observe.publish",
}


class FollowedRun:
    """A run file that may be created later, and is read again when it has changed."""

    def __init__(self, path: str, stores: Mapping[str, str] | None) -> None:
        self._path, self._stores = path, stores
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._run: Run | None = None

    def read(self) -> Run | None:
        """The run as it is now; None before the file is there."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            status = Path(self._path).stat()
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if stamp != self._stamp and _is_run(self._path):
                if self._run is None:
                    self._run = Run(self._path, stores=self._stores)
                else:
                    self._run.refresh()
                self._stamp = stamp
        return self._run


@dataclass(frozen=True)
class Subject:
    """One thing that the page shows, opened."""

    kind: Literal["store", "run", "stats"]
    name: str
    """Last part of its path. The page never gets the rest."""
    things: tuple[object, ...] = ()
    """The store, followed run, live counters and tokenizer, as far as there are."""
    homes: tuple[str, ...] = ()
    """Folders of this machine that error messages may name, to be cut out before the page gets them."""
    stores: Mapping[str, str] | None = None
    """Where the data of the run is now, by source, if it was moved."""
    _opened: dict[str, Store] = field(default_factory=dict, repr=False)
    """Stores of the sources of the run, opened so far."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def find(self, kind: type[Thing]) -> Thing | None:
        for each in self.things:
            found = each.read() if isinstance(each, FollowedRun) else each
            if isinstance(found, kind):
                return found
        return None

    def __getitem__(self, kind: type[Thing]) -> Thing:
        """The thing of this kind; without one, MissingError says what to open."""
        found = self.find(kind)
        if found is None:
            raise MissingError(f"{self.name} {_MISSING[kind]}")
        return found

    def store_of(self, source: str | None) -> Store:
        """The store itself; of a run, that of a source, or of its first: opened where the run recorded it."""
        run = self.find(Run)
        if run is None or not run.starts:
            if source:
                raise MissingError(f"there is no source {source[:40]!r}: {self.name} is not a run of a mixture")
            return self[Store]
        last = run.starts[-1]
        number = last.plan.source_number(source) if source else 0
        name, data = last.plan.sources[number].name, last.plan.sources[number].data
        key = f"{name} {data}"
        with self._lock:
            if key not in self._opened:
                where = (self.stores or {}).get(name) or list(last.stores.get(name, ()))
                if not where:
                    raise MissingError(f"the run file does not say where the data of source {name!r} is")
                told = f"the data of {name!r}" if name else "the data"
                self._opened[key] = self._check(open_data(where, data, told))
        return self._opened[key]

    def _check(self, store: Store) -> Store:
        """Refuse to show a store by a tokenizer that did not make it."""
        tokenizer = self.find(Tokenizer)
        if tokenizer is not None:
            tokenizer.check_made(store.tokenizer, self.name)
        return store

    def __post_init__(self) -> None:
        run, store = self.find(Run), self.find(Store)
        if run is not None and run.starts and self.find(Tokenizer) is not None:
            with contextlib.suppress(
                OSError, FormatError, MissingError, PlanMismatchError
            ):  # the data need not be there
                self.store_of(None)
        if store is not None:
            self._check(store)

    def describe(self) -> dict[str, Any]:
        """The facts that decide which views the page has."""
        tokenizer, run = self.find(Tokenizer), self.find(Run)
        has_store = self.find(Store) is not None
        if run is not None:
            with contextlib.suppress(TokenfeedError):
                has_store = self.store_of(None) is not None
        return {
            **pick(self, "kind name"),
            "has_store": has_store,
            "has_run": run is not None and bool(run.starts),
            "has_live": self.find(Live) is not None,
            "tokenizer": None if tokenizer is None else {"digest": tokenizer.digest},
        }


def open_subject(
    path: str, *, tokenizer: str | None = None, stores: Mapping[str, str] | None = None, **options: Any
) -> Subject:
    """Open a run file, a stats file, a store, or a token file of another system.

    A run or stats file may be created later, in a folder that exists. `stores` are where the data of a run is now;
    `options` are those of `tokenfeed.open`.
    """
    if path.endswith(".jsonl"):
        local_file(path)
    name = last_name(path if "://" in path else os.path.abspath(path))  # noqa: PTH100 (resolve would follow links)
    tokenizers = () if tokenizer is None else (Tokenizer.load(tokenizer),)
    if _is_run(path) or (_is_to_come(path) and not path.endswith(SUFFIX)):
        followed = FollowedRun(path, stores)
        run = followed.read()
        starts = () if run is None else run.starts
        hints = [each for start in starts for paths in start.stores.values() for each in paths]
        live = Live(Path(path).with_suffix(SUFFIX))
        homes = _homes([path, *hints, *(stores or {}).values()])
        return Subject("run", name, (followed, live, *tokenizers), homes, stores)
    if path.endswith(SUFFIX):
        if not _is_to_come(path):
            find_stats_files(path)
        return Subject("stats", name, (Live(path), *tokenizers), _homes([path]))
    store = open_store(path, **options)
    _ = store.identity  # O(shards): compute it once now, not while the page waits for it
    return Subject("store", name, (store, *tokenizers), _homes([path]))


def _is_to_come(path: str) -> bool:
    """Whether a run or stats file may still be created there."""
    file = Path(path)
    return "://" not in path and path.endswith(".jsonl") and not file.exists() and file.absolute().parent.is_dir()


def _homes(paths: list[str]) -> tuple[str, ...]:
    """The parent folders of these paths, in every form a message may write them."""
    local = [Path(path) for path in paths if "://" not in path]
    return tuple({str(form.parent) for path in local for form in (path.absolute(), path.resolve())})


def _is_run(path: str) -> bool:
    """Whether the first line is that of a run file."""
    if not path.endswith(".jsonl") or not os.path.isfile(path):  # noqa: PTH113 (an address is no Path)
        return False
    with contextlib.suppress(OSError, ValueError, RecursionError), Path(path).open("rb") as file:
        first = json.loads(file.readline(_FIRST_LINE_BYTES))
        return isinstance(first, dict) and isinstance(first.get("plan"), dict)
    return False
