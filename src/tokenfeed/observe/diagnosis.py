"""What the training loop waits for, in words, from two looks at the counters of a loader."""

import os

from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.rates import Rates

__all__ = ["count_cores", "diagnose"]

_WAIT_MATTERS = 0.01
_BUSY = 0.7  # a thread that makes batches this share of the time cannot make many more
# Taking a batch that is ready takes 2 to 30 µs; up to 100 where a thread that sleeps must be woken, which is told from
# waiting for one that works by how busy those are.
_TAKING = 30e-6
_WAKING = 100e-6
_WASTE = 4.0
_MOST_THREADS = 16


def diagnose(before: Stats, after: Stats, *, cores: int | None = None) -> list[str]:
    """Sentences on the time between two calls of `loader.stats()`: first what the loop waits for, then what is odd.

    Every sentence follows from counters, and names them. `cores` are those the process may use, unless given those of
    this one. Seconds are enough for an interval; it should have some ten batches or more.
    """
    rates = Rates.between(before, after)
    return [_tell_wait(rates, after, cores or count_cores()), *_tell_oddities(rates)]


def count_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tell_wait(rates: Rates, stats: Stats, cores: int) -> str:
    if stats.wall_seconds == 0:
        return "The loop has not asked for a batch yet."
    if rates.seconds <= 0:
        return "No time has passed: look again after a second or more."
    share = _percent(rates.wait_fraction)
    if rates.wait_fraction < _WAIT_MATTERS:
        idle = (
            ""
            if rates.batches
            else f" It has taken no batch for {rates.seconds:.0f} s: it is busy with something else."
        )
        return f"Nothing to gain: the loop waits {share} of the time.{idle}"
    waits = f"The loop waits {share} of the time"
    is_busy = max(rates.busy, rates.encode_busy or 0.0) >= _BUSY
    if rates.batches and rates.seconds_per_wait < (_TAKING if is_busy else _WAKING):
        each = f"{rates.seconds_per_wait * 1e6:.0f} µs for a batch"
        return (
            f"Nothing to gain: the loop waits {share} of the time, but only {each}, which is what handing over takes."
        )
    if stats.prefetch == 0:
        return (
            f"{waits}: it makes every batch itself, because prefetch is 0. Leave prefetch out, and threads work ahead."
        )
    return f"{waits}: {_find_cause(rates, stats, cores)}"


def _find_cause(rates: Rates, stats: Stats, cores: int) -> str:
    remote = rates.remote
    if remote is not None and remote.waits:
        return _blame_server(rates, stats)
    if rates.encode_busy is not None:
        if rates.encode_busy >= _BUSY:
            threads = _advise_threads(stats, cores)
            return (
                f"tokenising is the bottleneck; {_threads(stats)} busy "
                f"{_percent(rates.encode_busy)} of the time. {threads or 'All cores are taken: prepare a store first'}."
            )
        if rates.busy >= _BUSY:
            return (
                "reading and packing text is the bottleneck; one thread does it, and tokenising is busy only "
                f"{_percent(rates.encode_busy)} of the time. A store, prepared once, is read faster."
            )
    elif rates.busy >= _BUSY and rates.collate_share >= 0.5:
        return (
            f"collate is the bottleneck; it takes {_percent(rates.collate_share)} of the time that batches take. "
            "Do less in it, or do it on the device."
        )
    elif rates.busy >= _BUSY:
        threads = _advise_threads(stats, cores)
        otherwise = "All cores are taken: leave one to the loader, or look at the disk with `tokenfeed bench`"
        return (
            f"reading is the bottleneck; {_threads(stats)} at it {_percent(rates.busy)} of the time. "
            f"{threads or otherwise}."
        )
    if not rates.batches:
        return f"no batch has come for {rates.seconds:.1f} s, and none was finished. Does the disk still answer?"
    return (
        f"some batches come late, though making them takes only {_percent(rates.busy)} of the time. "
        f"Try prefetch={2 * stats.prefetch}; other work on the same cores has the same effect."
    )


def _blame_server(rates: Rates, stats: Stats) -> str:
    remote = rates.remote
    assert remote is not None
    told = f"the server is the bottleneck; {remote.waits:,} reads had to wait for it, {rates.batches:,} batches came. "
    if remote.cache_is_full:
        return f"{told}The cache on disk is full, or cannot be written to: give it room with Remote(cache_bytes=…)."
    if remote.bytes_fetched > _WASTE * max(1, rates.bytes_per_second * rates.seconds):
        times = remote.bytes_fetched / max(1, rates.bytes_per_second * rates.seconds)
        return f"{told}It sends {times:.0f} bytes for each one used: an order with Locality, or a cache, needs fewer."
    if not remote.cache_hits + remote.cache_misses:
        deeper = f"prefetch={2 * stats.prefetch} asks earlier"
        return f"{told}Remote(cache=folder) keeps what was fetched for later epochs; {deeper}."
    return f"{told}Try prefetch={2 * stats.prefetch}, which asks earlier; later epochs come from the cache."


def _advise_threads(stats: Stats, cores: int) -> str | None:
    wanted = min(2 * stats.threads, cores, _MOST_THREADS)
    return f"Try threads={wanted}" if wanted > stats.threads else None


def _tell_oddities(rates: Rates) -> list[str]:
    remote = rates.remote
    if remote is None:
        return []
    told = []
    if remote.retries:
        told.append(
            f"{_count(remote.retries, 'request')} had to be made again: the server refuses, or the network is bad."
        )
    if remote.cache_damaged:
        told.append(
            f"{_count(remote.cache_damaged, 'block')} in the cache on disk were not what was written, and were fetched "
            "again: is the disk sound?"
        )
    if remote.cache_is_full:
        told.append("The cache on disk takes no more: it is full, or its disk cannot be written to.")
    return told


def _percent(share: float) -> str:
    """`"12%"`, `"1.5%"`, `"0.02%"`."""
    return f"{100 * share:.{0 if share >= 0.1 else 1 if share >= 0.01 else 2}f}%"


def _threads(stats: Stats) -> str:
    return f"{_count(stats.threads, 'thread')} {'is' if stats.threads == 1 else 'are'}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
