"""`Workplace`: a store being prepared, local or remote, and its `.prepare` folder, which readers pass over.

plan.json                    the recipe, and the inputs with their digests
slices/000003-000017.json    slice 17 of input 3 is done: its shards with their checksums, and counts
lock                         held by the processes that work on a local store; the last of them removes it

A slice is done once its record is there, and its shards are those the record names. A store is complete once all slices
are done, and the manifest lists exactly their shards.

Runs may overlap, as when a job is started again while its predecessor still works. On a local store the lock keeps them
apart. Elsewhere nothing does, and nothing needs to: runs of one plan make the same shards, byte for byte; a shard that
is there is not touched again; none is removed before all slices are done; and the list of a sealed store is made of the
records. A run that changes the plan writes it first and unseals the store then; one that seals does that first and
looks at the plan then. So one of them notices the other.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict

from tokenfeed.errors import ArgumentError, StateError, TokenfeedError
from tokenfeed.format.layout import MANIFEST, PREPARE_PLAN, PREPARED, SHARD
from tokenfeed.kernels.checksum import checksum
from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.preparation.records import PreparePlan, Record, slice_name
from tokenfeed.storage import objects
from tokenfeed.storage.folder import PathLike, is_missing, open_folder
from tokenfeed.storage.local import writing
from tokenfeed.storage.locks import FileLock
from tokenfeed.store.sealing import list_shards, load_manifest, seal, unseal

__all__ = ["RunLock", "Workplace"]

_TEMPORARY = re.compile(r"\.(manifest|plan|\d{6}-\d{6})\.json\.[0-9a-f]{16}")  # as storage/local.py names them
_OUR_SHARD = re.compile(r"\d{6}-\d{6}(-train|-val|-test)?-\d{5}")
_NAMED = 5
_PATIENCE_SECONDS = 10.0


class Workplace:
    """Any number of processes may have one for the same store. Small files are read many at a time."""

    def __init__(self, store: PathLike) -> None:
        self.folder = open_folder(store)
        self._local = self.folder.local

    @property
    def lock(self) -> "RunLock":
        """A new lock of the store, not held yet."""
        return RunLock(None if self._local is None else FileLock(self._local / ".prepare" / "lock"), str(self.folder))

    def make(self) -> None:
        self.folder.make()
        if self._local is not None:
            with writing(self._local / PREPARED):
                (self._local / PREPARED).mkdir(parents=True, exist_ok=True)

    def is_sealed(self) -> bool:
        return self.folder.exists(MANIFEST) and load_manifest(self.folder).shards is not None

    def is_complete(self, records: Iterable[Record]) -> bool:
        """Whether the store is sealed, and lists exactly the shards of all these slices."""
        listed = load_manifest(self.folder).shards if self.folder.exists(MANIFEST) else None
        return listed is not None and {entry.name: entry.checksum for entry in listed} == _shards_of(records)

    def complete(self, plan: PreparePlan, records: Collection[Record]) -> bool:
        """Seal the store with exactly the shards of all slices, and remove what earlier runs made beside them.

        Returns whether it was not sealed with them before.
        """
        shards = _shards_of(records)
        leftovers = self._find_leftovers(shards)
        self._check_is_current(plan)  # after the list: what is in it was made for this plan, or an earlier one
        for shard in leftovers:
            self.remove_shard(shard)
        if self.is_complete(records):
            return False
        seal(self.folder, shards=shards)
        try:
            self._check_is_current(plan)
        except StateError:
            unseal(self.folder, sync=True)
            raise
        return True

    def _check_is_current(self, plan: PreparePlan) -> None:
        if self.folder.read(PREPARE_PLAN) != plan.to_json():
            raise StateError(
                f"another run prepares {self.folder} with other inputs, which it began after this one. Run it again "
                "with all of them once that run has ended: it does what is missing."
            )

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
            try:
                self._check_is_new()
                return []
            except ArgumentError:  # another run may have put its plan there meanwhile
                before = self.load_plan()
                if before is None:
                    raise
        if is_alone and not self._binds(before, plan):
            return []
        old, new = asdict(before.recipe), asdict(plan.recipe)
        differing = [f"{name} was {old[name]!r}, now {new[name]!r}" for name in new if old[name] != new[name]]
        if differing:
            remote = f" If that run failed before it made anything, remove {self.folder.path(PREPARE_PLAN)}."
            raise ArgumentError(
                f"{self.folder} was prepared with other settings: {'; '.join(differing)}. Use the same, or prepare "
                f"into another folder.{'' if is_alone else remote}"
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
            for shard in self._find_leftovers(()):
                self.remove_shard(shard)
            self.folder.remove(MANIFEST)
            stale = list(range(len(before.inputs)))
        if self.folder.read(PREPARE_PLAN) != plan.to_json():
            self.folder.replace(PREPARE_PLAN, plan.to_json())
        if not stale:
            return
        if self.folder.exists(MANIFEST):
            unseal(self.folder, sync=True, forget=True)
        for name in [name for name in self._list_records() if int(name.partition("-")[0]) in stale]:
            self.folder.remove(f"{PREPARED}/{name}.json")
        for shard in [shard for shard in self._find_leftovers(()) if int(shard.partition("-")[0]) in stale]:
            self.remove_shard(shard)

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
        names = objects.list_keys(str(self.folder), enough=1) if self._local is None else self.folder.files("")
        if visible := [name for name in names if not name.startswith(".")]:
            raise ArgumentError(
                f"{self.folder} is not empty and not a store: it holds {_name_some(visible, ', ')}. Prepare into a "
                "folder of its own."
            )

    def load_records(self) -> dict[str, Record]:
        """The records of all slices that are done, by their names: those whose shards are as the record says."""
        names = self._list_records()
        found = self.folder.read_all([f"{PREPARED}/{name}.json" for name in names])
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

    def find_record(self, wanted: Slice, input_digest: str) -> Record | None:
        """The record of a slice that another run has done meanwhile."""
        path = f"{PREPARED}/{slice_name(wanted)}.json"
        if not self.folder.exists(path):
            return None
        try:
            record = Record.from_json(self.folder.read(path))
            if record is None or (record.slice, record.input_digest) != (wanted, input_digest):
                return None
            return record if self._checksums(list(record.shards)) == record.shards else None
        except TokenfeedError as error:
            if not is_missing(error):
                raise
            return None

    def put_record(self, record: Record) -> None:
        """Note that the slice is done."""
        self.folder.replace(f"{PREPARED}/{slice_name(record.slice)}.json", record.to_json())

    def _find_leftovers(self, wanted: Collection[str]) -> list[str]:
        """Shards that runs of `prepare` made but that belong to no finished slice."""
        shards = list_shards(self.folder)
        names = (*shards.committed, *shards.unfinished)
        return [name for name in names if _OUR_SHARD.fullmatch(name) and name not in wanted]

    def remove_shard(self, shard: str) -> None:
        """Remove one shard; for readers it is gone at once."""
        self.folder.remove(f"{shard}/{SHARD}")
        self.folder.remove(shard)

    def sweep(self) -> None:
        """Remove temporary files that a killed process left. Only for a run that is alone, so on a local store."""
        for name in ("", ".prepare/", f"{PREPARED}/"):
            for file in self.folder.files(name):
                if _TEMPORARY.fullmatch(file):
                    self.folder.remove(name + file)

    def _list_records(self) -> list[str]:
        names = self.folder.files(PREPARED)
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]

    def _checksums(self, shards: Sequence[str]) -> dict[str, str]:
        found = self.folder.read_all([f"{shard}/{SHARD}" for shard in shards])
        return {shard: checksum(data) for shard, data in zip(shards, found, strict=True)}


class RunLock:
    """Keeps runs on a local store apart: one run holds it alone until it lets its workers in, who share it.

    Parts of a run share it too. Waits for the workers of a killed run to end. A remote store has none.
    """

    def __init__(self, lock: FileLock | None, store: str) -> None:
        self._lock, self._store = lock, store

    def take(self, *, exclusive: bool) -> None:
        """Hold it alone, or let others in."""
        if self._lock is not None and not self._lock.take(exclusive=exclusive, patience=_PATIENCE_SECONDS):
            raise StateError(
                f"another run is preparing {self._store} (it holds {self._lock.path}). Wait for it, or stop it: what "
                "it has done is kept."
            )

    def is_alone(self) -> bool:
        """Whether nobody else holds it; if so, nobody else can from now on. If not, it is not held here either."""
        return self._lock is not None and self._lock.take(exclusive=True) and self._lock.is_known

    def release(self, *, remove: bool = False) -> None:
        if self._lock is not None:
            self._lock.release(remove=remove)

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release(remove=self.is_alone())


def _shards_of(records: Iterable[Record]) -> dict[str, str]:
    """All shards of slices that are done, with the checksums of their `shard.json`."""
    return {shard: checksum for record in records for shard, checksum in record.shards.items()}


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
