"""What a loader does, as named numbers in a dictionary, which any logger takes.

wandb.log(observe.measure(loader), step=step)
"""

import weakref
from dataclasses import asdict
from typing import Any

from tokenfeed.loader.delivery import Stats
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.snapshots import find_loader

__all__ = ["measure", "to_dict"]

# Fields of `Stats` and of `RemoteStats` by their public names, which end with the unit if there is one.
_NAMES = {
    "batches": "batches",
    "samples": "samples",
    "run_samples": "delivered",
    "items": "items",
    "read_bytes": "bytes",
    "wall_seconds": "wall_seconds",
    "wait_seconds": "wait_seconds",
    "read_seconds": "read_seconds",
    "collate_seconds": "collate_seconds",
    "encode_seconds": "encode_seconds",
    "wait_ratio": "wait_fraction",
    "queued_batches": "queued",
    "prefetch_batches": "prefetch",
    "threads": "threads",
}
_REMOTE_NAMES = {
    "remote_requests": "requests",
    "remote_asked_bytes": "bytes_asked",
    "remote_fetched_bytes": "bytes_fetched",
    "remote_used_bytes": "bytes_used",
    "remote_held_bytes": "bytes_held",
    "remote_waits": "waits",
    "remote_retries": "retries",
    "cache_hits": "cache_hits",
    "cache_misses": "cache_misses",
    "cache_damaged": "cache_damaged",
    "cache_full": "cache_is_full",
}

_last: "weakref.WeakKeyDictionary[Any, Stats]" = weakref.WeakKeyDictionary()
"""Counters of every loader when it was last measured."""


def to_dict(stats: Stats, prefix: str = "tokenfeed/") -> dict[str, float]:
    """All counters by name, such as `{"tokenfeed/wait_seconds": 1.25, …}`.

    Remote counters are included if the data is remote, `encode_seconds` if text is tokenised.
    """
    values = asdict(stats) | {"wait_fraction": stats.wait_fraction}
    named = {name: values[field] for name, field in _NAMES.items()}
    if stats.remote is not None:
        named |= {name: values["remote"][field] for name, field in _REMOTE_NAMES.items()}
    return {prefix + name: float(value) for name, value in named.items() if value is not None}


def measure(loader: Any, *, prefix: str = "data/") -> dict[str, float]:
    """Rates over the time since the last call for this loader, and how far the run is:

    `wait_share` of that time was spent waiting for batches; `tokens_per_second` of this rank; and since the beginning
    of the run, over all ranks: `samples`, and by source `share/NAME` of samples, `target_share/NAME`, `epochs/NAME`. A
    run over one view has one source, which has no name; a stream has no numbers by source.
    """
    found = find_loader(loader)
    now = found.stats()
    before = _last.get(found)
    _last[found] = now
    seconds = now.wall_seconds - (before.wall_seconds if before else 0.0)
    values: dict[str, float] = {}
    if seconds > 0:
        values["wait_share"] = (now.wait_seconds - (before.wait_seconds if before else 0.0)) / seconds
        values["tokens_per_second"] = (now.items - (before.items if before else 0)) / seconds
    values["headroom"] = min(now.headroom, 1e6)  # infinite before anything was made
    if isinstance(found, Loader):
        delivered = found.state_dict()["samples"]
        values["samples"] = delivered
        for each in found.plan.ledger(delivered):
            name = f"/{each.source}" if each.source else ""
            values[f"epochs{name}"] = each.epochs
            if each.source and delivered:
                values[f"share{name}"] = each.samples / delivered
                values[f"target_share{name}"] = each.target / delivered
    return {prefix + name: float(value) for name, value in values.items()}
