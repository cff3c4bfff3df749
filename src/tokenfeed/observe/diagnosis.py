"""Rates of a loader between two readings of its counters, and in words what the training loop waits for."""

from dataclasses import asdict, dataclass

from tokenfeed.errors import quantity
from tokenfeed.loader.delivery import Stats
from tokenfeed.storage.remote import RemoteStats
from tokenfeed.text.tokenizer.engines import available_cores

__all__ = ["CAUSES", "NO_STATS", "Rates", "diagnose", "find_cause"]

CAUSES = ("read", "network", "tokenise", "collate", "queue")
"""What a loop waits for. `queue`: none of the others, so the batches are late rather than slow."""

_WAIT_MATTERS = 0.01
_BUSY = 0.7  # a thread that makes batches this fraction of the time cannot make many more
# Taking a finished batch takes 2 to 30 µs; up to 100 if a sleeping thread must wake up first. If the threads are busy,
# waits of 30 to 100 µs are real ones.
_TAKING = 30e-6
_WAKING = 100e-6
_WASTE = 4.0
_MOST_THREADS = 16


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

        def grown(name: str) -> float:
            """A stream restarts its counters when it loads a state, so they may go back."""
            return max(0.0, (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0))

        waited, made = grown("wait_seconds"), grown("read_seconds")
        # Each reading thread makes whole batches; a stream has one thread that packs what others tokenised.
        is_text = after.encode_seconds is not None
        makers = 1 if is_text else max(1, after.threads)
        per_second = 1 / seconds if seconds > 0 else 0.0
        return cls(
            seconds=seconds,
            batches=batches,
            samples_per_second=grown("samples") * per_second,
            items_per_second=grown("items") * per_second,
            bytes_per_second=grown("bytes") * per_second,
            wait_fraction=min(1.0, waited * per_second),
            seconds_per_wait=waited / max(1, batches),
            busy=min(1.0, made * per_second / makers),
            collate_share=min(1.0, grown("collate_seconds") / made) if made else 0.0,
            encode_busy=min(1.0, grown("encode_seconds") * per_second / max(1, after.threads)) if is_text else None,
            remote=_difference(before.remote, after.remote),
        )


def _difference(before: RemoteStats | None, after: RemoteStats | None) -> RemoteStats | None:
    if after is None:
        return None
    old, new = asdict(before or RemoteStats()), asdict(after)
    growth = {name: max(0, new[name] - old[name]) for name in new}
    return RemoteStats(**growth | {"cache_is_full": after.cache_is_full, "bytes_held": after.bytes_held})


def diagnose(before: Stats, after: Stats, *, cores: int | None = None) -> list[str]:
    """Sentences about the time between two calls of `loader.stats()`: what the loop waits for, then any irregularities.

    Every sentence follows from counters and names them. `cores` is the number the loader's process may use; by default
    that of this process. A few seconds are enough, if they hold ten batches or more.
    """
    rates = Rates.between(before, after)
    return [_tell_wait(rates, after, cores or available_cores()), *_tell_oddities(rates)]


def _tell_wait(rates: Rates, stats: Stats, cores: int) -> str:
    if stats.wall_seconds == 0:
        return "The loop has not asked for a batch yet."
    if rates.seconds <= 0:
        return "No time has passed between the two readings: wait a second or more."
    share = _percent(rates.wait_fraction)
    if rates.wait_fraction < _WAIT_MATTERS:
        busy = f" It has taken no batch for {rates.seconds:.0f} s: it is busy with something else."
        return f"Nothing to gain: the loop waits {share} of the time.{'' if rates.batches else busy}"
    waits = f"The loop waits {share} of the time"
    is_busy = max(rates.busy, rates.encode_busy or 0.0) >= _BUSY
    if rates.batches and rates.seconds_per_wait < (_TAKING if is_busy else _WAKING):
        each = f"{rates.seconds_per_wait * 1e6:.0f} µs per batch"
        return f"Nothing to gain: the loop waits {share} of the time, but only {each}, the cost of handing one over."
    if stats.prefetch == 0:
        return f"{waits}: it makes every batch itself, because prefetch is 0. Remove prefetch=0 to read ahead."
    return f"{waits}: {_explain(rates, stats, cores)}"


def find_cause(rates: Rates) -> str:
    """The one of CAUSES that limited the loader in an interval."""
    if rates.remote is not None and rates.remote.waits:
        return "network"
    if rates.encode_busy is not None and rates.encode_busy >= _BUSY:
        return "tokenise"
    if rates.busy >= _BUSY:
        return "collate" if rates.encode_busy is None and rates.collate_share >= 0.5 else "read"
    return "queue"


def _explain(rates: Rates, stats: Stats, cores: int) -> str:
    cause = find_cause(rates)
    threads = _advise_threads(stats, cores)
    if cause == "network" and rates.remote is not None:
        return _blame_server(rates, rates.remote, stats)
    if cause == "tokenise":
        return (
            f"tokenising is the bottleneck; {_threads(stats)} busy {_percent(rates.encode_busy or 0)} of the time. "
            f"{threads or 'All cores are in use: prepare a store first'}."
        )
    if cause == "collate":
        return (
            f"collate is the bottleneck; it takes {_percent(rates.collate_share)} of the time spent on batches. "
            "Do less in it, or do the work on the device."
        )
    if cause == "read" and rates.encode_busy is not None:
        return (
            "reading and packing text is the bottleneck; one thread does it, and the tokenising threads are busy "
            f"only {_percent(rates.encode_busy)} of the time. Prepare a store once: reading it is faster."
        )
    if cause == "read":
        otherwise = "All cores are in use: leave one to the loader"
        return (
            f"reading is the bottleneck; {_threads(stats)} busy {_percent(rates.busy)} of the time. "
            f"{threads or otherwise}."
        )
    if not rates.batches:
        return f"no batch was delivered for {rates.seconds:.1f} s, and none was finished. Does the disk still respond?"
    return (
        f"some batches are late, although making them takes only {_percent(rates.busy)} of the time. "
        f"Try prefetch={2 * stats.prefetch}. Other work on the same cores has the same effect."
    )


def _blame_server(rates: Rates, remote: RemoteStats, stats: Stats) -> str:
    batches = quantity(rates.batches, "batch", "batches")
    told = f"the server is the bottleneck; {quantity(remote.waits, 'read')} had to wait for it, for {batches}. "
    if remote.cache_is_full:
        return f"{told}The cache on disk is full or cannot be written: enlarge it with Remote(cache_bytes=…)."
    used = max(1, rates.bytes_per_second * rates.seconds)
    if remote.bytes_fetched > _WASTE * used:
        times = remote.bytes_fetched / used
        return f"{told}It sends {times:.0f} bytes for each byte used: use shuffle=tokenfeed.plan.Local(…), or a cache."
    earlier = f"prefetch={2 * stats.prefetch}, which requests data earlier"
    if not remote.cache_hits + remote.cache_misses:
        return f"{told}Try Remote(cache=folder), which keeps the data for later epochs, or {earlier}."
    return f"{told}Try {earlier}. Later epochs come from the cache."


def _advise_threads(stats: Stats, cores: int) -> str | None:
    wanted = min(2 * stats.threads, cores, _MOST_THREADS)
    return f"Try threads={wanted}" if wanted > stats.threads else None


def _tell_oddities(rates: Rates) -> list[str]:
    remote = rates.remote
    if remote is None:
        return []
    told = []
    if remote.retries:
        told.append(f"{quantity(remote.retries, 'request')} had to be repeated: check the server and the network.")
    if remote.cache_damaged:
        blocks = quantity(remote.cache_damaged, "damaged block")
        told.append(f"The cache on disk held {blocks}, fetched again from the server: check the disk.")
    if remote.cache_is_full:
        told.append("The cache on disk takes no more blocks: it is full, or its disk cannot be written.")
    if remote.warning:
        told.append(f"{remote.warning}.")
    return told


def _percent(share: float) -> str:
    """`"12%"`, `"1.5%"`, `"0.02%"`."""
    return f"{100 * share:.{0 if share >= 0.1 else 1 if share >= 0.01 else 2}f}%"


def _threads(stats: Stats) -> str:
    return f"{quantity(stats.threads, 'thread')} {'is' if stats.threads == 1 else 'are'}"
