"""The loaders of a run as `tokenfeed top` shows them: their speed, and what they are waiting for."""

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

__all__ = ["Verdict", "Watched", "judge", "look", "watch"]

_PATIENCE = 3
"""Missing snapshots after which a loader counts as silent."""
_KEPT_SECONDS = 60
_HISTORY = 120
_STARVES = 0.05
"""Fraction of the time that a loop waits, from which on it starves."""
_MOST_NAMED = 6


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

    @property
    def began(self) -> float:
        """When its first batch was asked for."""
        return self.last.time - self.last.stats.wall_seconds

    def is_past(self, others: Sequence["Watched"]) -> bool:
        """Whether it is history: it ended a minute before the newest snapshot, or another loader took its place.

        A loader that died stays until then: its rank started again, or the run goes on with another number of ranks.
        """
        if self.state == "runs":
            return False
        if self.state == "ended" and max(each.last.time for each in others) - self.last.time >= _KEPT_SECONDS:
            return True
        later = [each for each in others if each is not self and each.began >= self.last.time]
        mates = [each for each in others if each.last.world_size == self.last.world_size and each.state == "runs"]
        return any(
            each.last.rank == self.last.rank or (each.last.world_size != self.last.world_size and not mates)
            for each in later
        )


@dataclass(frozen=True)
class Verdict:
    """How the loaders of a run are, in one sentence."""

    level: Literal["good", "warn", "bad", "idle"]
    words: str
    ranks: int
    """Ranks that run."""
    world_size: int


def judge(present: Sequence[Watched]) -> Verdict:
    """The verdict on loaders that are not past: the dead come first, then ranks not heard of, then those that wait."""
    if not present:
        return Verdict("idle", "Nothing was published yet.", 0, 0)
    newest = max(present, key=lambda each: each.last.time).last
    running = [each for each in present if each.state == "runs"]
    heard, size = {each.last.rank for each in running}, newest.world_size
    dead = [each for each in present if each.state in ("gone", "silent")]
    told = f"{len(heard)} of {quantity(size, 'rank')} {'runs' if len(heard) == 1 else 'run'}"
    if dead:
        worst = sorted(dead, key=lambda each: (each.state != "gone", each.last.rank))
        names = ", ".join(f"{each.last.rank}" for each in worst[:_MOST_NAMED])
        more = f" and {len(worst) - _MOST_NAMED} more" if len(worst) > _MOST_NAMED else ""
        how = "dead" if worst[0].state == "gone" else "silent"
        ranks = "Rank" if len(worst) == 1 else "Ranks"
        return Verdict(
            "bad", f"{ranks} {names}{more} {'is' if len(worst) == 1 else 'are'} {how}; {told}.", len(heard), size
        )
    if not running:
        return Verdict("idle", "The run ended.", 0, size)
    known = {each.last.rank for each in present}
    if len(known) < size:
        silent = sorted(set(range(min(size, 1 << 16))) - known)
        names = ", ".join(map(str, silent[:_MOST_NAMED])) + (" and more" if len(silent) > _MOST_NAMED else "")
        return Verdict("warn", f"Not heard of: rank {names}; {told}.", len(heard), size)
    hungry = max(running, key=lambda each: each.rates.wait_fraction)
    if hungry.rates.wait_fraction >= _STARVES:
        of = f"Rank {hungry.last.rank}: " if size > 1 else ""
        return Verdict("warn", of + hungry.words[0], len(heard), size)
    return Verdict(
        "good", f"{told}; the loop waits {hungry.rates.wait_fraction:.1%} of the time at most.", len(heard), size
    )


def watch(path: str | os.PathLike[str], *, seconds: float = 5.0, now: float | None = None) -> list[Watched]:
    """The loaders of a run, by rank, with rates over the `seconds` before the last snapshot of each.

    A loader that ended is left out once others have run on for a minute; one that died, once another took its place.
    """
    now = time.time() if now is None else now
    by_loader: dict[tuple[str, int, int], list[Snapshot]] = {}
    for snapshot in read_snapshots(path):
        by_loader.setdefault(snapshot.key, []).append(snapshot)
    watched = [look(snapshots, seconds=seconds, now=now) for snapshots in by_loader.values()]
    kept = [each for each in watched if not each.is_past(watched)]
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
