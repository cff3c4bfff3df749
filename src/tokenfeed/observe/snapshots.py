"""Stats files: one JSON object per line, each a snapshot of one loader's counters, written by `publish`.

Every rank writes a file of its own: rank 0 `<name>`, rank 3 `<name>.rank3`. Lines are appended whole; a line cut short
by a kill is ignored. A file that has reached its size limit is renamed to `<its name>.1`, which replaces the previous
one, and a new file begins: a rank never has more than two.
"""

import atexit
import contextlib
import heapq
import json
import math
import os
import re
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, get_args

from tokenfeed.errors import ArgumentError, NotFoundError, StateError
from tokenfeed.loader.delivery import Delivery, PlacedLoader, Stats
from tokenfeed.observe.diagnosis import NO_STATS
from tokenfeed.observe.memory import measure_memory
from tokenfeed.storage.address import local_file
from tokenfeed.storage.local import reading, writing
from tokenfeed.text.tokenizer.engines import available_cores

__all__ = [
    "SUFFIX",
    "Publisher",
    "Scalar",
    "Snapshot",
    "StatsFiles",
    "find_loader",
    "find_stats_files",
    "log",
    "publish",
    "read_snapshots",
]

SUFFIX = ".stats.jsonl"
_TAIL_BYTES = 1 << 20
_LEAST_TAIL_BYTES = 4096
"""Bytes read of one of many files: the last eight lines or so."""
_LARGEST = 1 << 62
_MOST_SCALARS = 512
"""Scalars kept for one snapshot; of more, the latest."""
_MOST_LISTED = 1024
_numbers = count()
_publishers: list["Publisher"] = []
"""Those of this process that are not closed, oldest first."""


@dataclass(frozen=True)
class Scalar:
    """A number that the training loop logged."""

    name: str
    step: int
    value: float | None
    """None for NaN and infinities, which JSON lacks."""


@dataclass(frozen=True)
class Snapshot:
    """The counters of one loader at one moment."""

    time: float
    """Wall-clock time, in seconds since 1970."""
    host: str
    pid: int
    loader: int
    """Number of the loader among those this process has published, from 0."""
    rank: int
    world_size: int
    every: float
    """Seconds until the next snapshot."""
    cores: int
    """Cores the process may use."""
    cpu_seconds: float
    memory_bytes: int
    ended: bool
    """True in the last snapshot of a loader that was closed or collected, or whose process exited normally."""
    stats: Stats
    steps: int | None = None
    """Training steps that the run is to have, where the script said."""
    scalars: tuple[Scalar, ...] = ()
    """Numbers logged since the last snapshot."""

    @property
    def key(self) -> tuple[str, int, int]:
        """Identity of the loader: host, process, number in the process."""
        return self.host, self.pid, self.loader

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> "Snapshot":
        """Raises ValueError if the line is not a snapshot. Unknown fields are ignored."""
        try:
            snapshot: Snapshot = _build(cls, json.loads(line))
        except (TypeError, RecursionError) as error:  # a field is missing, or it is nested too deep
            raise ValueError(str(error)) from None
        return snapshot


def _build(kind: Any, value: object) -> Any:
    """A dataclass from JSON, and the dataclasses in it; ValueError if a field has the wrong type."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected the fields of {kind.__name__}")
    built = {}
    for name, kinds, inner in _fields_of(kind):
        if name not in value:
            continue
        given = value[name]
        if inner is not None and isinstance(given, list):
            given = tuple(_build(inner, each) for each in given[:_MOST_LISTED])
        elif inner is not None and given is not None:
            given = _build(inner, given)
        elif not _fits(given, kinds):
            raise ValueError(f"{name} is {str(given)[:80]}")
        built[name] = given
    return kind(**built)


@cache
def _fields_of(kind: Any) -> list[tuple[str, tuple[Any, ...], Any]]:
    """Name, types, and the dataclass among them, of every field: looked up once, or it would be most of the work."""
    typed = [(field.name, get_args(field.type) or (field.type,)) for field in fields(kind)]
    return [(name, kinds, next((each for each in kinds if is_dataclass(each)), None)) for name, kinds in typed]


def _fits(value: object, kinds: Sequence[Any]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) < _LARGEST and (float in kinds or (int in kinds and isinstance(value, int)))
    return type(value) in kinds


def find_stats_files(path: str | os.PathLike[str]) -> list[Path]:
    """The stats files of all ranks that were told to write to `path`, or to `run.stats.jsonl` if `path` is `run.jsonl`.

    Those that were set aside are not listed.
    """
    given = local_file(path)
    beside = given.with_name(given.stem + SUFFIX)
    found = ([] if given.name.endswith(SUFFIX) else _list_files(beside)) or _list_files(given)
    if not found:
        raise NotFoundError(f"there is no stats file {given}. {_how_to_publish(given)}")
    return found


def _list_files(path: Path) -> list[Path]:
    ours = re.compile(rf"({re.escape(path.name)}(?:\.rank\d+)?)(?:\.1)?")  # being set aside, a file has only that name
    with reading(path), contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path.parent) as entries:
        names = {found[1] for each in entries if (found := ours.fullmatch(each.name)) and each.is_file()}
        return [path.with_name(name) for name in sorted(names)]
    return []


def _how_to_publish(path: Path) -> str:
    name = f"{path.stem.removesuffix('.stats') or 'run'}{SUFFIX}"
    return f'The training script writes one by `from tokenfeed import observe` and observe.publish(loader, "{name}")'


def _predecessor_of(path: Path) -> Path:
    """The name that the file of a rank gets when it has reached its size limit."""
    return path.with_name(f"{path.name}.1")


class StatsFiles:
    """The stats files of a run, which may still grow. Each call of `read` returns the snapshots since the last one."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int) -> None:
        """`most_bytes` bounds one read, over the files of all ranks, and so over those set aside: older lines are
        skipped. The last lines of every file are read, however many there are."""
        self._path = path
        self._most_bytes = most_bytes
        self._ends: dict[Path, tuple[int, int]] = {}
        """The inode of every file, and how many of its bytes were read."""

    def read(self) -> list[Snapshot]:
        """The new snapshots, by time; those of a rank as it wrote them. Raises NotFoundError if there is no file."""
        return list(heapq.merge(*map(_parse, self.read_bytes()), key=lambda each: each.time))

    def read_bytes(self) -> list[bytes]:
        """The new whole lines of every file. If it was set aside since the last call, the rest of it comes first."""
        paths = find_stats_files(self._path)
        most_bytes = max(_LEAST_TAIL_BYTES, self._most_bytes // len(paths))
        return [self._read_file(path, most_bytes) for path in paths]

    def _read_file(self, path: Path, most_bytes: int) -> bytes:
        with reading(path):
            try:
                with path.open("rb") as file:
                    is_new = os.fstat(file.fileno()).st_ino != self._ends.get(path, (0, 0))[0]
                    before = self._read_predecessor(path, most_bytes) if is_new else b""
                    return before + self._read_lines(path, file.fileno(), most_bytes)
            except FileNotFoundError:
                return self._read_predecessor(path, most_bytes)

    def _read_predecessor(self, path: Path, most_bytes: int) -> bytes:
        with contextlib.suppress(FileNotFoundError), _predecessor_of(path).open("rb") as file:
            return self._read_lines(path, file.fileno(), most_bytes)
        return b""

    def _read_lines(self, path: Path, file: int, most_bytes: int) -> bytes:
        """The unread lines of a file; all its lines if it is not the file that was read before."""
        status = os.fstat(file)
        inode, offset = self._ends.get(path, (0, 0))
        if status.st_ino != inode or status.st_size < offset:
            offset = 0
        offset = max(offset, status.st_size - most_bytes)
        data = os.pread(file, status.st_size - offset, offset)
        if len(data) == most_bytes and data.count(b"\n") < 2:  # a line longer than that
            return self._read_lines(path, file, 2 * most_bytes)
        data = data[: data.rfind(b"\n") + 1]  # the rest is half a line, which may become whole
        self._ends[path] = status.st_ino, offset + len(data)
        return data


def _parse(data: bytes) -> Iterator[Snapshot]:
    for line in data.split(b"\n"):
        try:
            yield Snapshot.from_json(line)
        except ValueError:  # cut where reading began, or by a kill
            continue


def read_snapshots(path: str | os.PathLike[str]) -> list[Snapshot]:
    """The latest snapshots of all ranks, by time: those in the last MiB of their files, and of those set aside."""
    found = StatsFiles(path, _TAIL_BYTES).read()
    if not found:
        file = find_stats_files(path)[0]
        if b"".join(StatsFiles(path, _TAIL_BYTES).read_bytes()).strip():
            raise StateError(f"{file} holds no live statistics: this run does not publish. {_how_to_publish(file)}")
        raise StateError(f"{file} is empty: the training script has published nothing yet")
    return found


def publish(
    loader: Any,
    path: str | os.PathLike[str],
    *,
    every: float = 1.0,
    steps: int | None = None,
    max_bytes: int = 4 << 20,
) -> "Publisher":
    """Write the loader's counters to a file, now and `every` that many seconds, until the loader or the process ends.

    `steps` is the number of training steps that the run is to have, where only the script knows it: the page then tells
    how much time is left.

    Every rank writes a file of its own, rank 0 to `path` and rank 3 to `<path>.rank3`; all are read together by `path`.
    A file is limited to `max_bytes`, and so is its predecessor, `<file>.1`. A write takes about 0.1 ms in a background
    thread. The first write happens before this function returns, and raises if it fails; later failures (such as a full
    disk) only leave a gap in the file.

    Name it `run.stats.jsonl`, beside the run file `run.jsonl`, and `tokenfeed top run.jsonl` finds it too.
    """
    if not 0.01 <= every <= 3600:
        raise ArgumentError(f"every is {every}; expected 0.01 to 3,600 seconds")
    if max_bytes < 4096:
        raise ArgumentError(f"max_bytes is {max_bytes}; expected 4,096 or more")
    if steps is not None and steps < 1:
        raise ArgumentError(f"steps is {steps}; expected 1 or more")
    return Publisher(find_loader(loader), local_file(path), every=every, steps=steps, max_bytes=max_bytes)


def log(step: int, **values: float) -> None:
    """Note numbers of a training step, such as `observe.log(step, loss=2.31)`, for the charts of the page.

    They are written with the next snapshot of the loader that this process published first. A call takes a few
    microseconds and writes nothing itself.
    """
    publisher = next((each for each in _publishers if each.is_ours), None)
    if publisher is None:
        raise ArgumentError(
            "nothing is published in this process, so there is no file to log to: call observe.publish(loader, …) first"
        )
    publisher.log(int(step), values)


def find_loader(loader: Any) -> Delivery:
    """The loader itself, or the loader whose batches `to_device` or `to_arrays` passes on."""
    found = loader.loader if isinstance(loader, PlacedLoader) else loader
    if not isinstance(found, Delivery):
        raise ArgumentError(
            f"expected a Loader, a stream, or what to_device or to_arrays makes of one; got {type(loader).__name__}"
        )
    return found


class Publisher:
    """Writes until it is closed or its loader is collected. The caller need not keep it."""

    def __init__(self, loader: Delivery, path: Path, *, every: float, steps: int | None, max_bytes: int) -> None:
        self.path = path if loader.rank == 0 else path.with_name(f"{path.name}.rank{loader.rank}")
        self._scalars: deque[Scalar] = deque(maxlen=_MOST_SCALARS)
        self._loader = weakref.ref(loader)
        self._final: Stats | None = None
        self._max_bytes = max_bytes
        identity = socket.gethostname(), os.getpid(), next(_numbers), loader.rank, loader.world_size
        self._last = Snapshot(0.0, *identity, every, available_cores(), 0.0, 0, False, NO_STATS, steps)
        # A loader that is collected calls `_inherit` in any thread at any moment. Releasing a lock is safe there;
        # setting an Event is not, if that thread is the one waiting for it.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._closed = threading.Lock()
        with writing(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(ended=False)
        _publishers.append(self)
        loader.leave_stats_to(self._inherit)
        atexit.register(self.close)  # to distinguish a run that ended from one that died
        threading.Thread(target=self._run, name="tokenfeed-publish", daemon=True).start()

    def _run(self) -> None:
        while not self._wake.acquire(timeout=self._last.every):
            with contextlib.suppress(OSError):
                self._write(ended=False)

    def _inherit(self, stats: Stats) -> None:
        self._final = stats
        self.close()

    def _write(self, *, ended: bool) -> None:
        loader = self._loader()
        stats = self._final or (self._last.stats if loader is None else loader.stats())
        if self._closed.locked() and not ended:
            return
        now, cpu = round(time.time(), 3), round(time.process_time(), 3)
        memory, scalars = measure_memory(), self._take_scalars()
        self._last = replace(self._last, time=now, cpu_seconds=cpu, memory_bytes=memory, ended=ended, stats=stats)
        self._last = replace(self._last, scalars=scalars)
        line = f"\n{self._last.to_json()}\n".encode()
        # The file is opened for every line, for another loader of this rank may set it aside. Each line is one write,
        # with a line break before it: the line stays whole even after the half line of a killed process.
        with self.path.open("ab", buffering=0) as file:
            if file.tell() + len(line) <= self._max_bytes:
                os.write(file.fileno(), line)
                return
        self.path.replace(_predecessor_of(self.path))
        with self.path.open("ab", buffering=0) as file:
            os.write(file.fileno(), line)

    @property
    def is_ours(self) -> bool:
        """Whether this process made it: a fork copies it, but not the thread that writes."""
        return os.getpid() == self._last.pid

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers for the next snapshot."""
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError) as error:
                raise ArgumentError(f"{name} is {str(value)[:80]}; expected a number ({error})") from None
            usual = math.isfinite(number) and abs(number) < _LARGEST
            self._scalars.append(Scalar(name[:64], step, number if usual else None))

    def _take_scalars(self) -> tuple[Scalar, ...]:
        taken = []
        while self._scalars:
            taken.append(self._scalars.popleft())
        return tuple(taken)

    def close(self) -> None:
        """Write the last line and stop."""
        if self.is_ours and self._closed.acquire(blocking=False):
            atexit.unregister(self.close)
            with contextlib.suppress(ValueError):
                _publishers.remove(self)
            self._wake.release()
            with contextlib.suppress(OSError):
                self._write(ended=True)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
