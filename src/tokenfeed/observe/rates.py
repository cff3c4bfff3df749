"""Rates of a loader between two readings of its counters."""

from dataclasses import asdict, dataclass

from tokenfeed.loader.delivery import Stats
from tokenfeed.storage.remote import RemoteStats

__all__ = ["NO_STATS", "Rates"]

NO_STATS = Stats(batches=0, samples=0, bytes=0, wall_seconds=0.0, wait_seconds=0.0, read_seconds=0.0, queued=0)
"""Counters of a loader that has not been asked for a batch."""


@dataclass(frozen=True)
class Rates:
    """Rates over an interval. If the loader was replaced in between, the interval begins with the new one."""

    seconds: float
    batches: int
    samples_per_second: float
    items_per_second: float
    bytes_per_second: float
    wait_fraction: float
    """Fraction of the time that the training loop waited."""
    seconds_per_wait: float
    """Mean time the loop waited for a batch."""
    busy: float
    """Fraction of the time that the threads which make batches were working: 1 if all worked all the time."""
    collate_share: float
    """Fraction of batch time spent in `collate`."""
    encode_busy: float | None
    """Fraction of the time that tokenising threads were working; None if no text is tokenised."""
    remote: RemoteStats | None
    """Counters of servers and cache over the interval; None if all data is local."""

    @classmethod
    def between(cls, before: Stats, after: Stats) -> "Rates":
        """The rates between two calls of `stats()`."""
        if after.wall_seconds < before.wall_seconds or after.batches < before.batches:
            before = NO_STATS
        seconds = after.wall_seconds - before.wall_seconds
        batches = after.batches - before.batches
        # A stream restarts these counters when it loads a state, so they may go back.
        waited = max(0.0, after.wait_seconds - before.wait_seconds)
        made = max(0.0, after.read_seconds - before.read_seconds)
        collated = max(0.0, after.collate_seconds - before.collate_seconds)
        encoded = max(0.0, (after.encode_seconds or 0.0) - (before.encode_seconds or 0.0))
        num_bytes = max(0, after.bytes - before.bytes)
        # Each reading thread makes whole batches; a stream has one thread that packs what others tokenised.
        makers = 1 if after.encode_seconds is not None else max(1, after.threads)
        per_second = 1 / seconds if seconds > 0 else 0.0
        return cls(
            seconds=seconds,
            batches=batches,
            samples_per_second=(after.samples - before.samples) * per_second,
            items_per_second=(after.items - before.items) * per_second,
            bytes_per_second=num_bytes * per_second,
            wait_fraction=min(1.0, waited * per_second),
            seconds_per_wait=waited / max(1, batches),
            busy=min(1.0, made * per_second / makers),
            collate_share=min(1.0, collated / made) if made else 0.0,
            encode_busy=min(1.0, encoded * per_second / max(1, after.threads))
            if after.encode_seconds is not None
            else None,
            remote=_difference(before.remote, after.remote),
        )


def _difference(before: RemoteStats | None, after: RemoteStats | None) -> RemoteStats | None:
    if after is None:
        return None
    old, new = asdict(before or RemoteStats()), asdict(after)
    return RemoteStats(
        **{name: max(0, new[name] - old[name]) for name in new if name != "cache_is_full"},
        cache_is_full=after.cache_is_full,
    )
