"""The stats file: one JSON object per line, each a snapshot of one loader's counters, written by `publish`.

Lines are appended whole; a line cut short by a kill is ignored. When the file reaches its size limit it is renamed to
`<name>.1`, which replaces the previous one, and a new file begins: there are never more than two.
"""

import atexit
import contextlib
import json
import math
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

from tokenfeed.errors import ArgumentError, NotFoundError, StateError
from tokenfeed.loader.delivery import Delivery, PlacedLoader, Stats
from tokenfeed.observe.diagnosis import NO_STATS
from tokenfeed.observe.memory import measure_memory
from tokenfeed.storage.local import reading, writing
from tokenfeed.text.tokenizer.engines import available_cores

__all__ = [
    "SUFFIX",
    "Publisher",
    "Scalar",
    "Snapshot",
    "StatsFile",
    "find_loader",
    "find_stats_file",
    "log",
    "publish",
    "read_snapshots",
]

SUFFIX = ".stats.jsonl"
_TAIL_BYTES = 1 << 20
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
    for field in (each for each in fields(kind) if each.name in value):
        given, kinds = value[field.name], get_args(field.type) or (field.type,)
        inner = next((each for each in kinds if is_dataclass(each)), None)
        if inner is not None and isinstance(given, list):
            given = tuple(_build(inner, each) for each in given[:_MOST_LISTED])
        elif inner is not None and given is not None:
            given = _build(inner, given)
        elif not _fits(given, kinds):
            raise ValueError(f"{field.name} is {str(given)[:80]}")
        built[field.name] = given
    return kind(**built)


def _fits(value: object, kinds: Sequence[Any]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) < _LARGEST and (float in kinds or (int in kinds and isinstance(value, int)))
    return type(value) in kinds


def find_stats_file(path: str | os.PathLike[str]) -> Path:
    """The stats file at `path`, or beside the run file at `path`: `run.stats.jsonl` for `run.jsonl`."""
    given = Path(path)
    if not given.name.endswith(SUFFIX):
        beside = given.with_name(given.stem + SUFFIX)
        if beside.exists():
            return beside
    if not given.is_file() and not _predecessor_of(given).is_file():  # while it is renamed there may be no file
        raise NotFoundError(f"there is no stats file {given}. {_how_to_publish(given)}")
    return given


def _how_to_publish(path: Path) -> str:
    name = f"{path.stem.removesuffix('.stats') or 'run'}{SUFFIX}"
    return f'The training script writes one by `from tokenfeed import observe` and observe.publish(loader, "{name}")'


def _predecessor_of(path: Path) -> Path:
    """The name a stats file gets when it has reached its size limit."""
    return path.with_name(f"{path.name}.1")


class StatsFile:
    """A stats file that may still grow. Each call of `read` returns the snapshots added since the last."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int) -> None:
        """`most_bytes` bounds one read, of the file and of its predecessor each: older lines are skipped."""
        self._path = path
        self._most_bytes = most_bytes
        self._inode = self._offset = 0

    def read(self) -> list[Snapshot]:
        """The new snapshots, in the order they were written. Raises NotFoundError if there is no file."""
        return list(_parse(self.read_bytes()))

    def read_bytes(self) -> bytes:
        """The new whole lines. If the file was renamed since the last call, the rest of it comes first."""
        path = find_stats_file(self._path)
        with reading(str(path)):
            try:
                with path.open("rb") as file:
                    is_new = os.fstat(file.fileno()).st_ino != self._inode
                    before = self._read_predecessor(path) if is_new else b""
                    return before + self._read_lines(file.fileno())
            except FileNotFoundError:
                return self._read_predecessor(path)

    def _read_predecessor(self, path: Path) -> bytes:
        with contextlib.suppress(FileNotFoundError), _predecessor_of(path).open("rb") as file:
            return self._read_lines(file.fileno())
        return b""

    def _read_lines(self, file: int) -> bytes:
        """The unread lines of a file; all its lines if it is not the file that was read before."""
        inode, size = os.fstat(file).st_ino, os.fstat(file).st_size
        if inode != self._inode or size < self._offset:
            self._inode, self._offset = inode, 0
        self._offset = max(self._offset, size - self._most_bytes)
        data = os.pread(file, size - self._offset, self._offset)
        data = data[: data.rfind(b"\n") + 1]  # the rest is half a line, which may become whole
        self._offset += len(data)
        return data


def _parse(data: bytes) -> Iterator[Snapshot]:
    for line in data.split(b"\n"):
        try:
            yield Snapshot.from_json(line)
        except ValueError:  # cut where reading began, or by a kill
            continue


def read_snapshots(path: str | os.PathLike[str]) -> list[Snapshot]:
    """The latest snapshots in the order they were written: those in the last MiB of the file and of its predecessor."""
    data = StatsFile(path, _TAIL_BYTES).read_bytes()
    found = list(_parse(data))
    if not found:
        file = find_stats_file(path)
        if data.strip():
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

    The ranks of one machine may share a file. The file is limited to `max_bytes`, and so is its predecessor
    `<path>.1`. A write takes about 0.1 ms in a background thread. The first write happens before this function returns,
    and raises if it fails; later failures (such as a full disk) only leave a gap in the file.

    Name it `run.stats.jsonl`, beside the run file `run.jsonl`, and `tokenfeed top run.jsonl` finds it too.
    """
    if not 0.01 <= every <= 3600:
        raise ArgumentError(f"every is {every}; expected 0.01 to 3,600 seconds")
    if max_bytes < 4096:
        raise ArgumentError(f"max_bytes is {max_bytes}; expected 4,096 or more")
    if steps is not None and steps < 1:
        raise ArgumentError(f"steps is {steps}; expected 1 or more")
    return Publisher(find_loader(loader), Path(path), every=every, steps=steps, max_bytes=max_bytes)


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
        self.path = path
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
        with writing(path):
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
        # The file is opened for every line, so that one rank may rename it while others write. Each line is one write,
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
