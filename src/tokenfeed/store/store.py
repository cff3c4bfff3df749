"""`Store`: shards seen as one long array; and `open`, which makes one of whatever is at a path."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, StateError, quantity
from tokenfeed.format.codecs import Codec, find_codec
from tokenfeed.format.manifest import Column
from tokenfeed.storage.files import Backend
from tokenfeed.storage.folder import PathLike, display
from tokenfeed.storage.remote import Remote, RemoteStats
from tokenfeed.store.data import Data
from tokenfeed.store.documents import Documents
from tokenfeed.store.packed import Packed
from tokenfeed.store.packing import PackReport, Progress, pack
from tokenfeed.store.packing_plan import PackedPieces, PackKey, find_plan, plan_folders
from tokenfeed.store.reader import Reader
from tokenfeed.store.resolve import Content, resolve
from tokenfeed.store.shards import Shard
from tokenfeed.store.spans import SpanTable, SpanTables
from tokenfeed.store.spec import PACKING_ALGORITHM, DocumentsSpec, PackedSpec, ViewSpec, WindowsSpec
from tokenfeed.store.view import View
from tokenfeed.store.windows import Windows

__all__ = ["Store", "open_store"]


@dataclass(frozen=True)
class _Opening:
    """The arguments of `open`: what a store is pickled by."""

    path: PathLike | Sequence[PathLike]
    split: str | None
    options: Mapping[str, Any]

    def __call__(self) -> "Store":
        return open_store(self.path, split=self.split, **self.options)


class Store:
    """Items on disk, any of which can be read in constant time, with spans over them.

    Files are opened when they are first read. They are closed by `close`, at the end of a `with` block, or when nothing
    refers to the store or its views any more. A store pickles by the path and options it was opened with.
    """

    def __init__(
        self,
        content: Content,
        *,
        codecs: Iterable[Codec] = (),
        backend: Backend = "pread",
        reads_in_flight: int = 32,
        max_open_files: int | None = None,
        remote: Remote | None = None,
        paths: Sequence[str] = (),
        opening: _Opening | None = None,
    ) -> None:
        """`paths` and `opening` say where the content was found, and how to open it again."""
        self._content = content
        self._backend: Backend = backend
        reader = Reader(
            content.shards,
            list(content.columns),
            list(content.spans),
            backend=backend,
            reads_in_flight=reads_in_flight,
            max_open_files=max_open_files,
            remote=remote,
        )
        known = list(codecs)
        tables = {
            name: SpanTable(name, None if codec is None else find_codec(codec, known), reader)
            for name, codec in content.spans.items()
        }
        spans = SpanTables(tables)
        self._data = Data(content.columns, spans, reader, lambda: content.identity, paths=paths, opening=opening)
        self._data.tokenizer = content.tokenizer

    def __reduce__(self) -> Any:
        if self._data.opening is None:
            raise ArgumentError("this store was not opened by tokenfeed.open and cannot be pickled")
        return self._data.opening, ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait until fetched data is in the disk cache. The store can still be read: files are opened again."""
        self._data.reader.close()

    @property
    def num_items(self) -> int:
        """Of all its shards, or of those of the split it was opened for."""
        return self._data.num_items

    @property
    def columns(self) -> Mapping[str, Column]:
        """What every item has: dtype and inner shape by name."""
        return self._data.columns

    @property
    def spans(self) -> Mapping[str, SpanTable]:
        """The span tables by name."""
        return self._data.spans

    @property
    def shards(self) -> Sequence[Shard]:
        """What writers wrote, in the order of the store."""
        return self._content.shards

    @property
    def splits(self) -> list[str]:
        """The named splits that its shards belong to."""
        return self._content.splits

    @property
    def tokenizer(self) -> str | None:
        """A name for what made the tokens; the digest of the tokenizer where `prepare` wrote the store."""
        return self._content.tokenizer

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What its first writer had to say about where it comes from."""
        return self._content.provenance

    @property
    def paths(self) -> list[str]:
        """Where it was opened from, absolute. A hint for finding it again, never its identity."""
        return self._data.paths

    def remote_stats(self) -> RemoteStats | None:
        """What fetching took since it was opened; None where all of it is local."""
        return self._data.reader.stats()

    @property
    def identity(self) -> str:
        """A checksum of what is in the store, the same wherever it lies. O(shards)."""
        return self._data.identity

    def view(self, spec: ViewSpec) -> View:
        """The view that a spec describes: `store.view(view.spec)` has the same samples as `view`."""
        match spec:
            case WindowsSpec():
                return Windows(self._data, spec)
            case DocumentsSpec():
                return Documents(self._data, spec)
            case PackedSpec():
                return Packed(self._data, spec, self._find_plan(spec))
        raise ArgumentError(f"{spec!r} describes no view of a store")

    def windows(
        self,
        length: int,
        *,
        extra: int = 1,
        group: int | None = None,
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> Windows:
        """Samples of `length` items and `extra` more: sample i = items [i·length, i·length + length + extra).

        Windows of one `group` of items stay together when shuffled, so that a run may change to another length that
        divides the group, in mid-epoch, and still see every item of the epoch once.

        The primary column (`tokens`, or the only one), the `columns` named, and the `spans` named with their payloads
        are read together when a batch is; anything else when it is asked for. `loss_mask` names a column whose zeros
        mark items that must not be learned.

        `dtype` is the dtype of the primary column in batches: int32 or int64, for a model that takes them from host
        memory. By default it is the stored one, which is best for a device: `tokenfeed.torch.to_device` widens there.
        """
        delivery = _delivery(columns, spans, loss_mask, dtype)
        return Windows(self._data, WindowsSpec(length, extra, group, **delivery))

    def documents(
        self,
        table: str = "documents",
        *,
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> Documents:
        """One span of `table` = one sample. `loss_mask` and `dtype` as for `windows`.

        Columns of a batch hold its documents one after the other (`batch.offsets` says where each begins); inputs and
        targets are padded to the longest, and `loss_mask` leaves the padding out.
        """
        delivery = _delivery(columns, spans, loss_mask, dtype)
        return Documents(self._data, DocumentsSpec(table=table, **delivery))

    def packed(
        self,
        length: int,
        *,
        table: str = "documents",
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = None,
        cache: str | Path | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> Packed:
        """Samples of `length` + 1 items made of whole spans of `table`, by a plan that `pack` made: O(1) to open.

        A document longer than that is in several samples; none is lost and none is repeated. `cache` is the folder of
        the plan, if `pack` was given one. `loss_mask` and `dtype` as for `windows`.
        """
        delivery = _delivery(columns, spans, loss_mask, dtype)
        spec = PackedSpec(length, table=table, cache=None if cache is None else str(cache), **delivery)
        return Packed(self._data, spec, self._find_plan(spec))

    def _find_plan(self, spec: PackedSpec) -> PackedPieces:
        if spec.algorithm != PACKING_ALGORITHM:
            raise StateError(
                f"rows were packed by algorithm {spec.algorithm}; this tokenfeed packs by {PACKING_ALGORITHM}, which "
                "makes other rows"
            )
        wanted = PackKey(self.identity, self._data.spans[spec.table].name, spec.length, self.num_items)
        folders = plan_folders(self.shards, wanted) if spec.cache is None else [Path(spec.cache)]
        verify = any(shard.is_verified for shard in self.shards)
        return find_plan(folders, wanted, backend=self._backend, verify=verify)

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
        return pack(self._data, self.shards, length, table=table, cache=cache, progress=progress)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.columns.items())
        shards = quantity(len(self.shards), "shard")
        return f"Store({quantity(self.num_items, 'item')} in {shards}; {columns}; spans {list(self.spans)})"


def open_store(
    path: PathLike | Sequence[PathLike],
    *,
    split: str | None = None,
    dtype: Any = None,
    eos: int | None = None,
    codecs: Iterable[Codec] = (),
    backend: Backend = "pread",
    reads_in_flight: int = 32,
    max_open_files: int | None = None,
    remote: Remote | None = None,
    verify: bool = False,
) -> Store:
    """Open a store, a file of another system, or several of either as one long array. Reads the manifest alone.

    `split` takes the shards of one named split; without it all are taken. `dtype` is that of files which do not say
    (raw nanoGPT and OLMo-core files); `eos`, the token that ends a document, makes documents of files that have no
    boundaries. `codecs` are those of your own, for span payloads.

    `backend="pread"` reads positionally, with `reads_in_flight` rows under way at once; `"mmap"` maps the files, which
    is faster while they fit the page cache, slower when they do not, and kills the process when a file is truncated
    under it. `max_open_files` bounds the descriptors kept open, by default a quarter of what the process may have.

    `path` may be an address: s3://, gs://, az://, https://, http:// (files of other systems must be local). `remote`
    says how such data is read, and whether a cache on disk keeps it.

    `verify=True` compares whatever is read with the checksums of its blocks: a byte that is not the one that was
    written is never delivered, but raises a CorruptionError. It reads the `shard.json` of every shard first. Files of
    other systems have no such checksums, and are refused.
    """
    content = resolve(path, dtype=dtype, eos=eos, verify=verify)
    how: dict[str, Any] = {
        "codecs": tuple(codecs),
        "backend": backend,
        "reads_in_flight": reads_in_flight,
        "max_open_files": max_open_files,
        "remote": remote,
    }
    paths = [display(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
    options = {**how, "dtype": dtype, "eos": eos, "verify": verify}
    return Store(
        content if split is None else content.select(split),
        **how,
        paths=paths,
        opening=_Opening(paths[0] if len(paths) == 1 else paths, split, options),
    )


def _delivery(
    columns: Sequence[str], spans: Sequence[str], loss_mask: str | None, dtype: npt.DTypeLike | None
) -> dict[str, Any]:
    """The fields of a spec that say what comes along with a sample."""
    name = None if dtype is None else np.dtype(dtype).name
    return {"columns": tuple(columns), "spans": tuple(spans), "loss_mask": loss_mask, "dtype": name}
