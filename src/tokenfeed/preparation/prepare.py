"""`prepare`: text files to a store of tokens."""

import contextlib
import fnmatch
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.preparation.engines import Engine, make_engine
from tokenfeed.preparation.inputs import InputFile, cut, find_inputs
from tokenfeed.preparation.locking import hold
from tokenfeed.preparation.mapping import MapFunction, MapOrigin, check_declared, refuse_while_loading
from tokenfeed.preparation.planning import agree_on_plan, check_plan, find_leftovers
from tokenfeed.preparation.recipe import SHARD_BYTES, Recipe, choose_slice_bytes
from tokenfeed.preparation.records import PreparePlan, slice_name
from tokenfeed.preparation.report import Board, Report
from tokenfeed.preparation.slices import Task, WorkerSetup
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.sealing import load_manifest, seal, unseal
from tokenfeed.text.sources.finding import PathLike, find_files
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.sources.splitting import choose_splits
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.version import __version__

__all__ = ["prepare"]

_CUTTING_THREADS = 16


def prepare(
    inputs: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    tokenizer: Tokenizer | PathLike,
    text_column: str = "text",
    keep: Sequence[str] = (),
    bos: bool | str = True,
    eos: str | None = None,
    dtype: Any = None,
    split: Literal["hash", "file"] | None = "hash",
    val_fraction: float = 0.001,
    val_files: Sequence[str] = (),
    split_seed: int = 0,
    map: str | Callable[..., Any] | None = None,  # noqa: A002
    workers: int | None = None,
    engine: str = "local",
    on_error: Literal["fail", "skip"] = "fail",
    part: tuple[int, int] | None = None,
    replace_changed: bool = False,
    dry_run: bool = False,
    slice_bytes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[Report], object] | None = None,
) -> Report:
    """Turn text into a store: Parquet, JSONL and plain text, compressed or not, local or remote.

    `inputs` is a file, a folder, a pattern, an address, or a list of these. The same inputs and settings make the same
    bytes, with any `workers` and either `engine`. To continue after a crash, run it again: it does what is missing.
    Inputs may be added at the end later. A changed input is an error; `replace_changed` redoes its part of the store.

    `keep` names columns that become the payload of a document. `bos=True` begins every document with the tokenizer's
    BOS, where it has one; a name takes that special token, `eos` one to end with. The dtype is the narrowest for the
    vocabulary. `split="hash"` puts `val_fraction` of the documents, chosen by their text, into `val`; `"file"` the last
    file, or the `val_files` (names or patterns); None makes no splits. `map` is a function of your own (see
    `preparation/mapping.py`), or "file.py:function".

    A malformed line (no JSON, no such key, no UTF-8) is a FormatError that names the file and the line;
    `on_error="skip"` leaves such lines out and counts them. A null text is left out and counted in either case.

    `workers` processes work at a time, by default one a core; 0 is this process. `engine="ray"` is a cluster.
    `part=(i, n)` does every n-th slice from the i-th on; the run that does the last one seals the store. A worker takes
    less than 400 MB, most of it Numba's and the tokenizer's, whatever the size of files and documents.

    `progress` is called with a report about ten times a second. `dry_run` only reports what there is to do.
    `slice_bytes` of input are one task, by default 8 to 256 MiB, by how much there is.
    """
    refuse_while_loading()
    _check_part(part, replace_changed)
    store = os.fspath(out)
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    function, origin = _find_map(map, can_stay=engine == "local" and workers == 0)
    chosen = make_engine(engine, workers, function)
    files = find_inputs(inputs)
    recipe = Recipe(
        tokenizer=loaded.digest,
        dtype=_find_dtype(loaded, dtype),
        bos=_find_bos(loaded, bos),
        eos=None if eos is None else loaded.special_id(eos),
        text_column=text_column,
        keep=(keep,) if isinstance(keep, str) else tuple(keep),
        split=split,
        val_fraction=float(val_fraction) if split == "hash" else 0.0,
        split_seed=split_seed if split == "hash" else 0,
        val_inputs=_find_val(inputs, files, val_files) if split == "file" else (),
        map=None if function is None else function.name if origin is None else origin.name,
        slice_bytes=_find_slice_bytes(store, files) if slice_bytes is None else slice_bytes,
        shard_bytes=shard_bytes,
    )
    TextRules(text_column, recipe.keep, on_error)  # refuses what cannot be meant before anything is made
    provenance = {"made_by": "tokenfeed prepare", "tokenfeed": __version__, "recipe": recipe.to_json()}
    setup = WorkerSetup(store, recipe, loaded, provenance, on_error, origin)
    run = _Run(PreparePlan(recipe, files), setup, function, part, progress)
    return run.run(chosen, dry_run=dry_run, replace_changed=replace_changed)


class _Run:
    def __init__(
        self,
        plan: PreparePlan,
        setup: WorkerSetup,
        function: MapFunction | None,
        part: tuple[int, int] | None,
        progress: Callable[[Report], object] | None,
    ) -> None:
        self._plan = plan
        self._setup = setup
        self._function = function
        self._part = part
        self._workplace = Workplace(setup.out)
        self._tasks = _cut_all(plan)
        self._board = Board(str(self._workplace.folder), plan.inputs, self._tasks, progress)

    def run(self, engine: Engine, *, dry_run: bool, replace_changed: bool) -> Report:
        if dry_run:
            changed = check_plan(self._workplace, self._plan, replace_changed=replace_changed)
            self._find_done([task for task in self._tasks if task.slice.file not in changed])
            return self._board.report(is_complete=self._is_done and self._is_sealed())
        check_plan(self._workplace, self._plan, replace_changed=replace_changed)  # before anything is made
        self._workplace.make()
        with hold(self._workplace.lock, exclusive=self._part is None) as held:
            agree_on_plan(self._workplace, self._plan, replace_changed=replace_changed)
            self._find_done(self._tasks)
            self._setup.open_writer(None, None, self._function).close()  # makes the manifest
            missing = [task for task in self._mine() if task not in self._board.records]
            leftovers = find_leftovers(self._workplace, self._done_shards()) if self._part is None else []
            if missing or leftovers:
                unseal(self._workplace.folder, sync=True)
            for shard in leftovers:
                self._workplace.remove_shard(shard)
            held.take(exclusive=False)  # lets the workers in
            self._make(engine, missing)
            report = self._finish()
            if held.is_alone():
                self._workplace.sweep()
            return report

    def _make(self, engine: Engine, missing: Sequence[Task]) -> None:
        if not missing:
            return
        with contextlib.closing(engine.run(self._setup, missing, self._board.tell)) as records:
            for record in records:
                self._board.done(record)

    def _finish(self) -> Report:
        if self._part is not None:  # others may have done the rest meanwhile
            self._find_done([task for task in self._tasks if task not in self._board.records])
        if self._is_done and not self._is_sealed():
            seal(self._workplace.folder)
        return self._board.report(is_complete=self._is_done)

    def _find_done(self, tasks: Sequence[Task]) -> None:
        records = self._workplace.load_records() if tasks else {}
        for task in tasks:
            record = records.get(slice_name(task.slice))
            if record is not None and (record.slice, record.input_digest) == (task.slice, task.file.digest):
                self._board.was_done(record)

    def _done_shards(self) -> set[str]:
        return {shard for record in self._board.records.values() for shard in record.shards}

    @property
    def _is_done(self) -> bool:
        return len(self._board.records) == len(self._tasks)

    def _mine(self) -> Sequence[Task]:
        return self._tasks if self._part is None else self._tasks[self._part[0] :: self._part[1]]

    def _is_sealed(self) -> bool:
        return self._workplace.is_store and load_manifest(self._workplace.folder).shards is not None


def _cut_all(plan: PreparePlan) -> list[Task]:
    """The slices of all files, in order. Parquet needs a look at each footer, several at a time."""
    recipe = plan.recipe

    def cut_one(numbered: tuple[int, InputFile]) -> list[Task]:
        slices = cut(*numbered, text_column=recipe.text_column, slice_bytes=recipe.slice_bytes)
        return [Task(numbered[1], one) for one in slices]

    with ThreadPoolExecutor(min(_CUTTING_THREADS, max(1, len(plan.inputs)))) as pool:
        return [task for tasks in pool.map(cut_one, enumerate(plan.inputs)) for task in tasks]


def _find_map(given: str | Callable[..., Any] | None, *, can_stay: bool) -> tuple[MapFunction | None, MapOrigin | None]:
    """The function here, and where other processes get it from; None where it need not travel and cannot."""
    if given is None:
        return None, None
    if isinstance(given, str):
        origin = MapOrigin.find(given)
        return origin.load(), origin
    function = check_declared(given, str(given))
    try:
        return function, MapOrigin.find(function)
    except ArgumentError:
        if not can_stay:
            raise
        return function, None


def _find_slice_bytes(store: str, files: Sequence[InputFile]) -> int:
    """The size chosen when the store was begun; else by the size of the inputs."""
    workplace = Workplace(store)
    if workplace.exists:
        return workplace.load_plan().recipe.slice_bytes
    return choose_slice_bytes(sum(file.size for file in files))


def _find_bos(tokenizer: Tokenizer, bos: bool | str) -> int | None:
    if isinstance(bos, str):
        return tokenizer.special_id(bos)
    return tokenizer.bos_id if bos and tokenizer.vocabulary.bos is not None else None


def _find_dtype(tokenizer: Tokenizer, dtype: Any) -> str:
    if dtype is None:
        return tokenizer.dtype.name
    try:
        name: str = np.dtype(dtype).name
    except TypeError as error:
        raise ArgumentError(f"dtype is {dtype!r}, which is no dtype: {error}") from error
    tokenizer.encode_batch([], dtype=name)  # refuses what cannot hold the vocabulary
    return name


def _find_val(inputs: Any, files: Sequence[InputFile], val_files: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the files that are `val`."""
    if not val_files:
        found = find_files(inputs)
        splits = choose_splits(found, None if any(file.listed == "val" for file in found) else "last")
        if len(files) == 1:
            raise ArgumentError(
                f"split is 'file', but there is one file only: {files[0].name}. Split by 'hash', or not at all."
            )
        return tuple(number for number, split in enumerate(splits.files) if split == "val")
    patterns = [val_files] if isinstance(val_files, str) else list(val_files)
    for pattern in patterns:
        if not any(_matches(file, pattern) for file in files):
            raise ArgumentError(f"val_files: no input is called {pattern!r}; the first is {files[0].name}")
    return tuple(n for n, file in enumerate(files) if any(_matches(file, pattern) for pattern in patterns))


def _matches(file: InputFile, pattern: str) -> bool:
    return fnmatch.fnmatchcase(file.name, pattern) or fnmatch.fnmatchcase(os.path.basename(file.name), pattern)


def _check_part(part: tuple[int, int] | None, replace_changed: bool) -> None:
    if part is None:
        return
    number, count = part
    if not 0 <= number < count:
        raise ArgumentError(f"part is {number} of {count}; the first is 0 of {count}, the last {count - 1} of {count}")
    if replace_changed:
        raise ArgumentError("replace_changed is for a run that does all parts: no other run may work at the same time")
