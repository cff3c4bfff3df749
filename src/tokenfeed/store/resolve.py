"""Finds the shards at a path: of a store, a combined store, a file of another system, or a list of any of these."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, MissingError, NotAStoreError, StateError
from tokenfeed.format.foreign import open_foreign
from tokenfeed.format.foreign.recognise import describe, describe_remote
from tokenfeed.format.layout import MANIFEST
from tokenfeed.format.manifest import Manifest, Reference
from tokenfeed.format.npy import descr_to_json
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.folder import Folder, PathLike, RemoteFolder, display, open_folder
from tokenfeed.storage.local import reading
from tokenfeed.store.sealing import differences, find_unfinished, list_shards, load_manifest, merge_entries
from tokenfeed.store.shards import ForeignShard, NativeShard, Shard

__all__ = ["Content", "SplitSize", "StoreVersion", "as_paths", "combine", "resolve"]

_FOREIGN = (".idx", ".bin", ".ds", ".npy", ".mds", ".arrow", ".feather", ".ipc")
_ONE_TOKENIZER = (
    ". Prepare them with one tokenizer, and the same bos=… and eos=…; or mix them: tokenfeed.mix(…, "
    "allow_different_tokenizers=True) if their ids mean the same"
)
_MOST_SHARDS = 1 << 22
"""Most shards of a combined store, which may name one store many times: this many take some GB of memory."""


class SplitSize(NamedTuple):
    """How much of a store is of one split."""

    shards: int
    items: int


class StoreVersion(NamedTuple):
    """A version of a store: of the split that was opened."""

    number: int
    shards: int
    items: int
    identity: str | None
    """Identity that a store opened at this version has; None where its shards are lost."""


@dataclass(frozen=True, slots=True)
class Content:
    """The combined content of one or more manifests."""

    manifest: Manifest
    """Columns, span tables, tokenizer and provenance; those of the first of several."""
    shards: Sequence[Shard]
    unfinished: tuple[str, ...] = ()
    """Messages about the stores in it that `prepare` has not completed, or no writer has put a shard into."""
    version: int | None = None
    """Version of the one store that it is; None where that has none, or is not sealed."""
    split: str | None = None
    """The split that was selected; None for the default."""

    @property
    def identity(self) -> str:
        """Checksum of the content, independent of its path. O(shards)."""
        return self.identify([shard.identity for shard in self.shards])

    def identify(self, checksums: Sequence[str]) -> str:
        """The identity of content like this that has shards with these checksums."""
        columns = [[name, descr_to_json(column.dtype), column.shape] for name, column in self.manifest.columns.items()]
        return checksum(json.dumps([columns, list(self.manifest.spans.items()), checksums]).encode())

    @property
    def versions(self) -> list[StoreVersion]:
        """All versions of the store, restricted to the split. O(versions · shards)."""
        found = []
        for number in range(1, len(self.manifest.versions) + 1):
            try:
                every = self.manifest.at(number, "the store")
            except CorruptionError:
                found.append(StoreVersion(number, self.manifest.versions[number - 1].shards, 0, None))
                continue
            entries = [entry for entry in every if self.split == "all" or entry.split in _splits(self.split)]
            items, identity = sum(entry.items for entry in entries), self.identify([e.checksum for e in entries])
            found.append(StoreVersion(number, len(entries), items, identity))
        return found

    @property
    def splits(self) -> dict[str, SplitSize]:
        """Sizes of the named splits, and of shards without as ""; nothing where no shard is of a named split."""
        sizes: dict[str, SplitSize] = {}
        for shard in self.shards:
            shards, items = sizes.get(shard.split or "", (0, 0))
            sizes[shard.split or ""] = SplitSize(shards + 1, items + shard.num_items)
        return dict(sorted(sizes.items())) if sizes.keys() - {""} else {}

    def select(self, split: str | None) -> "Content":
        """The shards of one split, or of "all". Without a name, those of "train" and those that are of none."""
        if split == "all":
            return replace(self, split=split)
        shards = [shard for shard in self.shards if shard.split in _splits(split)]
        if not shards and (split is not None or self.shards):
            there = ", ".join(repr(name) for name in self.splits if name)
            remedy = (
                f'{there}: open one by split="…", or all of them by split="all"'
                if there
                else "no splits: leave split out"
            )
            raise MissingError(f"there is no split {split or 'train'!r}; the store has {remedy}")
        return replace(self, shards=shards, split=split)


def _splits(split: str | None) -> tuple[str | None, ...]:
    """Splits of the shards that are taken for one."""
    return ("train", None) if split is None else (split,)


def as_paths(given: Any) -> list[PathLike]:
    """A path or address, or a list of them, as a list."""
    paths = list(given) if isinstance(given, list | tuple) else [given]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(
                f"{path!r:.100} cannot be opened: expected the path or address of a store, or a list of them, and got "
                f"an object of type {type(path).__name__}"
            )
    if not paths:
        raise ArgumentError("the list of stores to open is empty; expected at least one")
    return paths


def resolve(
    path: PathLike | Sequence[PathLike],
    *,
    dtype: Any = None,
    eos: int | None = None,
    version: int | None = None,
    is_part: bool = False,
) -> Content:
    """The content at a path. Reads only manifests, and the headers of foreign files.

    `version` is that of one store, by default the newest. A combined store is refused where it would be `is_part` of
    another. The caller decides whether an unfinished store will do.
    """
    if not isinstance(path, str | os.PathLike):
        how: dict[str, Any] = {"dtype": dtype, "eos": eos, "version": version}
        if version is not None and len(as_paths(path)) > 1:
            raise ArgumentError(
                f"version={version} is of one store, and a list of {len(as_paths(path))} is opened. Combine them: "
                "tokenfeed.combine keeps the version of each"
            )
        return _concatenate([(display(one), resolve(one, **how)) for one in as_paths(path)])
    folder = open_folder(path)
    if folder.local is not None and not folder.exists(MANIFEST):
        content = _resolve_foreign(folder.local, dtype, eos)
        if version is not None:
            raise ArgumentError(
                f"{folder} is a file of another system, which has no versions. Leave version={version} out"
            )
        return content
    if folder.local is None and str(folder).endswith(_FOREIGN):
        raise ArgumentError(str(describe_remote(str(folder))))
    try:
        manifest = load_manifest(folder)
    except NotAStoreError as error:
        names = folder.names() if isinstance(folder, RemoteFolder) else []
        raise NotAStoreError(describe_remote(str(folder), names) or str(error)) from None
    if manifest.stores is None:
        return _resolve_shards(folder, manifest, version)
    if is_part:
        raise ArgumentError(f"{folder} is a combined store, which cannot be part of another: combine the stores in it")
    if version is not None:
        raise ArgumentError(
            f"{folder} is a combined store: it names the version of each store in it, and has none of its own. Leave "
            f"version={version} out"
        )
    return _resolve_stores(folder, manifest, manifest.stores)


def _resolve_foreign(path: Path, dtype: Any, eos: int | None) -> Content:
    with reading(path):
        is_folder = path.is_dir()
    if is_folder:
        how = "`tokenfeed prepare` makes a store of text, tokenfeed.Writer of tokens"
        raise NotAStoreError(describe(path) or f"{path} is not a store: it has no {MANIFEST}. {how}")
    file = open_foreign(path, dtype=dtype, eos=eos)
    spans = {} if file.boundaries is None else {"documents": None}
    return Content(Manifest(file.columns, spans), [ForeignShard(file)])


def _resolve_shards(folder: Folder, manifest: Manifest, version: int | None) -> Content:
    entries = manifest.shards if version is None else manifest.at(version, str(folder))
    unfinished = find_unfinished(folder, manifest) if version is None else None
    if entries is None:
        if not folder.can_list:
            raise ArgumentError(
                f"{folder} is not sealed, and its server cannot list files. Call tokenfeed.seal(path) where the store "
                "was written"
            )
        committed, is_begun = list_shards(folder).committed, unfinished is not None
        entries = merge_entries(folder, manifest, committed, replace_changed=is_begun)
        if not entries and unfinished is None:
            unfinished = (
                f"{folder} holds no finished shard: its writer is at work, was not closed, or failed. `with "
                "tokenfeed.Writer(…) as writer:` closes it"
            )
    elif version is None:
        version = manifest.version
    shards = [NativeShard(folder, entry, manifest.columns, manifest.spans) for entry in entries]
    return Content(manifest, shards, () if unfinished is None else (unfinished,), version)


def _resolve_stores(folder: Folder, manifest: Manifest, stores: Sequence[Reference]) -> Content:
    parts, num_shards = [], 0
    for store in stores:
        how: dict[str, Any] = {"dtype": store.dtype, "eos": store.eos, "version": store.version}
        content = resolve(folder.resolve(store.uri), **how, is_part=True)
        if content.identity != store.identity:
            raise CorruptionError(
                f"{store.uri} has changed since it was combined into {folder}: its identity was {store.identity}, and "
                f"is now {content.identity}. Combine again"
            )
        parts.append((store.uri, content))
        num_shards += len(content.shards)
        if num_shards > _MOST_SHARDS:
            raise CorruptionError(f"{folder} combines more than {_MOST_SHARDS:,} shards")
    content = _concatenate(parts) if parts else Content(manifest, [])
    manifest = replace(content.manifest, provenance=manifest.provenance, shards=None, earlier=None, versions=())
    return replace(content, manifest=manifest, version=None)


def _concatenate(parts: Sequence[tuple[str, Content]]) -> Content:
    """Several contents as one; columns, span tables and tokenizer must agree."""
    first_name, first = parts[0]
    if len(parts) == 1:
        return first
    for name, other in parts[1:]:
        for what, here, there in differences(first.manifest, other.manifest):
            raise ArgumentError(
                f"{first_name} and {name} cannot be one store: the first has {what} {here}, the second {there}"
                + (_ONE_TOKENIZER if what == "tokenizer" else "")
            )
    shards = [shard for _, content in parts for shard in content.shards]
    unfinished = tuple(message for _, content in parts for message in content.unfinished)
    manifest = replace(first.manifest, provenance={}, shards=None, earlier=None, versions=())
    return Content(manifest, shards, unfinished=unfinished)


def combine(stores: Sequence[PathLike], out: PathLike, *, dtype: Any = None, eos: int | None = None) -> None:
    """Make `out` a store that consists of `stores`, one after the other. None of them may be a combined store.

    This only writes a manifest. It names the others by relative path (remote ones by address) and by identity, so that
    opening the combined store detects a part that has changed. `dtype` and `eos` are as for `open`.
    """
    if isinstance(stores, str | os.PathLike) or not stores:
        raise ArgumentError("combine expects a list of at least one store")
    folder = open_folder(out)
    contents = [(display(store), resolve(store, dtype=dtype, eos=eos, is_part=True)) for store in as_paths(stores)]
    whole = _concatenate(contents)
    for message in whole.unfinished:  # what is there is a part of the data, and would be taken for all of it
        raise StateError(message)
    together = whole.manifest
    dtype_name = None if dtype is None else np.dtype(dtype).str
    references = tuple(
        Reference(folder.refer(name), content.identity, dtype_name, eos, content.version) for name, content in contents
    )
    manifest = replace(together, provenance={}, shards=None, earlier=None, versions=(), stores=references)
    folder.make()
    if not folder.create(MANIFEST, manifest.to_json().encode()):
        raise ArgumentError(f"{folder} already holds a store; choose another folder")
