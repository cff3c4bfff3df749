"""`Store`: shards seen as one long array; and `open`, which makes one of whatever is at a path."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from tokenfeed.errors import ArgumentError, StateError, quantity
from tokenfeed.format.codecs import Codec, find_codec
from tokenfeed.storage.address import is_remote, remember
from tokenfeed.storage.files import Backend
from tokenfeed.storage.folder import PathLike, display
from tokenfeed.storage.hub import address_of
from tokenfeed.storage.remote import Remote, RemoteStats
from tokenfeed.store.data import Data
from tokenfeed.store.documents import Documents
from tokenfeed.store.packed import Packed
from tokenfeed.store.packing import PackReport, Progress, pack
from tokenfeed.store.reader import ReadOptions
from tokenfeed.store.resolve import SplitSize, as_paths, resolve
from tokenfeed.store.spec import LOSS_MASK, DocumentsSpec, PackedSpec, ViewSpec, WindowsSpec
from tokenfeed.store.subset import Subset, SubsetSpec
from tokenfeed.store.view import TO_TORCH, View
from tokenfeed.store.windows import Windows

__all__ = ["Store", "open_store", "open_unfinished"]


class Store(Data):
    """Items on disk, any of which can be read in constant time, with spans over them.

    Files are opened when they are first read. They are closed by `close`, at the end of a `with` block, or when nothing
    refers to the store or its views any more. A store pickles by the path and options it was opened with.
    """

    split: str | None = None
    """The split that it was opened for, or "all"; None where there are no named splits."""
    splits: Mapping[str, SplitSize] = {}
    """Shards and items of every named split at its path, opened or not; of shards without a name, as ""."""

    def __reduce__(self) -> Any:
        return self.opening, ()

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """Refused, with the way out: torch's DataLoader takes what has a length for a dataset of samples."""
        raise ArgumentError(f"a store has no length: a view of it has, such as view = store.windows(2048); {TO_TORCH}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait until fetched data is in the disk cache. The store can still be read: files are opened again."""
        self.reader.close()

    def remote_stats(self) -> RemoteStats | None:
        """What fetching took since it was opened; None where all of it is local."""
        return self.reader.stats()

    def view(self, spec: ViewSpec) -> View:
        """The view that a spec describes: `store.view(view.spec)` has the same samples as `view`."""
        if isinstance(spec, SubsetSpec):
            base = self.view(spec.base)
            return Subset(base, spec.select(base), spec)
        if type(spec) not in View.kinds:
            raise ArgumentError(f"{spec!r} describes no view of a store")
        return View.kinds[type(spec)](self, spec)

    def windows(
        self,
        length: int,
        *,
        extra: int = 1,
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = "auto",
        loss_weights: str | None = None,
    ) -> Windows:
        """Samples of `length` items and `extra` more: sample i = items [i·length, i·length + length + extra).

        Windows run on from shard to shard. The last items, which fill no window, are in no epoch: `repr` of the view
        says how many.

        The primary column (`tokens`, or the only one), the `columns` named, and the `spans` named with their payloads
        are read together when a batch is; anything else when it is asked for. `loss_mask` names a column whose zeros
        mark items that must not be learned: by default the column `loss_mask`, where the store has one; None learns
        everything. `loss_weights` names one of numbers from 0 on, the weights of items as targets.
        """
        delivery = self._delivery(columns, spans, loss_mask, loss_weights)
        return Windows(self, WindowsSpec(length, extra, **delivery))

    def documents(
        self,
        table: str = "documents",
        *,
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = "auto",
        loss_weights: str | None = None,
    ) -> Documents:
        """One span of `table` = one sample. `loss_mask` and `loss_weights` as for `windows`.

        Columns of a batch hold its documents one after the other (`batch.offsets` says where each begins); inputs and
        targets are padded to the longest, and `loss_mask` leaves the padding out.
        """
        delivery = self._delivery(columns, spans, loss_mask, loss_weights)
        return Documents(self, DocumentsSpec(table=table, **delivery))

    def packed(
        self,
        length: int,
        *,
        table: str = "documents",
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = "auto",
        loss_weights: str | None = None,
        cache: str | Path | None = None,
    ) -> Packed:
        """Samples of `length` + 1 items made of whole spans of `table`, by a plan that `pack` made: O(1) to open.

        A document longer than that is in several samples; none is lost and none is repeated. `cache` is the folder of
        the plan, if `pack` was given one. `loss_mask` and `loss_weights` as for `windows`.
        """
        delivery = self._delivery(columns, spans, loss_mask, loss_weights)
        spec = PackedSpec(length, table=table, cache=None if cache is None else str(cache), **delivery)
        return Packed(self, spec)

    def _delivery(
        self,
        columns: Sequence[str],
        spans: Sequence[str],
        loss_mask: str | None,
        loss_weights: str | None,
    ) -> dict[str, Any]:
        """The fields of a spec that say what comes along with a sample."""
        for option, names in (("columns", columns), ("spans", spans)):
            if isinstance(names, str):
                raise ArgumentError(f"{option} is {names!r}; expected a list of names: {option}=[{names!r}]")
        if loss_mask == "auto":
            loss_mask = LOSS_MASK if LOSS_MASK in self.columns else None
        return {"columns": tuple(columns), "spans": tuple(spans), "loss_mask": loss_mask, "loss_weights": loss_weights}

    def pack(
        self,
        length: int,
        *,
        table: str = "documents",
        cache: str | Path | None = None,
        progress: Progress | None = None,
    ) -> PackReport:
        """Make the plan of `packed(length)` by best fit decreasing, from the spans alone: about 0.5 µs a document.

        It lies in the store's folder, or, where that cannot be written to or is not one folder, in
        `~/.cache/tokenfeed/packed` (`$TOKENFEED_CACHE/packed`); or in the folder `cache`.
        """
        return pack(self, length, table, cache, progress)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.columns.items())
        size = f"{quantity(self.num_items, 'item')} in {quantity(len(self.shards), 'shard')}"
        if self.splits:
            there = ", ".join(f"{name or 'no split'} {count.items:,}" for name, count in self.splits.items())
            size += f"; split {self.split!r} of {there}"
        return f"Store({size}; {columns}; spans {list(self.spans)})"


def open_store(
    path: PathLike | Sequence[PathLike],
    *,
    split: str | None = None,
    version: int | None = None,
    dtype: Any = None,
    eos: int | None = None,
    codecs: Iterable[Codec] = (),
    backend: Backend = "pread",
    remote: Remote | None = None,
) -> Store:
    """Open a store, a file of another system, or several of either as one long array. Reads the manifest alone.

    `split` takes the shards of one named split, or of "all". Without it, where a store has named splits, those of
    "train" are taken, and those that are of none: validation data is never trained on by default.

    `version` is a number of `store.versions`, by default that of the newest: whenever shards are added to a sealed
    store, it has one version more, and the earlier ones stay as they were.

    `dtype` is that of files which do not say (raw nanoGPT and OLMo-core files); `eos`, the token that ends a document,
    makes documents of files that have no boundaries. `codecs` are those of your own, for span payloads.

    `backend="pread"` reads positionally; `"mmap"` maps the files, which is faster while they fit the page cache, slower
    when they do not, and kills the process when a file is truncated under it.

    `path` may be an address: s3://, gs://, az://, https://, http:// (files of other systems must be local). `remote`
    says how such data is read, and whether a cache on disk keeps it.

    A store that `prepare` has not finished is refused with a StateError; `tokenfeed.seal(path)` takes what is there.
    """
    if isinstance(path, Store):
        raise ArgumentError(f"{path} is open already: use it as it is; tokenfeed.open(store.paths) opens it once more")
    options = ReadOptions(backend, remote)
    how = {"split": split, "version": version, "dtype": dtype, "eos": eos, "codecs": tuple(codecs)}
    return _open(path, options, **how)[0]


def open_unfinished(
    path: PathLike,
    *,
    split: str | None = None,
    version: int | None = None,
    dtype: Any = None,
    eos: int | None = None,
) -> tuple[Store, str | None]:
    """A store to look at, even if `prepare` has not finished it; and then a message that says so."""
    how = {"split": split, "version": version, "dtype": dtype, "eos": eos}
    return _open(path, ReadOptions(), unfinished=True, **how)


def _open(
    path: PathLike | Sequence[PathLike],
    options: ReadOptions,
    *,
    split: str | None,
    codecs: tuple[Codec, ...] = (),
    unfinished: bool = False,
    **how: Any,
) -> tuple[Store, str | None]:
    """A store, and why it is not finished, where that is to be accepted. `how` is as for `resolve`."""
    paths = [display(one) for one in as_paths(path)]
    if options.remote is not None:
        for one in filter(is_remote, paths):
            remember(address_of(one), options.remote.headers, os.fspath(options.remote.ca or ""))
    whole = resolve(path, **how)
    problem = next(iter(whole.unfinished), None)
    if problem is not None and not unfinished:  # a run would train on a part of the data, unnoticed
        raise StateError(problem)
    content = whole.select(split)
    how |= {"version": whole.version, "split": split, "codecs": codecs, **options._asdict()}
    opening = partial(open_store, paths[0] if len(paths) == 1 else paths, **how)
    spans = content.manifest.spans.items()
    tables = {name: None if codec is None else find_codec(codec, codecs) for name, codec in spans}
    store = Store([content], content.manifest.columns, tables, options, paths=paths, opening=opening)
    store.splits = whole.splits
    store.split = (split or "train") if store.splits else None
    return store, problem
