"""The data that histories are played over: small stores with real content, and sparse files of up to 10**12 items."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tokenfeed
from simulation.history import SMALL, VAST, WIDE, World
from simulation.reference import Drawn, Growth, Order, Removal, Run, Stage, source_seed
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
"""Lengths of the documents that a store grows by, version after version."""
WIDE_ITEMS = 9_001 * LENGTH
VAST_ITEMS = {"web": 10**12, "code": 10**9 + 7, "math": 1_000_003, "law": 50_000}
VAST_SHARDS = 8
VAST_LENGTHS = (1, 7, 256)


@dataclass(frozen=True)
class Settings:
    """What a training script says, beside ranks and batch sizes."""

    chapters: tuple[tuple[int, tuple[Stage, ...]], ...]
    skips: tuple[Any, ...] = ()
    """`Dropped`, `Masked` or `Grown`, in the order in which they were made."""
    length: int = LENGTH

    @property
    def num_sources(self) -> int:
        return max(len(stage.weights) for _, stages in self.chapters for stage in stages)


@dataclass(frozen=True)
class Dropped:
    source: int
    at: int
    indices: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Masked:
    source: int
    at: int
    documents: tuple[int, ...]


@dataclass(frozen=True)
class Grown:
    """The store of a source has version `version` from there on."""

    source: int
    at: int
    version: int


@cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="tokenfeed-simulation-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(path, ignore_errors=True) if os.getpid() == owner else None)
    return path


@cache
def open_store(kind: str, name: str, version: int = 0) -> Any:
    """Item j of source s is s · 10**6 + j; in vast stores it is `vast_items`, wherever the history comes."""
    return tokenfeed.open(_write(kind, name), version=version + 1 if kind == SMALL else None)


@cache
def _write(kind: str, name: str) -> Path:
    path = _folder() / kind / name
    if kind == VAST:
        _write_sparse(path, VAST_ITEMS[name])
        return path
    number, item = 0, NAMES.index(name) * 10**6
    for lengths in [[WIDE_ITEMS]] if kind == WIDE else [DOCUMENTS[name], *GROWTHS[name]]:
        with tokenfeed.Writer(
            path, columns={"tokens": "uint32"}, spans={"documents": "json"}, shard_bytes=300, sync=False, mode="append"
        ) as writer:
            for length in lengths:
                writer.append({"tokens": np.arange(item, item + length)}, documents=[name, number])
                number, item = number + 1, item + length
    return path


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
        path = _folder() / VAST / name / f"shard-{shard}" / column_file("tokens")
        header = path.stat().st_size - min(per_shard, VAST_ITEMS[name] - shard * per_shard)
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, values[first - start : last - start].tobytes(), header + first - shard * per_shard)
        os.close(fd)


def empty_vast_stores() -> None:
    """Give back the space that `put_vast_items` took."""
    for path in (_folder() / VAST).glob(f"*/*/{column_file('tokens')}"):
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

    def lengths(self, source: int, version: int) -> list[int]:
        """Lengths of the documents of a version."""
        grown = GROWTHS[NAMES[source]][:version]
        return [*DOCUMENTS[NAMES[source]], *(length for lengths in grown for length in lengths)]

    def num_items(self, source: int, version: int = 0) -> int:
        if self.world.kind == VAST:
            return VAST_ITEMS[NAMES[source]]
        return WIDE_ITEMS if self.world.kind == WIDE else sum(self.lengths(source, version))

    def size(self, source: int, settings: Settings, version: int = 0) -> int:
        if self.world.view == "documents":
            return len(self.lengths(source, version))
        return (self.num_items(source, version) - 1) // settings.length

    def bounds(self, drawn: Drawn, settings: Settings) -> tuple[int, int]:
        """The items of a sample."""
        if self.world.view == "documents":
            return self.documents(drawn.source)[drawn.index]
        return drawn.index * settings.length, (drawn.index + 1) * settings.length + 1

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

    def touching(self, source: int, documents: Sequence[int], settings: Settings, version: int) -> tuple[int, ...]:
        if not documents:
            return ()
        samples = range(self.size(source, settings, version))
        wanted = set(documents)
        return tuple(i for i in samples if wanted & set(self.touched(Drawn(source, 0, i), settings)))

    def reference(self, settings: Settings) -> Run:
        if settings not in self._runs:
            seed = self.world.seed
            local = self.world.shuffle if isinstance(self.world.shuffle, tuple) else None
            count = settings.num_sources
            orders = [Order(source_seed(seed, name) if self.is_mixed else seed, local) for name in NAMES[:count]]
            if not self.world.shuffle:
                orders = [Order(None)] * count
            skips: list[Any] = []
            versions = [0] * count
            for skip in settings.skips:
                if isinstance(skip, Dropped):
                    found = {
                        *skip.indices,
                        *self.touching(skip.source, skip.documents, settings, versions[skip.source]),
                    }
                    skips.append(Removal(skip.source, frozenset(found), skip.at))
                elif isinstance(skip, Grown):
                    sizes = [self.size(skip.source, settings, each) for each in (versions[skip.source], skip.version)]
                    skips.append(Growth(skip.source, sizes[1] - sizes[0], skip.at))
                    versions[skip.source] = skip.version
            sizes = [self.size(source, settings) for source in range(count)]
            chapters = sorted(settings.chapters, key=lambda chapter: chapter[0])
            self._runs[settings] = Run(sizes, orders, chapters, skips)
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
        for skip in settings.skips:
            plan = plan.amend(skip.at, **self.change(skip))
        return plan

    def change(self, skip: Any) -> dict[str, Any]:
        """What `amend` is asked for."""
        source = NAMES[skip.source] if self.is_mixed else None
        if isinstance(skip, Grown):
            store = open_store(self.world.kind, NAMES[skip.source], skip.version)
            return {"grown": {source: store} if source else store}
        if isinstance(skip, Masked):
            return {"skip": tokenfeed.Skip(documents=skip.documents, source=source, mask=True)}
        return {"skip": tokenfeed.Skip(indices=skip.indices, documents=skip.documents, source=source)}

    def shuffle(self) -> Any:
        local = self.world.shuffle
        return tokenfeed.Locality(*local) if isinstance(local, tuple) else local
