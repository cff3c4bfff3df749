"""Finds the shards at a path: of a store, a combined store, a file of another system, or a list of any of these."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, CorruptionError, MissingError
from tokenfeed.format.foreign import open_all
from tokenfeed.format.layout import MANIFEST
from tokenfeed.format.manifest import Column
from tokenfeed.storage.folder import Folder, PathLike, display, open_folder
from tokenfeed.store.sealing import check_records, list_shards, load_entries, load_manifest
from tokenfeed.store.shards import ForeignShard, NativeShard, Shard, identify

__all__ = ["Content", "PathLike", "resolve"]

NOWHERE: frozenset[str] = frozenset()
_FOREIGN = (".idx", ".bin", ".ds", ".npy")
_DEEPEST = 16
_MOST_SHARDS = 1 << 22
"""Most shards of a combined store: nested ones multiply, and this many take some GB of memory."""


@dataclass(frozen=True, slots=True)
class Content:
    """The combined content of one or more manifests."""

    columns: Mapping[str, Column]
    spans: Mapping[str, str | None]
    """Span tables and the names of their codecs; None for a table without payloads."""
    shards: Sequence[Shard]
    tokenizer: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Checksum of the content, independent of its path. O(shards)."""
        return identify(self.columns, self.spans, self.shards)

    @property
    def splits(self) -> list[str]:
        return sorted({shard.split for shard in self.shards if shard.split is not None})

    def select(self, split: str) -> "Content":
        """Only the shards of one split."""
        shards = [shard for shard in self.shards if shard.split == split]
        if not shards:
            raise MissingError(f"there is no split {split!r}; the store has {', '.join(self.splits) or 'no splits'}")
        return replace(self, shards=shards)


def resolve(
    path: PathLike | Sequence[PathLike],
    *,
    dtype: Any = None,
    eos: int | None = None,
    verify: bool = False,
    within: frozenset[str] = NOWHERE,
) -> Content:
    """The content at a path. Reads only manifests, and the headers of foreign files.

    `verify` compares everything read later with its checksums, and the manifests and every `shard.json` now. `within`
    holds the identities of the combined stores that this one is part of.
    """
    if not isinstance(path, str | os.PathLike):
        if len(path) == 0:
            raise ArgumentError("the list of stores to open is empty; expected at least one")
        how: dict[str, Any] = {"dtype": dtype, "eos": eos, "verify": verify, "within": within}
        return concatenate([(display(one), resolve(one, **how)) for one in path])
    folder = open_folder(path)
    if folder.local is not None and not folder.exists(MANIFEST):
        content = _resolve_foreign(folder.local, dtype, eos)
        if verify:
            raise ArgumentError(
                f"{folder} is a file of another system, which has no checksums to verify. Open it without verify=True"
            )
        return content
    if folder.local is None and str(folder).endswith(_FOREIGN):
        raise ArgumentError(f"{folder} is a remote file of another system; download it first, and open the local copy")
    return _resolve_store(folder, verify, within)


def _resolve_foreign(path: Path, dtype: Any, eos: int | None) -> Content:
    files = open_all(path, dtype=dtype, eos=eos)
    spans = {} if files[0].boundaries is None else {"documents": None}
    return Content(files[0].columns, spans, [ForeignShard(file) for file in files])


def _resolve_store(folder: Folder, verify: bool, within: frozenset[str]) -> Content:
    if len(within) > _DEEPEST:
        raise CorruptionError(f"{folder} is a combined store nested in more than {_DEEPEST} others")
    if folder.identity in within:
        raise CorruptionError(f"{folder} is a combined store that contains itself")
    manifest = load_manifest(folder, verify=verify)
    if manifest.stores is None:
        entries = manifest.shards
        if entries is None:
            if not folder.can_list:
                raise ArgumentError(
                    f"{folder} is not sealed, and its server cannot list files. Call tokenfeed.seal(path) where the "
                    "store was written"
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
                f"{store.uri} has changed since it was combined into {folder}: its identity was {store.identity}, and "
                f"is now {content.identity}. Combine again"
            )
        parts.append((store.uri, content))
        num_shards += len(content.shards)
        if num_shards > _MOST_SHARDS:
            raise CorruptionError(f"{folder} combines more than {_MOST_SHARDS:,} shards")
    content = concatenate(parts) if parts else Content(manifest.columns, manifest.spans, [])
    return replace(content, provenance=manifest.provenance)


def concatenate(parts: Sequence[tuple[str, Content]]) -> Content:
    """Several contents as one; columns, span tables and tokenizer must agree."""
    first_name, first = parts[0]
    for name, other in parts[1:]:
        for what, here, there in (
            ("columns", dict(first.columns), dict(other.columns)),
            ("span tables", dict(first.spans), dict(other.spans)),
            ("tokenizer", first.tokenizer, other.tokenizer),
        ):
            if here != there:
                raise ArgumentError(
                    f"{first_name} and {name} cannot be one store: the first has {what} {_plain(here)}, the second "
                    f"{_plain(there)}"
                )
    return replace(first, shards=[shard for _, content in parts for shard in content.shards], provenance={})


def _plain(value: Any) -> Any:
    return {name: str(item) for name, item in value.items()} if isinstance(value, dict) else value
