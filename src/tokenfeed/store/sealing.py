"""The manifest of a store that is written to: which shards there are, sealed or not yet."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokenfeed.errors import ArgumentError, CorruptionError, NotAStoreError
from tokenfeed.format.layout import MANIFEST, SHARD, check_name, column_file, span_files
from tokenfeed.format.manifest import Manifest, ShardEntry, ShardRecord
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.files import reading
from tokenfeed.storage.local import read_bytes, replace_bytes

__all__ = ["ShardList", "list_shards", "load_entries", "load_manifest", "load_record", "seal", "unseal"]


class ShardList(NamedTuple):
    """The shard folders of a store, by name."""

    committed: list[str]
    unfinished: list[str]
    """Under way, or left behind by a writer that was killed."""


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a store."""
    path = folder / MANIFEST
    if not path.is_file():
        raise NotAStoreError(f"{folder} is no store: there is no {MANIFEST} in it")
    return Manifest.from_json(read_bytes(path), str(path))


def list_shards(folder: Path) -> ShardList:
    """What is there now, whatever the manifest says."""
    shards = ShardList([], [])
    with reading(str(folder)), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for name in names:
        (shards.committed if (folder / name / SHARD).is_file() else shards.unfinished).append(name)
    return shards


def load_record(folder: Path, name: str, manifest: Manifest) -> tuple[ShardRecord, ShardEntry]:
    """A shard's `shard.json`, and its line for the manifest."""
    path = folder / check_name("shard", name, where=str(folder)) / SHARD
    data = read_bytes(path)
    record = ShardRecord.from_json(data, str(path), manifest.spans)
    expected = {column_file(column) for column in manifest.columns}
    for table, codec in manifest.spans.items():
        names = span_files(table)
        expected.update(names if codec is not None else names[:2])
    if record.files.keys() != expected:
        raise CorruptionError(f"{path} lists the files {sorted(record.files)}; its store needs {sorted(expected)}")
    return record, ShardEntry(name, record.items, record.spans, checksum(data), record.split)


def load_entries(folder: Path, manifest: Manifest, names: list[str]) -> tuple[ShardEntry, ...]:
    return tuple(load_record(folder, name, manifest)[1] for name in names)


def seal(path: str | Path, *, sync: bool = True) -> None:
    """Put the list of shards into the manifest, so that opening the store reads one small file.

    Safe at any time, beside any writers: a shard that is committed meanwhile is listed too.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    if manifest.stores is not None:
        raise ArgumentError(f"{folder} is a combined store; there is nothing to seal")
    listed: list[str] | None = None
    while listed != (committed := list_shards(folder).committed):
        sealed = replace(manifest, shards=load_entries(folder, manifest, committed))
        replace_bytes(folder / MANIFEST, sealed.to_json().encode(), sync=sync)
        listed = committed


def unseal(folder: Path, *, sync: bool) -> None:
    """Take the list of shards out again, because it is no longer all there is."""
    manifest = load_manifest(folder)
    if manifest.shards is not None:
        replace_bytes(folder / MANIFEST, replace(manifest, shards=None).to_json().encode(), sync=sync)
