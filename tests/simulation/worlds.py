"""The data that histories are played over: small stores with real content, and sparse files of up to 10**12 items."""

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tokenfeed
from simulation.history import VAST, WIDE, World
from simulation.reference import Drawn, Growth, Order, Run, Stage, source_seed
from tokenfeed.format.layout import MANIFEST, SHARD, column_file
from tokenfeed.format.manifest import Column, FileRecord, Manifest, ShardEntry, ShardRecord
from tokenfeed.format.npy import build_header
from tokenfeed.kernels.checksum import checksum

NAMES = ("web", "code", "math", "law")
LENGTH = 4
DOCUMENTS = {
    "web": [5, 30, 0, 1, 9, 14, 25, 2, 40, 8, 17, 11],
    "code": [3, 12, 20, 1, 0, 6, 9, 4, 4, 15, 2, 7],
    "math": [13, 1, 1, 5, 0, 2, 9, 3, 1, 2, 6, 8],
    "law": [2, 3, 1, 4, 2, 1, 0, 1, 3, 1, 1, 6],
}
GROWTHS = {"web": [[7, 31, 3], [16, 9]], "code": [[12], [5, 30]], "math": [[25, 1], [13]], "law": [[14], [3, 22, 1]]}
"""Lengths of the documents in every store that a source grows by."""
WIDE_ITEMS = 9_001 * LENGTH
VAST_ITEMS = {"web": 10**12, "code": 10**9 + 7, "math": 1_000_003, "law": 50_000}
VAST_SHARDS = 8
VAST_LENGTHS = (1, 7, 256)


@dataclass(frozen=True)
class Settings:
    """What a training script says, beside ranks and batch sizes."""

    chapters: tuple[tuple[int, tuple[Stage, ...]], ...]
    changes: tuple[Any, ...] = ()
    """`Masked` or `Grown`, in the order in which they were made."""
    length: int = LENGTH

    @property
    def num_sources(self) -> int:
        return max(len(stage.weights) for _, stages in self.chapters for stage in stages)


@dataclass(frozen=True)
class Masked:
    source: int
    at: int
    documents: tuple[int, ...]


@dataclass(frozen=True)
class Grown:
    """A source has the rows of one more store from there on, which is that of number `part`."""

    source: int
    at: int
    part: int


@cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="tokenfeed-simulation-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(path, ignore_errors=True) if os.getpid() == owner else None)
    return path


@cache
def open_store(kind: str, name: str, part: int = 0) -> Any:
    """Item j of source s is s · 10**6 + j through all its parts; in vast stores it is `vast_items`."""
    path = _folder() / kind / name / str(part)
    if kind == VAST:
        _write_sparse(path, VAST_ITEMS[name])
        return tokenfeed.open(path)
    parts = [[WIDE_ITEMS]] if kind == WIDE else [DOCUMENTS[name], *GROWTHS[name]]
    number = sum(map(len, parts[:part]))
    item = NAMES.index(name) * 10**6 + sum(map(sum, parts[:part]))
    columns, spans = {"tokens": "uint32"}, {"documents": "json"}
    with tokenfeed.Writer(path, columns=columns, spans=spans, shard_bytes=300, sync=False) as writer:
        for length in parts[part]:
            writer.append({"tokens": np.arange(item, item + length)}, documents=[name, number])
            number, item = number + 1, item + length
    return tokenfeed.open(path)


def _write_sparse(path: Path, num_items: int) -> None:
    entries = []
    per_shard = -(-num_items // VAST_SHARDS)
    for number in range(VAST_SHARDS):
        items = min(per_shard, num_items - number * per_shard)
        header = build_header(np.dtype("u1"), (), items)
        shard = path / f"shard-{number}"
        shard.mkdir(parents=True)
        with (shard / column_file("tokens")).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + items)
        record = ShardRecord(items, {}, {column_file("tokens"): FileRecord(len(header) + items, f"{num_items:016x}")})
        (shard / SHARD).write_bytes(record.to_json().encode())
        entries.append(ShardEntry(shard.name, items, {}, checksum(record.to_json().encode())))
    (path / MANIFEST).write_text(Manifest({"tokens": Column(np.dtype("u1"))}, {}, shards=tuple(entries)).to_json())


def vast_items(source: int, start: int, stop: int) -> npt.NDArray[np.uint8]:
    numbers = np.arange(start, stop, dtype=np.uint64) + np.uint64(source << 56)
    return ((numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)


def put_vast_items(source: int, start: int, stop: int) -> None:
    """Write what a history is about to read into the sparse files."""
    name = NAMES[source]
    per_shard = -(-VAST_ITEMS[name] // VAST_SHARDS)
    values = vast_items(source, start, stop)
    for shard in range(start // per_shard, (stop - 1) // per_shard + 1):
        first, last = max(start, shard * per_shard), min(stop, (shard + 1) * per_shard)
        path = _folder() / VAST / name / "0" / f"shard-{shard}" / column_file("tokens")
        header = path.stat().st_size - min(per_shard, VAST_ITEMS[name] - shard * per_shard)
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, values[first - start : last - start].tobytes(), header + first - shard * per_shard)
        os.close(fd)


def empty_vast_stores() -> None:
    """Give back the space that `put_vast_items` took."""
    for path in (_folder() / VAST).glob(f"*/*/*/{column_file('tokens')}"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            header = file.read(128)
            file.seek(0)
            file.truncate(0)
            file.write(header)
            file.truncate(size)


@dataclass
class Data:
    """The data of one world: as tokenfeed has it, and as the reference has it."""

    world: World
    _runs: dict[Settings, Run] = field(default_factory=dict)

    @property
    def is_mixed(self) -> bool:
        return bool(self.world.weights)

    def first_settings(self) -> Settings:
        world = self.world
        stages = [Stage(tuple(weights), samples) for weights, samples in world.stages]
        if not (world.ends and stages):
            stages.append(Stage(world.weights or (1.0,)))
        length = VAST_LENGTHS[world.seed % len(VAST_LENGTHS)] if world.kind == VAST else LENGTH
        return Settings(((0, tuple(stages)),), length=length)

    def documents(self, source: int) -> list[tuple[int, int]]:
        """(first item, end) of every document, whenever it came."""
        name = NAMES[source]
        ends = np.cumsum([*DOCUMENTS[name], *(length for lengths in GROWTHS[name] for length in lengths)]).tolist()
        return list(zip([0, *ends], ends, strict=False))

    def parts(self, source: int) -> list[list[int]]:
        """Lengths of the documents of every store of a source."""
        return [DOCUMENTS[NAMES[source]], *GROWTHS[NAMES[source]]]

    def num_items(self, source: int, part: int) -> int:
        if self.world.kind == VAST:
            return VAST_ITEMS[NAMES[source]]
        return WIDE_ITEMS if self.world.kind == WIDE else sum(self.parts(source)[part])

    def size(self, source: int, settings: Settings, part: int = 0) -> int:
        """How many samples a store of a source has."""
        if self.world.view == "documents":
            return len(self.parts(source)[part])
        return (self.num_items(source, part) - 1) // settings.length

    def bounds(self, drawn: Drawn, settings: Settings) -> tuple[int, int]:
        """The items of a sample, counted through all stores of its source: no window crosses from one to the next."""
        if self.world.view == "documents":
            return self.documents(drawn.source)[drawn.index]
        index, first, part = drawn.index, 0, 0
        while index >= self.size(drawn.source, settings, part):
            index -= self.size(drawn.source, settings, part)
            first, part = first + self.num_items(drawn.source, part), part + 1
        return first + index * settings.length, first + (index + 1) * settings.length + 1

    def content(self, drawn: Drawn, settings: Settings) -> npt.NDArray[Any]:
        start, stop = self.bounds(drawn, settings)
        if self.world.kind == VAST:
            return vast_items(drawn.source, start, stop)
        return np.arange(start, stop, dtype=np.uint32) + np.uint32(drawn.source * 10**6)

    def touched(self, drawn: Drawn, settings: Settings) -> list[int]:
        """The documents that a sample has items of; a sample that is a document has itself."""
        if self.world.view == "documents":
            return [drawn.index]
        start, stop = self.bounds(drawn, settings)
        spans = enumerate(self.documents(drawn.source))
        return [number for number, (first, end) in spans if max(first, start) < min(end, stop)]

    def reference(self, settings: Settings) -> Run:
        if settings not in self._runs:
            seed = self.world.seed
            local = self.world.shuffle if isinstance(self.world.shuffle, tuple) else None
            count = settings.num_sources
            orders = [Order(source_seed(seed, name) if self.is_mixed else seed, local) for name in NAMES[:count]]
            if not self.world.shuffle:
                orders = [Order(None)] * count
            grown = [each for each in settings.changes if isinstance(each, Grown)]
            growths = [Growth(each.source, self.size(each.source, settings, each.part), each.at) for each in grown]
            sizes = [self.size(source, settings) for source in range(count)]
            chapters = sorted(settings.chapters, key=lambda chapter: chapter[0])
            self._runs[settings] = Run(sizes, orders, chapters, growths)
        return self._runs[settings]

    def view(self, source: int, settings: Settings) -> Any:
        store = open_store(self.world.kind, NAMES[source])
        if self.world.view == "documents":
            return store.documents()
        return store.windows(settings.length)

    def plain(self, settings: Settings) -> Any:
        """A view, or a mixture as it began."""
        (_, first), *_ = settings.chapters
        if not self.is_mixed:
            return self.view(0, settings)
        names = NAMES[: len(first[0].weights)]
        stages = [tokenfeed.Stage(dict(zip(names, each.weights, strict=True)), each.samples) for each in first]
        return tokenfeed.mix({name: self.view(number, settings) for number, name in enumerate(names)}, stages=stages)

    def subject(self, settings: Settings) -> Any:
        """What a `Loader` takes: a plan, with all that was amended."""
        plan = tokenfeed.Plan.of(self.plain(settings), seed=self.world.seed, shuffle=self.shuffle())
        (_, first), *changes = settings.chapters
        known = len(first[0].weights)
        for at, (stage,) in changes:
            added = {NAMES[number]: self.view(number, settings) for number in range(known, len(stage.weights))}
            known += len(added)
            weights = dict.fromkeys(NAMES[:known], 0.0) | dict(zip(NAMES, stage.weights, strict=False))
            plan = plan.amend(at, weights=weights, sources=added or None)
        for change in settings.changes:
            plan = plan.amend(change.at, **self.change(change))
        return plan

    def change(self, change: Masked | Grown) -> dict[str, Any]:
        """What `amend` is asked for."""
        option, given = "mask", list(change.documents) if isinstance(change, Masked) else None
        if isinstance(change, Grown):
            option, given = "grow", open_store(self.world.kind, NAMES[change.source], change.part)
        return {option: {NAMES[change.source]: given} if self.is_mixed else given}

    def shuffle(self) -> Any:
        local = self.world.shuffle
        return tokenfeed.plan.Local(*local) if isinstance(local, tuple) else local
