"""From a path to the shards behind it: stores, combined stores, files of other systems, and lists of any of these."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, CorruptionError, MissingError, NotAStoreError
from tokenfeed.format.foreign import open_foreign
from tokenfeed.format.layout import MANIFEST
from tokenfeed.format.manifest import Column
from tokenfeed.storage.folder import Folder, PathLike, display, open_folder
from tokenfeed.storage.local import reading
from tokenfeed.store.sealing import check_records, list_shards, load_entries, load_manifest
from tokenfeed.store.shards import ForeignShard, NativeShard, Shard, identify

__all__ = ["Content", "PathLike", "resolve"]

NOWHERE: frozenset[str] = frozenset()
_FOREIGN = (".idx", ".bin", ".ds", ".npy")
_DEEPEST = 16
_MOST_SHARDS = 1 << 22
"""Combined stores within each other multiply; this is what the list of shards may take in memory, some GB."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything a manifest, or several, say."""

    columns: Mapping[str, Column]
    spans: Mapping[str, str | None]
    """Span tables and the names of their codecs; None for a table without payloads."""
    shards: Sequence[Shard]
    tokenizer: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """A checksum of all this, the same wherever it lies. O(shards)."""
        return identify(self.columns, self.spans, self.shards)

    @property
    def splits(self) -> list[str]:
        return sorted({shard.split for shard in self.shards if shard.split is not None})

    def select(self, split: str) -> "Content":
        """The shards of one split alone."""
        shards = [shard for shard in self.shards if shard.split == split]
        if not shards:
            raise MissingError(f"there is no split {split!r}; there are {', '.join(self.splits) or 'none'}")
        return replace(self, shards=shards)


def resolve(
    path: PathLike | Sequence[PathLike],
    *,
    dtype: Any = None,
    eos: int | None = None,
    verify: bool = False,
    within: frozenset[str] = NOWHERE,
) -> Content:
    """What is at a path. Reads manifests alone; of foreign files, their headers.

    With `verify`, what is read of it will be compared with its checksums, beginning with manifests and the `shard.json`
    of every shard. `within` are the combined stores that this one is part of.
    """
    if not isinstance(path, str | os.PathLike):
        if len(path) == 0:
            raise ArgumentError("an empty list of stores cannot be opened")
        how: dict[str, Any] = {"dtype": dtype, "eos": eos, "verify": verify, "within": within}
        return concatenate([(display(one), resolve(one, **how)) for one in path])
    folder = open_folder(path)
    if folder.local is not None and not folder.exists(MANIFEST):
        content = _resolve_foreign(folder.local, dtype, eos)
        if verify:
            raise ArgumentError(
                f"{folder} cannot be verified while it is read: it is a file of another system, which has no checksums "
                "of its blocks. Open it without verify=True."
            )
        return content
    if folder.local is None and str(folder).endswith(_FOREIGN):
        raise ArgumentError(f"{folder}: files of other systems are opened from local disks alone; download it first")
    return _resolve_store(folder, verify, within)


def _resolve_foreign(path: Path, dtype: Any, eos: int | None) -> Content:
    with reading(str(path)):
        is_folder = path.is_dir()
    if is_folder:
        raise NotAStoreError(f"{path} is no store: there is no {MANIFEST} in it")
    file = open_foreign(path, dtype=dtype, eos=eos)
    spans = {} if file.document_starts is None else {"documents": None}
    return Content(file.columns, spans, [ForeignShard(file)])


def _resolve_store(folder: Folder, verify: bool, within: frozenset[str]) -> Content:
    if len(within) > _DEEPEST:
        raise CorruptionError(f"{folder} is a combined store within more than {_DEEPEST} others")
    if folder.identity in within:
        raise CorruptionError(f"{folder} is a combined store that consists of itself")
    manifest = load_manifest(folder, verify=verify)
    if manifest.stores is None:
        entries = manifest.shards
        if entries is None:
            if not folder.can_list:
                raise ArgumentError(
                    f"{folder} is not sealed, and its server has no list of what it holds. Where it was written, call "
                    "tokenfeed.seal(path) first."
                )
            entries = load_entries(folder, manifest, list_shards(folder).committed, verify=verify)
        elif verify:
            check_records(folder, entries)
        shards = [NativeShard(folder, entry, manifest.columns, manifest.spans, verify=verify) for entry in entries]
        return Content(manifest.columns, manifest.spans, shards, manifest.tokenizer, manifest.provenance)
    parts, num_shards = [], 0
    for store in manifest.stores:
        around = within | {folder.identity}
        content = resolve(folder.resolve(store.uri), dtype=store.dtype, eos=store.eos, verify=verify, within=around)
        if content.identity != store.identity:
            raise CorruptionError(
                f"{folder} was combined from {store.uri} with identity {store.identity}; it is now {content.identity}. "
                "That store has changed: combine again."
            )
        parts.append((store.uri, content))
        num_shards += len(content.shards)
        if num_shards > _MOST_SHARDS:
            raise CorruptionError(f"{folder} is combined from more than {_MOST_SHARDS:,} shards")
    content = concatenate(parts) if parts else Content(manifest.columns, manifest.spans, [])
    return replace(content, provenance=manifest.provenance)


def concatenate(parts: Sequence[tuple[str, Content]]) -> Content:
    """Several as one long array; they must agree on what an item is."""
    first_name, first = parts[0]
    for name, other in parts[1:]:
        for what, here, there in (
            ("columns", dict(first.columns), dict(other.columns)),
            ("span tables", dict(first.spans), dict(other.spans)),
            ("tokenizer", first.tokenizer, other.tokenizer),
        ):
            if here != there:
                raise ArgumentError(
                    f"{first_name} and {name} cannot be one store: {what} {_plain(here)} there, {_plain(there)} here"
                )
    return replace(first, shards=[shard for _, content in parts for shard in content.shards], provenance={})


def _plain(value: Any) -> Any:
    return {name: str(item) for name, item in value.items()} if isinstance(value, dict) else value
