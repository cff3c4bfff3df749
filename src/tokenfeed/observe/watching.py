"""What `tokenfeed top` shows of a stats file: each loader in it, how fast it is, and what it waits for."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from tokenfeed.observe.diagnosis import diagnose
from tokenfeed.observe.rates import Rates
from tokenfeed.observe.snapshots import Snapshot, read_snapshots

__all__ = ["Watched", "look", "watch"]

_PATIENCE = 3
"""So many snapshots must be missing before a loader counts as silent."""
_KEPT_SECONDS = 60
_HISTORY = 120


@dataclass(frozen=True)
class Watched:
    """One loader, as of its last snapshot."""

    last: Snapshot
    rates: Rates
    """Of the last seconds that there are snapshots of."""
    cpu: float
    """Cores that the process kept busy in that time."""
    history: list[float]
    """Items a second between one snapshot and the next, of the last 120, the latest last."""
    state: Literal["runs", "ended", "silent", "gone"]
    """It ended in peace; or has not been heard of lately, its process being there or gone."""
    words: list[str]
    """What it waits for; or what became of it."""

    def is_past(self, latest: float) -> bool:
        """Whether it does not run, and others have gone on for a minute, to the time `latest`."""
        return self.state != "runs" and latest - self.last.time >= _KEPT_SECONDS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def watch(path: str | os.PathLike[str], *, seconds: float = 5.0, now: float | None = None) -> list[Watched]:
    """The loaders of a stats file, by rank. Rates are those of the last `seconds` before each one's last snapshot.

    Of a loader that ended, or whose process is gone, nothing is told once others have gone on for a minute.
    """
    now = time.time() if now is None else now
    by_source: dict[tuple[str, int, int], list[Snapshot]] = {}
    for snapshot in read_snapshots(path):
        by_source.setdefault(snapshot.source, []).append(snapshot)
    watched = [look(snapshots, seconds=seconds, now=now) for snapshots in by_source.values()]
    latest = max(each.last.time for each in watched)
    kept = [each for each in watched if not each.is_past(latest)]
    return sorted(kept, key=lambda each: (each.last.rank, each.last.time))


def look(snapshots: Sequence[Snapshot], *, seconds: float, now: float) -> Watched:
    """One loader by its snapshots, of which there must be one."""
    last = snapshots[-1]
    # The interval begins with the latest snapshot that is old enough; with the oldest, if none is.
    before = next((each for each in reversed(snapshots[:-1]) if last.time - each.time >= seconds), snapshots[0])
    rates = Rates.between(before.stats, last.stats)
    history = [
        Rates.between(one.stats, other.stats).items_per_second for one, other in pairwise(snapshots[-_HISTORY - 1 :])
    ]
    state = _find_state(snapshots, now)
    elapsed = last.time - before.time
    cpu = (last.cpu_seconds - before.cpu_seconds) / elapsed if elapsed > 0 else 0.0
    return Watched(last, rates, max(0.0, cpu), history, state, _tell(state, before, last, now))


def _find_state(snapshots: Sequence[Snapshot], now: float) -> Literal["runs", "ended", "silent", "gone"]:
    last = snapshots[-1]
    if any(each.ended for each in snapshots[-2:]):
        return "ended"
    if last.host == socket.gethostname() and not _is_alive(last.pid):
        return "gone"
    return "silent" if now - last.time > _PATIENCE * last.every + 1 else "runs"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _tell(state: str, before: Snapshot, last: Snapshot, now: float) -> list[str]:
    stats, ago = last.stats, f"{max(0.0, now - last.time):,.0f} s ago"
    done = f"after {stats.batches:,} batches, {stats.items:,} tokens"
    if state == "ended":
        return [f"It ended {ago}, {done}; it had waited {stats.wait_fraction:.1%} of the time."]
    if state == "gone":
        return [f"Process {last.pid} is gone without a word; it was last heard of {ago}, {done}."]
    if state == "silent":
        return [f"Nothing was heard of process {last.pid} since {ago}: is it stopped, or the disk full?"]
    if last is before:
        return ["One snapshot is there; rates need a second."]
    return diagnose(before.stats, last.stats, cores=last.cores)
