"""`Workplace`: a store being prepared, local or remote, and its `.prepare` folder, which readers pass over.

plan.json                    the recipe, and the inputs with their digests
slices/000003-000017.json    slice 17 of input 3 is done: its shards with their checksums, and counts
lock                         held by the processes that work on a local store; gone with them, whatever kills them

A slice is done once its record is there, and its shards are those the record names.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenfeed.format.layout import MANIFEST, SHARD
from tokenfeed.kernels.checksum import checksum
from tokenfeed.preparation.records import PreparePlan, Record, slice_name
from tokenfeed.storage import objects
from tokenfeed.storage.folder import PathLike, open_folder
from tokenfeed.storage.local import reading, writing
from tokenfeed.store.sealing import list_shards

__all__ = ["Workplace"]

_PLAN = ".prepare/plan.json"
_RECORDS = ".prepare/slices"
_TEMPORARY = re.compile(r"\.(manifest|plan|\d{6}-\d{6})\.json\.[0-9a-f]{16}")  # as storage/local.py names them


class Workplace:
    """Any number of processes may have one for the same store. Small files are read many at a time."""

    def __init__(self, store: PathLike) -> None:
        self.folder = open_folder(store)

    @property
    def lock(self) -> Path | None:
        """The lock of a local store. Object stores need none: a slice that is made twice is the same."""
        return None if self.folder.local is None else self.folder.local / ".prepare" / "lock"

    @property
    def exists(self) -> bool:
        """Whether something was prepared there before."""
        return self.folder.exists(_PLAN)

    @property
    def is_store(self) -> bool:
        return self.folder.exists(MANIFEST)

    def make(self) -> None:
        """Make the folders."""
        self.folder.make()
        if self.folder.local is not None:
            with writing(self.folder.local / _RECORDS):
                (self.folder.local / _RECORDS).mkdir(parents=True, exist_ok=True)

    def load_plan(self) -> PreparePlan:
        return PreparePlan.from_json(self.folder.read(_PLAN), self.folder.path(_PLAN))

    def create_plan(self, plan: PreparePlan) -> bool:
        """Put the first plan in place; False if another run just did."""
        return self.folder.create(_PLAN, plan.to_json())

    def replace_plan(self, plan: PreparePlan) -> None:
        self.folder.replace(_PLAN, plan.to_json())

    def load_records(self) -> dict[str, Record]:
        """The records of all slices that are done, by their names: those whose shards are as the record says."""
        names = self._list_records()
        found = self.folder.read_all([f"{_RECORDS}/{name}.json" for name in names])
        records = {
            name: record
            for name, data in zip(names, found, strict=True)
            if (record := Record.from_json(data)) is not None and slice_name(record.slice) == name
        }
        if not records:
            return {}
        committed = set(list_shards(self.folder).committed)
        named = [shard for record in records.values() for shard in record.shards if shard in committed]
        checksums = self._checksums(named)
        return {name: record for name, record in records.items() if record.shards.items() <= checksums.items()}

    def put_record(self, record: Record) -> None:
        """Note that the slice is done."""
        self.folder.replace(f"{_RECORDS}/{slice_name(record.slice)}.json", record.to_json())

    def drop_records_of(self, file: int) -> None:
        """Forget that the slices of an input are done."""
        for name in self._list_records():
            if name.startswith(f"{file:06d}-"):
                self._delete(f"{_RECORDS}/{name}.json")

    def made_shards(self, names: Iterable[str]) -> Mapping[str, str]:
        """The committed shards of writers of these names, and their checksums."""
        return self._checksums([shard for name in names for shard in self._numbered(name)])

    def remove_shards(self, names: Iterable[str]) -> None:
        """Remove the shards of writers of these names, the last first, so that a kill leaves no gap."""
        for name in names:
            for shard in reversed(self._numbered(name)):
                self.remove_shard(shard)

    def remove_shard(self, shard: str) -> None:
        """Remove one shard; for readers it is gone at once."""
        self._delete(f"{shard}/{SHARD}")
        if self.folder.local is not None:
            with writing(self.folder.local / shard):
                shutil.rmtree(self.folder.local / shard)
        else:
            for name in objects.list_keys(self.folder.path(shard)):
                self._delete(f"{shard}/{name}")

    def sweep(self) -> None:
        """Remove temporary files that a killed process left. Only for a run that is alone."""
        if self.folder.local is None:
            return
        for folder in (self.folder.local, self.folder.local / ".prepare", self.folder.local / _RECORDS):
            with reading(str(folder)):
                paths = list(folder.iterdir())
            for path in paths:
                if _TEMPORARY.fullmatch(path.name):
                    with writing(path):
                        path.unlink(missing_ok=True)

    def _delete(self, name: str) -> None:
        if self.folder.local is not None:
            with writing(self.folder.local / name):
                (self.folder.local / name).unlink(missing_ok=True)
        else:
            objects.delete(self.folder.path(name))

    def _list_records(self) -> list[str]:
        if self.folder.local is None:
            names = objects.list_keys(self.folder.path(_RECORDS))
        else:
            folder = self.folder.local / _RECORDS
            with reading(str(folder)):
                names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]

    def _numbered(self, name: str) -> list[str]:
        """The shards of one writer, unfinished local ones included."""
        found: list[str] = []
        while self._is_there(shard := f"{name}-{len(found):05d}"):
            found.append(shard)
        return found

    def _is_there(self, shard: str) -> bool:
        local = self.folder.local
        if local is None:
            return self.folder.exists(f"{shard}/{SHARD}")
        with reading(str(local / shard)):
            return (local / shard).is_dir()

    def _checksums(self, shards: Sequence[str]) -> dict[str, str]:
        found = self.folder.read_all([f"{shard}/{SHARD}" for shard in shards])
        return {shard: checksum(data) for shard, data in zip(shards, found, strict=True)}
