"""The list of shards of a store: in the manifest once it is sealed, found by listing folders before that."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    NotAStoreError,
    NotFoundError,
    ReadError,
    StateError,
)
from tokenfeed.format.layout import MANIFEST, PREPARE_PLAN, PREPARED, SHARD, check_name
from tokenfeed.format.manifest import Manifest, ShardEntry, ShardRecord, Version
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.folder import Folder, PathLike, is_missing, open_folder
from tokenfeed.store.shards import NativeShard

__all__ = [
    *("ShardList", "differences", "find_lacking", "find_unfinished", "list_shards"),
    *("load_manifest", "merge_entries", "parse_record", "record_file", "seal", "unseal"),
]


class ShardList(NamedTuple):
    """Names of the shard folders of a store."""

    committed: list[str]
    unfinished: list[str]
    """Shards being written, or abandoned by a killed writer."""


def load_manifest(path: PathLike | Folder) -> Manifest:
    """Read the manifest of a store."""
    folder = open_folder(path)
    try:
        data = folder.read(MANIFEST)
    except (ReadError, NotFoundError) as error:
        if not is_missing(error):
            raise
        raise NotAStoreError(f"{folder} is not a store: it has no {MANIFEST}") from None
    return Manifest.from_json(data, folder.path(MANIFEST))


def differences(first: Manifest, second: Manifest) -> Iterator[tuple[str, Any, Any]]:
    """(what, in the first, in the second) of all that keeps stores, or a store and a writer, from being one."""
    columns = [{name: str(column) for name, column in each.columns.items()} for each in (first, second)]
    spans, tokenizers = (dict(first.spans), dict(second.spans)), (first.tokenizer, second.tokenizer)
    for what, (here, there) in (("columns", columns), ("span tables", spans), ("tokenizer", tokenizers)):
        if here != there:
            yield what, here, there


def list_shards(path: PathLike | Folder) -> ShardList:
    """The shards that exist now, whatever the manifest says."""
    shards = ShardList([], [])
    for name, is_committed in open_folder(path).folders(SHARD).items():
        (shards.committed if is_committed else shards.unfinished).append(name)
    return shards


def find_unfinished(folder: Folder, manifest: Manifest) -> str | None:
    """Why the store is not complete, in words; None unless `prepare` began it and has not sealed it."""
    if manifest.shards is not None or manifest.stores is not None or not folder.exists(PREPARE_PLAN):
        return None
    return (
        f"{folder} is not finished: `tokenfeed prepare` began it, and some of its inputs may be missing. Run the same "
        "`tokenfeed prepare` again, and every other part if it ran with part=…: it makes what is missing. To take only "
        "what is there, call tokenfeed.seal(path)"
    )


def find_lacking(folder: Folder, manifest: Manifest) -> list[str]:
    """Shards that `prepare` has made, by its own records, but that a sealed store does not list as they were made."""
    if manifest.shards is None or not folder.can_list or not folder.exists(PREPARE_PLAN):
        return []
    listed = {entry.name: entry.checksum for entry in manifest.shards}
    names = [f"{PREPARED}/{name}" for name in folder.files(PREPARED) if name.endswith(".json")]
    lacking = []
    for data in folder.read_all([name for name in names if not name.startswith(f"{PREPARED}/.")]):
        # What cannot be read, `prepare` makes again.
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            made = json.loads(data)["shards"].items()
            lacking += [str(name) for name, checksum in made if listed.get(name) != checksum]
    return sorted(lacking)


def record_file(folder: Folder, name: str) -> str:
    """Path of the `shard.json` of a shard, relative to the folder of the store."""
    return f"{check_name('shard', name, where=str(folder))}/{SHARD}"


def parse_record(folder: Folder, name: str, data: bytes, manifest: Manifest) -> tuple[ShardRecord, ShardEntry]:
    """The record in a shard's `shard.json`, and its entry for the manifest, from the bytes of the file."""
    path = folder.path(record_file(folder, name))
    record = ShardRecord.from_json(data, path, manifest.spans)
    entry = ShardEntry(name, record.items, record.spans, checksum(data), record.split)
    expected = NativeShard(folder, entry, manifest.columns, manifest.spans).parts().keys()
    if record.files.keys() != expected:
        raise CorruptionError(f"{path} lists the files {sorted(record.files)}; expected {sorted(expected)}")
    return record, entry


def _load_entries(folder: Folder, manifest: Manifest, names: Sequence[str]) -> list[ShardEntry]:
    """The manifest entries of many shards, from their `shard.json`, all of which are read."""
    found = folder.read_all([record_file(folder, name) for name in names])
    return [parse_record(folder, name, data, manifest)[1] for name, data in zip(names, found, strict=True)]


def seal(
    path: PathLike | Folder,
    *,
    shards: Mapping[str, str] | None = None,
    replace_changed: bool = False,
    sync: bool = True,
) -> None:
    """Put the list of shards into the manifest, so that opening the store reads one small file.

    Where there are shards that no version has, this makes a new version: the shards of the last one, then the new ones
    by name. Earlier versions stay; `tokenfeed.open(path, version=…)` opens them. A shard of an earlier version that was
    changed or removed is an error; with `replace_changed` the store is what is there now, and the versions that had the
    shard cannot be opened any more.

    `shards` are those to list, with the checksums of their `shard.json`, which must be there, whatever earlier versions
    had. By default all are listed that are there.

    Safe at any time, even while writers work: a shard committed meanwhile is listed too.
    """
    folder = open_folder(path)
    manifest, done = load_manifest(folder), None
    if manifest.stores is not None:
        raise ArgumentError(f"{folder} is a combined store, which has no shards to seal; seal the stores it combines")
    while done != (committed := list_shards(folder).committed if shards is None else sorted(shards)):
        replaces = replace_changed or shards is not None
        entries = merge_entries(folder, manifest, committed, replace_changed=replaces)
        if shards is not None and {entry.name: entry.checksum for entry in entries} != shards:
            raise StateError(f"{folder} was changed by another process while it was being sealed. Run it again")
        present = Version.of(entries)
        versions = manifest.versions if manifest.versions[-1:] == (present,) else (*manifest.versions, present)
        sealed = replace(manifest, shards=entries, earlier=None, versions=versions)
        folder.replace(MANIFEST, sealed.to_json().encode(), sync=sync)
        manifest, done = load_manifest(folder), committed  # another writer may have sealed the store meanwhile


def merge_entries(
    folder: Folder, manifest: Manifest, committed: Sequence[str], *, replace_changed: bool = False
) -> tuple[ShardEntry, ...]:
    """The shards of the last version, then those that are new, by name; the `shard.json` of each is read.

    `replace_changed` is as for `seal`: where shards of the last version are not as they were, all are listed by name.
    """
    found = {entry.name: entry for entry in _load_entries(folder, manifest, committed)}
    listed = () if manifest.version is None else manifest.listed
    wrong = [entry.name for entry in listed if found.get(entry.name) != entry]
    if wrong and not replace_changed:
        raise CorruptionError(
            f"{folder.path(wrong[0])}, a shard of version {len(manifest.versions)} of the store, "
            f"{'has changed' if wrong[0] in found else 'is gone'}: a store grows by new shards only. Restore it from a "
            "copy; or tokenfeed.seal(path, replace_changed=True) takes what is there, and ends the earlier versions"
        )
    known = [] if wrong else [entry.name for entry in listed]
    return tuple(found[name] for name in dict.fromkeys([*known, *committed]))


def unseal(path: PathLike | Folder, *, sync: bool, forget: bool = False) -> None:
    """Mark the list of shards in the manifest as an earlier one, because a new shard makes it incomplete.

    `forget` drops it, because shards that it names will be removed.
    """
    folder = open_folder(path)
    manifest = load_manifest(folder)
    if manifest.shards is not None or (forget and manifest.earlier is not None):
        earlier = None if forget else manifest.listed
        folder.replace(MANIFEST, replace(manifest, shards=None, earlier=earlier).to_json().encode(), sync=sync)
