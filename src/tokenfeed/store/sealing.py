"""The manifest of a store that is written to: which shards there are, sealed or not yet."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tokenfeed.errors import ArgumentError, CorruptionError, NotAStoreError, ReadError
from tokenfeed.format.layout import MANIFEST, SHARD, SHARD_SUMS, check_name, shard_files
from tokenfeed.format.manifest import Manifest, ShardEntry, ShardRecord, check_signature
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.folder import Folder, PathLike, is_missing, open_folder

__all__ = [
    "ShardList",
    "check_records",
    "list_shards",
    "load_entries",
    "load_manifest",
    "load_record",
    "parse_record",
    "record_file",
    "seal",
    "unseal",
]


class ShardList(NamedTuple):
    """The shard folders of a store, by name."""

    committed: list[str]
    unfinished: list[str]
    """Under way, or left behind by a writer that was killed."""


def load_manifest(path: PathLike | Folder, *, verify: bool = False) -> Manifest:
    """The manifest of a store. With `verify`, one that is as it was written, to the last bit."""
    folder = open_folder(path)
    try:
        data = folder.read(MANIFEST)
    except ReadError as error:
        if not is_missing(error):
            raise
        raise NotAStoreError(f"{folder} is no store: there is no {MANIFEST} in it") from None
    if verify:
        check_signature(data, folder.path(MANIFEST))
    return Manifest.from_json(data, folder.path(MANIFEST))


def list_shards(path: PathLike | Folder) -> ShardList:
    """What is there now, whatever the manifest says."""
    shards = ShardList([], [])
    for name, is_committed in open_folder(path).folders(SHARD).items():
        (shards.committed if is_committed else shards.unfinished).append(name)
    return shards


def record_file(folder: Folder, name: str) -> str:
    """The name of the `shard.json` of a shard, from the folder of the store."""
    return f"{check_name('shard', name, where=str(folder))}/{SHARD}"


def load_record(
    path: PathLike | Folder, name: str, manifest: Manifest, *, verify: bool = False
) -> tuple[ShardRecord, ShardEntry]:
    """A shard's `shard.json`, and its line for the manifest. With `verify`, as for `load_manifest`."""
    folder = open_folder(path)
    return parse_record(folder, name, folder.read(record_file(folder, name)), manifest, verify=verify)


def parse_record(
    folder: Folder, name: str, data: bytes, manifest: Manifest, *, verify: bool = False
) -> tuple[ShardRecord, ShardEntry]:
    """The same from the bytes of that file."""
    path = folder.path(record_file(folder, name))
    if verify:
        check_signature(data, path)
    record = ShardRecord.from_json(data, path, manifest.spans)
    expected = {*shard_files(manifest.columns, manifest.spans), SHARD_SUMS}
    if record.files.keys() != expected:
        raise CorruptionError(f"{path} lists the files {sorted(record.files)}; its store needs {sorted(expected)}")
    return record, ShardEntry(name, record.items, record.spans, checksum(data), record.split)


def load_entries(
    path: PathLike | Folder, manifest: Manifest, names: Sequence[str], *, verify: bool = False
) -> tuple[ShardEntry, ...]:
    """The lines for the manifest of many shards."""
    folder = open_folder(path)
    found = folder.read_all([record_file(folder, name) for name in names])
    return tuple(
        parse_record(folder, name, data, manifest, verify=verify)[1] for name, data in zip(names, found, strict=True)
    )


def check_records(folder: Folder, entries: Sequence[ShardEntry]) -> None:
    """Raise a CorruptionError unless every `shard.json` is the one that the manifest lists. Reads all of them."""
    found = folder.read_all([record_file(folder, entry.name) for entry in entries])
    for entry, data in zip(entries, found, strict=True):
        if checksum(data) != entry.checksum:
            raise CorruptionError(
                f"{folder.path(record_file(folder, entry.name))} is not what was written: its checksum is "
                f"{checksum(data)}, the manifest says {entry.checksum}. Restore it from a copy, or write it again."
            )


def seal(path: PathLike | Folder, *, sync: bool = True) -> None:
    """Put the list of shards into the manifest, so that opening the store reads one small file.

    Safe at any time, beside any writers: a shard that is committed meanwhile is listed too.
    """
    folder = open_folder(path)
    manifest = load_manifest(folder)
    if manifest.stores is not None:
        raise ArgumentError(f"{folder} is a combined store; there is nothing to seal")
    listed: list[str] | None = None
    while listed != (committed := list_shards(folder).committed):
        sealed = replace(manifest, shards=load_entries(folder, manifest, committed))
        folder.replace(MANIFEST, sealed.to_json().encode(), sync=sync)
        listed = committed


def unseal(path: PathLike | Folder, *, sync: bool) -> None:
    """Take the list of shards out again, because it is no longer all there is."""
    folder = open_folder(path)
    manifest = load_manifest(folder)
    if manifest.shards is not None:
        folder.replace(MANIFEST, replace(manifest, shards=None).to_json().encode(), sync=sync)
