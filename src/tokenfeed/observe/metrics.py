"""`Stats` as numbers with names: a flat dictionary for TensorBoard and W&B, OpenMetrics text for Prometheus."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Stats

__all__ = ["CONTENT_TYPE", "to_dict", "to_openmetrics"]

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class _Metric(NamedTuple):
    """A field of the stats, and how it is called outside. A name ends with its unit, where it has one."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    field: str
    help: str


_METRICS = (
    _Metric("batches", "counter", "", "batches", "Batches delivered to the training loop."),
    _Metric("samples", "counter", "", "samples", "Rows delivered to the training loop."),
    _Metric("items", "counter", "", "items", "Items (tokens) of the rows delivered."),
    _Metric("read_bytes", "counter", "bytes", "bytes", "Bytes of columns or text read, those made ahead included."),
    _Metric("wall_seconds", "counter", "seconds", "wall_seconds", "Time since the first batch was asked for."),
    _Metric("wait_seconds", "counter", "seconds", "wait_seconds", "Time that the training loop waited for batches."),
    _Metric("read_seconds", "counter", "seconds", "read_seconds", "Time spent making batches, over all threads."),
    _Metric("collate_seconds", "counter", "seconds", "collate_seconds", "Time spent in the collate function."),
    _Metric("encode_seconds", "counter", "seconds", "encode_seconds", "Time spent tokenising, over all threads."),
    _Metric("wait_ratio", "gauge", "ratio", "wait_fraction", "Share of the whole time that the loop waited."),
    _Metric("queued_batches", "gauge", "batches", "queued", "Batches that are ready now."),
    _Metric("prefetch_batches", "gauge", "batches", "prefetch", "Batches that may be made ahead."),
    _Metric("threads", "gauge", "", "threads", "Threads that work ahead."),
)
_REMOTE = (
    _Metric("remote_requests", "counter", "", "requests", "Requests to servers."),
    _Metric("remote_asked_bytes", "counter", "bytes", "bytes_asked", "Bytes that reads needed and memory had not."),
    _Metric("remote_fetched_bytes", "counter", "bytes", "bytes_fetched", "Bytes that servers sent."),
    _Metric("remote_waits", "counter", "", "waits", "Reads that had to wait for a server."),
    _Metric("remote_retries", "counter", "", "retries", "Requests that had to be made again."),
    _Metric("cache_hits", "counter", "", "cache_hits", "Blocks read from the cache on disk."),
    _Metric("cache_misses", "counter", "", "cache_misses", "Blocks that the cache on disk had not."),
    _Metric("cache_damaged", "counter", "", "cache_damaged", "Blocks on disk that had to be fetched again."),
    _Metric("cache_full", "gauge", "", "cache_is_full", "1 where blocks are no longer kept on disk."),
)


def to_dict(stats: Stats, prefix: str = "tokenfeed/") -> dict[str, float]:
    """Every counter by name, such as `{"tokenfeed/wait_seconds": 1.25, …}`, for a logger that takes dictionaries.

    Remote counters are there where data lies elsewhere, `encode_seconds` where text is tokenised.
    """
    return {prefix + metric.name: value for metric, value in _values(stats)}


def to_openmetrics(stats: Stats, labels: Mapping[str, str] | None = None) -> str:
    """OpenMetrics text with `# EOF`, which Prometheus and everything that reads its format take.

    `labels` go with every number: `{"rank": "0"}`.
    """
    shown = _show_labels(labels or {})
    lines = []
    for metric, value in _values(stats):
        name = f"tokenfeed_{metric.name}"
        lines.append(f"# TYPE {name} {metric.kind}")
        if metric.unit:
            lines.append(f"# UNIT {name} {metric.unit}")
        lines.append(f"# HELP {name} {metric.help}")
        lines.append(f"{name}{'_total' if metric.kind == 'counter' else ''}{shown} {value!r}")
    return "\n".join([*lines, "# EOF", ""])


def _values(stats: Stats) -> Iterator[tuple[_Metric, float]]:
    for metric in _METRICS:
        value = getattr(stats, metric.field)
        if value is not None:
            yield metric, float(value)
    if stats.remote is not None:
        for metric in _REMOTE:
            yield metric, float(getattr(stats.remote, metric.field))


def _show_labels(labels: Mapping[str, str]) -> str:
    parts = []
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or name.startswith("__"):
            raise ArgumentError(
                f"{name!r} cannot name a label: letters, digits and _ can, not beginning with a digit or with __"
            )
        escaped = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        parts.append(f'{name}="{escaped}"')
    return f"{{{','.join(parts)}}}" if parts else ""
