"""The stats file: one JSON object a line, each what one loader had counted at a moment, and who it was.

Lines are appended whole; the last may have been cut short by a kill, and is passed over. When the file has grown to its
limit it becomes `<name>.1`, in place of the one before, and a new one begins: there are never more than two.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from tokenfeed.errors import NotAStoreError, StateError
from tokenfeed.loader.delivery import Stats
from tokenfeed.storage.local import reading
from tokenfeed.storage.remote import RemoteStats

__all__ = ["SUFFIX", "Snapshot", "find_stats_file", "parse_snapshots", "predecessor_of", "read_snapshots"]

SUFFIX = ".stats.jsonl"
_TAIL_BYTES = 1 << 20
_LARGEST = 1 << 62


@dataclass(frozen=True)
class Snapshot:
    """A loader at a moment."""

    time: float
    """Of the clock on the wall."""
    host: str
    pid: int
    loader: int
    """Which of the loaders that this process has published, from 0."""
    rank: int
    world_size: int
    every: float
    """Seconds until the next one."""
    cores: int
    """That the process may use."""
    cpu_seconds: float
    memory_bytes: int
    ended: bool
    """Whether it is the last, because the loader is gone or the process ended in peace."""
    stats: Stats

    @property
    def source(self) -> tuple[str, int, int]:
        """Which loader of which process it is of."""
        return self.host, self.pid, self.loader

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> "Snapshot":
        """Raises ValueError for what is no snapshot. Fields that are not known here are passed over."""
        try:
            value = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        if not isinstance(value, Mapping) or not isinstance(value.get("stats"), Mapping):
            raise ValueError("no snapshot")
        stats = dict(value["stats"])
        remote = stats.pop("remote", None)
        try:
            return cls(
                **{
                    **_known(cls, {name: each for name, each in value.items() if name != "stats"}),
                    "stats": Stats(
                        **_known(Stats, stats),
                        remote=None if remote is None else RemoteStats(**_known(RemoteStats, remote)),
                    ),
                }
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None


def _known(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that `kind` has; ValueError where one cannot be what it should."""
    found = {field.name: (value[field.name], field.type) for field in fields(kind) if field.name in value}
    for name, (each, wanted) in found.items():
        if not _fits(each, get_args(wanted) or (wanted,)):
            raise ValueError(f"{name} is {str(each)[:80]}")
    return {name: each for name, (each, _) in found.items()}


def _fits(value: object, kinds: Sequence[Any]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) < _LARGEST and (float in kinds or (int in kinds and isinstance(value, int)))
    return type(value) in kinds


def find_stats_file(path: str | os.PathLike[str]) -> Path:
    """The stats file itself; of a run file `run.jsonl`, the `run.stats.jsonl` beside it."""
    given = Path(path)
    if not given.name.endswith(SUFFIX):
        beside = given.with_name(given.stem + SUFFIX)
        if beside.exists():
            return beside
    if not given.is_file() and not predecessor_of(given).is_file():  # between the two there may be none for a moment
        raise NotAStoreError(
            f"there is no stats file {given}. A loader writes one if the training script says: from tokenfeed import "
            f'observe; observe.publish(loader, "{given.stem.removesuffix(".stats") or "run"}{SUFFIX}")'
        )
    return given


def read_snapshots(path: str | os.PathLike[str]) -> list[Snapshot]:
    """The latest snapshots, in the order in which they were written: those in the last MiB of the file, or of two."""
    file = find_stats_file(path)
    tail = _read_tail(file, _TAIL_BYTES)
    if len(tail) < _TAIL_BYTES:
        tail = _read_tail(predecessor_of(file), _TAIL_BYTES - len(tail)) + tail
    found = list(parse_snapshots(tail))
    if not found:
        if tail.strip():
            raise StateError(f"{file} is not a stats file, such as observe.publish writes: no line is of one")
        raise StateError(f"{file} is empty: nothing was published yet")
    return found


def predecessor_of(path: Path) -> Path:
    """What the file became when it had grown to its limit."""
    return path.with_name(f"{path.name}.1")


def _read_tail(path: Path, num_bytes: int) -> bytes:
    with reading(str(path)):
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - num_bytes))
                return file.read()
        except FileNotFoundError:
            return b""


def parse_snapshots(data: bytes) -> Iterator[Snapshot]:
    """Those of the lines that are one."""
    for line in data.split(b"\n"):
        try:
            yield Snapshot.from_json(line)
        except ValueError:  # cut by where reading began, or by a kill
            continue
