"""The subject of the page: a store, a run, a running loader, or a folder of text."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tokenfeed.errors import MissingError, TokenfeedError
from tokenfeed.format.layout import MANIFEST
from tokenfeed.observe.snapshots import SUFFIX, find_stats_file
from tokenfeed.runs.origins import open_data
from tokenfeed.runs.run import Run
from tokenfeed.store.store import Store, open_store
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.finding import ENDINGS
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.live import Live
from tokenfeed.ui.messages import last_name, pick

__all__ = ["Subject", "open_subject"]

Thing = TypeVar("Thing")

_FIRST_LINE_BYTES = 1 << 24
_MISSING: dict[type, str] = {
    Store: "does not lead to one store: its run reads several, or its store has moved. Open the store itself to see "
    "samples",
    Run: "is not a run file; open the run file to see its history",
    Live: "is neither a run file nor a stats file written by observe.publish",
    TextFiles: "is not a folder of text",
    Tokenizer: "is shown without a tokenizer, which this needs: start the page with --tokenizer PATH",
}


@dataclass(frozen=True)
class Subject:
    """One thing that the page shows, opened."""

    kind: Literal["store", "run", "stats", "text"]
    name: str
    """Last part of its path. The page never gets the rest."""
    things: tuple[object, ...] = ()
    """The store, run, live counters, text files and tokenizer, as far as there are."""
    homes: tuple[str, ...] = ()
    """Folders of this machine that error messages may name, to be cut out before the page gets them."""
    _opened: dict[str, Store] = field(default_factory=dict, repr=False)
    """Stores of the sources of a mixture, opened so far."""

    def find(self, kind: type[Thing]) -> Thing | None:
        return next((each for each in self.things if isinstance(each, kind)), None)

    def __getitem__(self, kind: type[Thing]) -> Thing:
        """The thing of this kind; without one, MissingError says what to open."""
        found = self.find(kind)
        if found is None:
            raise MissingError(f"{self.name} {_MISSING[kind]}")
        return found

    def store_of(self, source: str | None) -> Store:
        """The store of a source of the run's mixture, opened where the run recorded it; the only store if None."""
        if source is None:
            return self[Store]
        if source not in self._opened:
            last = self[Run].starts[-1]
            paths = list(last.stores.get(source, ()))
            if not paths:
                raise MissingError(f"the run file does not say where the data of source {source!r} is")
            data = last.plan.sources[last.plan.source_number(source)].data
            self._opened[source] = self._check(open_data(paths, data, f"the data of {source!r}"))
        return self._opened[source]

    def _check(self, store: Store) -> Store:
        """Refuse to show a store by a tokenizer that did not make it."""
        tokenizer = self.find(Tokenizer)
        if tokenizer is not None:
            tokenizer.check_made(store.tokenizer, self.name)
        return store

    def __post_init__(self) -> None:
        store = self.find(Store)
        if store is not None:
            self._check(store)

    def describe(self) -> dict[str, Any]:
        """The facts that decide which sections the page shows."""
        tokenizer = self.find(Tokenizer)
        kinds = {"has_store": Store, "has_run": Run, "has_live": Live, "has_text": TextFiles}
        return {
            **pick(self, "kind name"),
            **{name: self.find(kind) is not None for name, kind in kinds.items()},
            "tokenizer": None if tokenizer is None else {"digest": tokenizer.digest, "tokens": tokenizer.vocab_size},
        }


def open_subject(path: str, *, tokenizer: str | None = None, **options: Any) -> Subject:
    """Open a run file, a stats file, a folder, file or pattern of text, a store, or a token file of another system.

    `options` are those of `tokenfeed.open`.
    """
    name = last_name(path if "://" in path else os.path.abspath(path))  # noqa: PTH100 (resolve would follow links)
    tokenizers = () if tokenizer is None else (Tokenizer.load(tokenizer),)
    if _is_run(path):
        run = Run(path)
        hints = [each for start in run.starts for paths in start.stores.values() for each in paths]
        live = Live(Path(path).with_suffix(SUFFIX))
        return Subject("run", name, (run, live, _store_of(run), *tokenizers), _homes([path, *hints]))
    if path.endswith(SUFFIX):
        return Subject("stats", name, (Live(find_stats_file(path)), *tokenizers), _homes([path]))
    if _is_text(path):
        return Subject("text", name, (TextFiles.find(path), *tokenizers), _homes([path]))
    store = open_store(path, **options)
    _ = store.identity  # O(shards): compute it once now, not while the page waits for it
    return Subject("store", name, (store, *tokenizers), _homes([path]))


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


def _is_text(path: str) -> bool:
    if "://" in path:
        return False
    folder = Path(path)
    if folder.is_dir():
        return not (folder / MANIFEST).exists()
    return path.endswith(ENDINGS)


def _store_of(run: Run) -> Store | None:
    """The store of a run over one view, if it is still where the run recorded it."""
    last = run.starts[-1] if run.starts else None
    if last is None or not last.stores.get(""):
        return None
    with contextlib.suppress(TokenfeedError):
        return open_data(list(last.stores[""]), last.plan.sources[0].data, "the data")
    return None
