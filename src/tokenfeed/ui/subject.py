"""The subject of the page: a store, a run, a running loader, or a folder of text."""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
from tokenfeed.ui.telling import last_name

__all__ = ["Subject", "open_subject"]

_FIRST_LINE_BYTES = 1 << 24


@dataclass(frozen=True)
class Subject:
    """One thing that the page shows, opened."""

    kind: Literal["store", "run", "stats", "text"]
    name: str
    """Last part of its path. The page never gets the rest."""
    given_store: Store | None = None
    given_run: Run | None = None
    given_files: TextFiles | None = None
    given_live: Live | None = None
    given_tokenizer: Tokenizer | None = None
    homes: tuple[str, ...] = ()
    """Folders of this machine that error messages may name, to be cut out before the page gets them."""
    _opened: dict[str, Store] = field(default_factory=dict, repr=False)
    """Stores of the sources of a mixture, opened so far."""

    @property
    def store(self) -> Store:
        if self.given_store is None:
            raise MissingError(
                f"{self.name} does not lead to one store: its run reads several, or its store has moved. Open the "
                "store itself to see samples"
            )
        return self.given_store

    def store_of(self, source: str | None) -> Store:
        """The store of a source of the run's mixture, opened where the run recorded it; the only store if None."""
        if source is None:
            return self.store
        if source not in self._opened:
            plan, paths = self.run.starts[-1].plan, list(self.run.starts[-1].stores.get(source, ()))
            if not paths:
                raise MissingError(f"the run file does not say where the data of source {source!r} is")
            data = plan.sources[plan.source_number(source)].data
            self._opened[source] = open_data(paths, data, f"the data of {source!r}")
        return self._opened[source]

    @property
    def run(self) -> Run:
        if self.given_run is None:
            raise MissingError(f"{self.name} is not a run file; open the run file to see its history")
        return self.given_run

    @property
    def live(self) -> Live:
        if self.given_live is None:
            raise MissingError(f"{self.name} is neither a run file nor a stats file written by observe.publish")
        return self.given_live

    @property
    def files(self) -> TextFiles:
        if self.given_files is None:
            raise MissingError(f"{self.name} is not a folder of text")
        return self.given_files

    @property
    def tokenizer(self) -> Tokenizer:
        if self.given_tokenizer is None:
            raise MissingError("this needs a tokenizer: start the page with --tokenizer PATH")
        return self.given_tokenizer

    def describe(self) -> dict[str, Any]:
        """The facts that decide which sections the page shows."""
        tokenizer = self.given_tokenizer
        return {
            "kind": self.kind,
            "name": self.name,
            "has_store": self.given_store is not None,
            "has_run": self.given_run is not None,
            "has_live": self.given_live is not None,
            "has_text": self.given_files is not None,
            "tokenizer": None if tokenizer is None else {"digest": tokenizer.digest, "tokens": tokenizer.vocab_size},
        }


def open_subject(
    path: str,
    *,
    tokenizer: str | None = None,
    split: str | None = None,
    dtype: str | None = None,
    eos: int | None = None,
) -> Subject:
    """Open a run file, a stats file, a folder, file or pattern of text, a store, or a token file of another system."""
    loaded = None if tokenizer is None else Tokenizer.load(tokenizer)
    name = last_name(path if "://" in path else os.path.abspath(path))  # noqa: PTH100 (resolve would follow links)
    homes = _homes([path])
    if _is_run(path):
        run = Run(path)
        homes = _homes([path, *(each for start in run.starts for hints in start.stores.values() for each in hints)])
        return Subject(
            "run",
            name,
            given_store=_store_of(run),
            given_run=run,
            given_live=Live(Path(path).with_suffix(SUFFIX)),
            given_tokenizer=loaded,
            homes=homes,
        )
    if path.endswith(SUFFIX):
        return Subject("stats", name, given_live=Live(find_stats_file(path)), given_tokenizer=loaded, homes=homes)
    if _is_text(path):
        return Subject("text", name, given_files=TextFiles.find(path), given_tokenizer=loaded, homes=homes)
    store = open_store(path, split=split, dtype=dtype, eos=eos)
    _ = store.identity  # O(shards): compute it once now, not while the page waits for it
    return Subject("store", name, given_store=store, given_tokenizer=loaded, homes=homes)


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
