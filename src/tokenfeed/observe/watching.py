"""The loaders of a stats file as `tokenfeed top` shows them: their speed, and what they are waiting for."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tokenfeed.errors import quantity
from tokenfeed.observe.diagnosis import Rates, diagnose
from tokenfeed.observe.snapshots import Snapshot, read_snapshots

__all__ = ["Watched", "look", "watch"]

_PATIENCE = 3
"""Missing snapshots after which a loader counts as silent."""
_KEPT_SECONDS = 60
_HISTORY = 120


@dataclass(frozen=True)
class Watched:
    """One loader at the time of its last snapshot."""

    last: Snapshot
    rates: Rates
    """Rates over the last few seconds of snapshots."""
    cpu: float
    """Cores that the process kept busy in that time."""
    history: list[float]
    """Items per second between successive snapshots, the latest 120, oldest first."""
    state: Literal["runs", "ended", "silent", "gone"]
    """`ended`: closed normally. `silent`: no snapshot lately. `gone`: its process no longer exists."""
    words: list[str]
    """Sentences that say what it is waiting for, or how it ended."""

    def is_past(self, latest: float) -> bool:
        """Whether it stopped a minute or more before `latest`, the time of the newest snapshot of any loader."""
        return self.state != "runs" and latest - self.last.time >= _KEPT_SECONDS


def watch(path: str | os.PathLike[str], *, seconds: float = 5.0, now: float | None = None) -> list[Watched]:
    """The loaders of a stats file, by rank, with rates over the `seconds` before the last snapshot of each.

    A loader that stopped is left out once others have run on for a minute.
    """
    now = time.time() if now is None else now
    by_loader: dict[tuple[str, int, int], list[Snapshot]] = {}
    for snapshot in read_snapshots(path):
        by_loader.setdefault(snapshot.key, []).append(snapshot)
    watched = [look(snapshots, seconds=seconds, now=now) for snapshots in by_loader.values()]
    latest = max(each.last.time for each in watched)
    kept = [each for each in watched if not each.is_past(latest)]
    return sorted(kept, key=lambda each: (each.last.rank, each.last.time))


def look(snapshots: Sequence[Snapshot], *, seconds: float, now: float) -> Watched:
    """One loader, from its snapshots, of which there is at least one."""
    last = snapshots[-1]
    # The interval begins with the latest snapshot that is old enough, or with the oldest if none is.
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
    done = f"after {quantity(stats.batches, 'batch', 'batches')} and {quantity(stats.items, 'token')}"
    if state == "ended":
        return [f"The loader ended {ago}, {done}. The loop waited {stats.wait_fraction:.1%} of the time."]
    if state == "gone":
        return [f"Process {last.pid} no longer exists. Its last snapshot was {ago}, {done}."]
    if state == "silent":
        return [f"Process {last.pid} wrote its last snapshot {ago}. Is it stopped, or is the disk full?"]
    if last is before:
        return ["There is only one snapshot so far; rates need two."]
    return diagnose(before.stats, last.stats, cores=last.cores)
