"""The stats file: one JSON object per line, each a snapshot of one loader's counters.

Lines are appended whole; a line cut short by a kill is ignored. When the file reaches its size limit it is renamed to
`<name>.1`, which replaces the previous one, and a new file begins: there are never more than two.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from tokenfeed.errors import NotFoundError, StateError
from tokenfeed.loader.delivery import Stats
from tokenfeed.storage.local import reading

__all__ = ["SUFFIX", "Snapshot", "StatsFile", "find_stats_file", "predecessor_of", "read_snapshots"]

SUFFIX = ".stats.jsonl"
_TAIL_BYTES = 1 << 20
_LARGEST = 1 << 62


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
        if inner is not None and given is not None:
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
    if not given.is_file() and not predecessor_of(given).is_file():  # while it is renamed there may be no file
        raise NotFoundError(
            f"there is no stats file {given}. A loader writes one if the training script calls "
            f'observe.publish(loader, "{given.stem.removesuffix(".stats") or "run"}{SUFFIX}") (from tokenfeed import '
            "observe)"
        )
    return given


def predecessor_of(path: Path) -> Path:
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
        with contextlib.suppress(FileNotFoundError), predecessor_of(path).open("rb") as file:
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
            raise StateError(
                f"{file} is not a stats file: it holds no snapshot. Call observe.publish(loader, …) in the training "
                "script, and give the file it writes"
            )
        raise StateError(f"{file} is empty: the training script has published nothing yet")
    return found
