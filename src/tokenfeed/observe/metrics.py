"""`Stats` as named numbers: a dictionary for TensorBoard and W&B; OpenMetrics text and a server for Prometheus."""

import errno
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple

from tokenfeed.errors import AddressInUseError, ArgumentError, TokenfeedError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.diagnosis import NO_STATS
from tokenfeed.observe.snapshots import find_loader

__all__ = ["MetricsServer", "explain_port", "serve_metrics", "to_dict", "to_openmetrics"]

_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PATIENCE_SECONDS = 5

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class _Metric(NamedTuple):
    """A field of `Stats` or `RemoteStats` and its public name, which ends with the unit if there is one."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    field: str
    help: str


_METRICS = (
    _Metric("batches", "counter", "", "batches", "Batches delivered to the training loop."),
    _Metric("samples", "counter", "", "samples", "Rows delivered to the training loop."),
    _Metric("run_samples", "gauge", "", "delivered", "Samples of the run that all ranks have delivered."),
    _Metric("items", "counter", "", "items", "Items (tokens) of the rows delivered."),
    _Metric("read_bytes", "counter", "bytes", "bytes", "Bytes of columns or text read, including batches made ahead."),
    _Metric("wall_seconds", "counter", "seconds", "wall_seconds", "Time since the first batch was requested."),
    _Metric("wait_seconds", "counter", "seconds", "wait_seconds", "Time the training loop waited for batches."),
    _Metric("read_seconds", "counter", "seconds", "read_seconds", "Time spent making batches, over all threads."),
    _Metric("collate_seconds", "counter", "seconds", "collate_seconds", "Time spent in the collate function."),
    _Metric("encode_seconds", "counter", "seconds", "encode_seconds", "Time spent tokenising, over all threads."),
    _Metric("wait_ratio", "gauge", "ratio", "wait_fraction", "Fraction of the whole time that the loop waited."),
    _Metric("queued_batches", "gauge", "batches", "queued", "Batches that are ready now."),
    _Metric("prefetch_batches", "gauge", "batches", "prefetch", "Most batches made ahead."),
    _Metric("threads", "gauge", "", "threads", "Threads that make batches ahead."),
)
_REMOTE = (
    _Metric("remote_requests", "counter", "", "requests", "Requests to servers."),
    _Metric("remote_asked_bytes", "counter", "bytes", "bytes_asked", "Bytes that were needed and not in memory."),
    _Metric("remote_fetched_bytes", "counter", "bytes", "bytes_fetched", "Bytes that servers sent."),
    _Metric("remote_used_bytes", "counter", "bytes", "bytes_used", "Bytes of fetched data that were read."),
    _Metric("remote_held_bytes", "gauge", "bytes", "bytes_held", "Bytes of fetched data that are in memory."),
    _Metric("remote_waits", "counter", "", "waits", "Reads that had to wait for a server."),
    _Metric("remote_retries", "counter", "", "retries", "Requests that had to be repeated."),
    _Metric("cache_hits", "counter", "", "cache_hits", "Blocks read from the cache on disk."),
    _Metric("cache_misses", "counter", "", "cache_misses", "Blocks that were not in the cache on disk."),
    _Metric("cache_damaged", "counter", "", "cache_damaged", "Damaged blocks in the cache that were fetched again."),
    _Metric("cache_full", "gauge", "", "cache_is_full", "1 if the cache on disk takes no more blocks."),
)


def to_dict(stats: Stats, prefix: str = "tokenfeed/") -> dict[str, float]:
    """All counters by name, such as `{"tokenfeed/wait_seconds": 1.25, …}`, for a logger that takes dictionaries.

    Remote counters are included if the data is remote, `encode_seconds` if text is tokenised.
    """
    return {prefix + metric.name: value for metric, value in _values(stats)}


def to_openmetrics(stats: Stats, labels: Mapping[str, str] | None = None) -> str:
    """All counters as OpenMetrics text, the format of Prometheus. `labels` such as `{"rank": "0"}` go on every line."""
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
    values = asdict(stats) | {"wait_fraction": stats.wait_fraction}
    for metrics, of in (_METRICS, values), (_REMOTE, values["remote"] or {}):
        for metric in metrics:
            if of.get(metric.field) is not None:
                yield metric, float(of[metric.field])


def _show_labels(labels: Mapping[str, str]) -> str:
    parts = []
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or name.startswith("__"):
            raise ArgumentError(
                f"{name!r} is not a valid label name: use letters, digits and _, and begin with neither a digit nor __"
            )
        escaped = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        parts.append(f'{name}="{escaped}"')
    return f"{{{','.join(parts)}}}" if parts else ""


def serve_metrics(loader: Any, port: int = 0, *, labels: Mapping[str, str] | None = None) -> "MetricsServer":
    """Answer `GET http://127.0.0.1:<port>/metrics` with the loader's counters. Port 0 takes any free port.

    `labels` defaults to `{"rank": …}`. Only this machine can connect. The server stops with the loader, with the
    process, or on `close`. A port that is in use raises AddressInUseError.
    """
    found = find_loader(loader)
    given = {"rank": str(found.rank)} if labels is None else dict(labels)
    to_openmetrics(NO_STATS, given)  # reject an invalid label here, not when Prometheus asks
    try:
        server = MetricsServer(weakref.ref(found), port, given)
    except (OSError, OverflowError) as error:
        raise explain_port(port, error) from error
    weakref.finalize(found, server.close)
    return server


def explain_port(port: int, error: Exception) -> TokenfeedError:
    """The error to raise where listening on a port of 127.0.0.1 failed."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"port {port} of 127.0.0.1 is in use by another process. Stop that process, choose another port, or use "
            "port 0, which takes any free one"
        )
    return ArgumentError(f"cannot listen on port {port} of 127.0.0.1: {error}. Port 0 takes any free one")


class MetricsServer:
    """A running server. The caller need not keep it."""

    def __init__(self, loader: "weakref.ref[Any]", port: int, labels: Mapping[str, str]) -> None:
        handler = type("Handler", (_Handler,), {"loader": staticmethod(loader), "labels": dict(labels)})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.timeout = 0.1
        self._server.block_on_close = False
        self.port = int(self._server.server_address[1])
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="tokenfeed-metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._server:
            while not self._is_closed:
                self._server.handle_request()

    @property
    def url(self) -> str:
        """Address for Prometheus to scrape."""
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        """Stop answering. May be called more than once, and by the finalizer of a loader in any thread."""
        self._is_closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE_SECONDS)

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    loader: Any
    labels: Mapping[str, str]
    timeout = _PATIENCE_SECONDS
    server_version = "tokenfeed"
    sys_version = ""

    def do_GET(self) -> None:
        loader = self.loader()
        if self.path.partition("?")[0] not in ("/", "/metrics") or loader is None:
            self.send_error(404)
            return
        body = to_openmetrics(loader.stats(), self.labels).encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the training script owns the log."""
