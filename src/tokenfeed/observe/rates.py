"""What a loader did between two looks at its counters."""

from dataclasses import dataclass

from tokenfeed.loader.delivery import Stats
from tokenfeed.storage.remote import RemoteStats

__all__ = ["NO_STATS", "Rates"]

NO_STATS = Stats(batches=0, samples=0, bytes=0, wall_seconds=0.0, wait_seconds=0.0, read_seconds=0.0, queued=0)
"""Of a loader that nobody has asked for a batch."""


@dataclass(frozen=True)
class Rates:
    """Of an interval. A loader that was made anew in between counts from its own beginning."""

    seconds: float
    batches: int
    samples_per_second: float
    items_per_second: float
    bytes_per_second: float
    wait_fraction: float
    """Share of the time that the training loop waited."""
    seconds_per_wait: float
    """That the loop waited for a batch, on average."""
    busy: float
    """Share of the time that those who make batches were at it: 1 when all always were."""
    collate_share: float
    """Of the time that making batches took, that of the collate function."""
    encode_busy: float | None
    """Share of the time that tokenising threads were at it, where text is tokenised."""
    remote: RemoteStats | None
    """What was counted of servers and the cache in the interval."""

    @classmethod
    def between(cls, before: Stats, after: Stats) -> "Rates":
        """What happened between two calls of `stats()`."""
        if after.wall_seconds < before.wall_seconds or after.batches < before.batches:
            before = NO_STATS
        seconds = after.wall_seconds - before.wall_seconds
        batches = after.batches - before.batches
        # A stream counts what it makes anew when it is sent elsewhere, so these may step back.
        waited, made, collated, encoded, num_bytes = (
            max(0.0, (getattr(after, name) or 0) - (getattr(before, name) or 0))
            for name in ("wait_seconds", "read_seconds", "collate_seconds", "encode_seconds", "bytes")
        )
        # Reading threads each make batches; a stream has one that packs what its tokenising threads hand over.
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
            encode_busy=None
            if after.encode_seconds is None
            else min(1.0, encoded * per_second / max(1, after.threads)),
            remote=_difference(before.remote, after.remote),
        )


def _difference(before: RemoteStats | None, after: RemoteStats | None) -> RemoteStats | None:
    if after is None:
        return None
    before = before or RemoteStats()
    counters = [name for name in RemoteStats.__slots__ if name != "cache_is_full"]
    counts = {name: max(0, getattr(after, name) - getattr(before, name)) for name in counters}
    return RemoteStats(**counts, cache_is_full=after.cache_is_full)
