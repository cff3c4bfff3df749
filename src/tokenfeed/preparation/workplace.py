"""`Workplace`: a store being prepared, local or remote, and its `.prepare` folder, which readers pass over.

plan.json                    the recipe, and the inputs with their digests
slices/000003-000017.json    slice 17 of input 3 is done: its shards with their checksums, and counts
lock                         held by the processes that work on a local store; gone with them, whatever kills them

A slice is done once its record is there, and its shards are those the record names.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.format.layout import MANIFEST, PREPARE_PLAN, SHARD
from tokenfeed.kernels.checksum import checksum
from tokenfeed.preparation.inputs import InputFile
from tokenfeed.preparation.records import PreparePlan, Record, slice_name
from tokenfeed.storage import objects
from tokenfeed.storage.folder import PathLike, open_folder
from tokenfeed.storage.local import reading, writing
from tokenfeed.store.sealing import list_shards, load_manifest

__all__ = ["Workplace", "hold"]

_RECORDS = ".prepare/slices"
_TEMPORARY = re.compile(r"\.(manifest|plan|\d{6}-\d{6})\.json\.[0-9a-f]{16}")  # as storage/local.py names them
_OUR_SHARD = re.compile(r"\d{6}-\d{6}(-train|-val|-test)?-\d{5}")
_NAMED = 5
_PATIENCE_SECONDS = 10.0
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class Workplace:
    """Any number of processes may have one for the same store. Small files are read many at a time."""

    def __init__(self, store: PathLike) -> None:
        self.folder = open_folder(store)
        self._local = self.folder.local
        self.lock = None if self._local is None else self._local / ".prepare" / "lock"
        """The lock of a local store. Object stores need none: a slice that is made twice is the same."""

    def make(self) -> None:
        self.folder.make()
        if self._local is not None:
            with writing(self._local / _RECORDS):
                (self._local / _RECORDS).mkdir(parents=True, exist_ok=True)

    def is_sealed(self) -> bool:
        return self.folder.exists(MANIFEST) and load_manifest(self.folder).shards is not None

    def is_listed(self, shards: Collection[str]) -> bool:
        """Whether a version of the store has any of these shards."""
        return any(entry.name in shards for entry in load_manifest(self.folder).listed)

    def load_plan(self) -> PreparePlan | None:
        """The plan that is there; None where nothing was prepared before."""
        if not self.folder.exists(PREPARE_PLAN):
            return None
        return PreparePlan.from_json(self.folder.read(PREPARE_PLAN), self.folder.path(PREPARE_PLAN))

    def check_plan(self, plan: PreparePlan, *, replace_changed: bool = False, is_alone: bool = True) -> list[int]:
        """Check that a run can continue the store: the same recipe, the same inputs, perhaps more of them.

        Returns the numbers of the inputs that have changed since they were prepared; an error where that is not wanted.
        A plan that a failed first run left, with no shards made, binds nobody, unless others may be at work on it.
        """
        before = self.load_plan()
        if before is None:
            self._check_is_new()
            return []
        if is_alone and not self._binds(before, plan):
            return []
        old, new = asdict(before.recipe), asdict(plan.recipe)
        differing = [f"{name} was {old[name]!r}, now {new[name]!r}" for name in new if old[name] != new[name]]
        if differing:
            raise ArgumentError(
                f"{self.folder} was prepared with other settings: {'; '.join(differing)}. Use the same, or prepare "
                "into another folder."
            )
        if len(plan.inputs) < len(before.inputs):
            given = {file.content for file in plan.inputs}
            missing = [file.name for file in before.inputs if file.content not in given]
            raise ArgumentError(
                f"{self.folder} was prepared from {len(before.inputs):,} inputs, now there are {len(plan.inputs):,}; "
                f"missing: {_name_some(missing, ', ') or 'some'}. Give all of them, new ones at the end."
            )
        both = list(enumerate(zip(before.inputs, plan.inputs, strict=False)))
        changed = [number for number, (was, now) in both if was.content != now.content]
        if changed and not replace_changed:
            shown = _name_some([_describe_change(number, *both[number][1]) for number in changed], "; ")
            raise ArgumentError(
                f"inputs have changed since {self.folder} was prepared from them: {shown}. Give the same inputs in the "
                "same order, and new ones at the end; or redo the inputs that changed, with replace_changed "
                "(--replace-changed)."
            )
        return changed

    def agree_on_plan(self, plan: PreparePlan, *, replace_changed: bool = False, is_alone: bool = True) -> None:
        """Put the plan into the store, or check that it fits the one that is there. New inputs are added to it."""
        if self.folder.create(PREPARE_PLAN, plan.to_json()):
            return
        before = self.load_plan()
        stale = self.check_plan(plan, replace_changed=replace_changed, is_alone=is_alone)
        if is_alone and before is not None and not self._binds(before, plan):
            for shard in self.find_leftovers(()):
                self.remove_shard(shard)
            self.folder.remove(MANIFEST)
            stale = list(range(len(before.inputs)))
        for name in self._list_records():
            if int(name.partition("-")[0]) in stale:
                self.folder.remove(f"{_RECORDS}/{name}.json")
        if self.folder.read(PREPARE_PLAN) != plan.to_json():
            self.folder.replace(PREPARE_PLAN, plan.to_json())

    def _binds(self, before: PreparePlan, plan: PreparePlan) -> bool:
        """Whether shards were made by the plan that is there, or it is this one."""
        return before.to_json() == plan.to_json() or any(record.shards for record in self.load_records().values())

    def _check_is_new(self) -> None:
        if self.folder.exists(MANIFEST):
            raise ArgumentError(
                f"{self.folder} is a store that was not prepared from text; prepare into another folder"
            )
        if self._local is not None and self._local.exists() and not self._local.is_dir():
            raise ArgumentError(f"{self.folder} is a file; the store needs a folder of its own")
        # Some servers list folders that are empty; objects are what counts.
        names = objects.list_keys(str(self.folder), enough=1) if self._local is None else self._list("")
        if visible := [name for name in names if not name.startswith(".")]:
            raise ArgumentError(
                f"{self.folder} is not empty and not a store: it holds {_name_some(visible, ', ')}. Prepare into a "
                "folder of its own."
            )

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

    def made_shards(self, names: Iterable[str]) -> Mapping[str, str]:
        """The committed shards of writers of these names, and their checksums."""
        return self._checksums([shard for name in names for shard in self._numbered(name)])

    def find_leftovers(self, wanted: Collection[str]) -> list[str]:
        """Shards that runs of `prepare` made but that belong to no finished slice."""
        shards = list_shards(self.folder)
        names = (*shards.committed, *shards.unfinished)
        return [name for name in names if _OUR_SHARD.fullmatch(name) and name not in wanted]

    def remove_shards(self, names: Iterable[str]) -> None:
        """Remove the shards of writers of these names, the last first, so that a kill leaves no gap."""
        for name in names:
            for shard in reversed(self._numbered(name)):
                self.remove_shard(shard)

    def remove_shard(self, shard: str) -> None:
        """Remove one shard; for readers it is gone at once."""
        self.folder.remove(f"{shard}/{SHARD}")
        self.folder.remove(shard)

    def sweep(self) -> None:
        """Remove temporary files that a killed process left. Only for a run that is alone, so on a local store."""
        for name in ("", ".prepare/", f"{_RECORDS}/"):
            for file in self._list(name):
                if _TEMPORARY.fullmatch(file):
                    self.folder.remove(name + file)

    def _list(self, name: str) -> list[str]:
        if self._local is None:
            return objects.list_keys(self.folder.path(name))
        folder = self._local / name
        with reading(str(folder)):
            return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def _list_records(self) -> list[str]:
        names = self._list(_RECORDS)
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]

    def _numbered(self, name: str) -> list[str]:
        """The shards of one writer, unfinished local ones included."""
        found: list[str] = []
        while self._is_there(shard := f"{name}-{len(found):05d}"):
            found.append(shard)
        return found

    def _is_there(self, shard: str) -> bool:
        if self._local is None:
            return self.folder.exists(f"{shard}/{SHARD}")
        with reading(str(self._local / shard)):
            return (self._local / shard).is_dir()

    def _checksums(self, shards: Sequence[str]) -> dict[str, str]:
        found = self.folder.read_all([f"{shard}/{SHARD}" for shard in shards])
        return {shard: checksum(data) for shard, data in zip(shards, found, strict=True)}


class hold:  # noqa: N801
    """Hold a lock file: alone, as one run does until it lets its workers in, or together with others who share it.

    The lock is the kernel's: it goes with the process that holds it, however that ends. Waits for the workers of a
    killed run to end. Without a path nothing is held.
    """

    def __init__(self, path: Path | None, *, exclusive: bool) -> None:
        self._path, self._exclusive, self._descriptor = path, exclusive, -1

    def __enter__(self) -> Self:
        if self._path is not None:
            with writing(self._path):
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self.take(exclusive=self._exclusive)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # nothing was written to it
            os.close(self._descriptor)

    def is_alone(self) -> bool:
        """Whether nobody else holds it; if so, nobody else can from now on."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, ValueError):  # another has it, or there is none
            return False
        return True

    def take(self, *, exclusive: bool) -> None:
        """Hold it alone, or let others in."""
        if self._path is None:
            return
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StateError(
                        f"another run is preparing {self._path.parents[1]} (it holds {self._path}). Wait for it, or "
                        "stop it: what it has done is kept."
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    with writing(self._path):
                        raise
                return  # a file system without locks


def _name_some(names: Sequence[str], separator: str) -> str:
    more = f"{separator}and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return separator.join(names[:_NAMED]) + more


def _describe_change(number: int, old: InputFile, new: InputFile) -> str:
    if old.name != new.name:
        return f"input {number} was {old.name} ({old.size:,} bytes), now {new.name} ({new.size:,} bytes)"
    if old.split != new.split:
        return f"{new.name} was in split {old.split}, now it is in {new.split}"
    if old.size != new.size:
        return f"{new.name} had {old.size:,} bytes, now {new.size:,}"
    return f"{new.name} had digest {old.digest}, now {new.digest}"
