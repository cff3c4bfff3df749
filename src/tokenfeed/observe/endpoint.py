"""`serve_metrics(loader)`: metrics for Prometheus on a loopback port, served by a thread of the training process."""

import errno
import threading
import weakref
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokenfeed.errors import AddressInUseError, ArgumentError, TokenfeedError
from tokenfeed.observe.metrics import CONTENT_TYPE, to_openmetrics
from tokenfeed.observe.publishing import find_loader
from tokenfeed.observe.rates import NO_STATS

__all__ = ["MetricsServer", "explain_port", "serve_metrics"]

_PATIENCE_SECONDS = 5


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
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._closed = threading.Lock()
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="tokenfeed-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Port it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Address for Prometheus to scrape."""
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        """Stop answering. May be called more than once."""
        # The finalizer of a loader may run in any thread, this server's included, which must not wait for itself.
        if self._closed.acquire(blocking=False):
            if threading.current_thread() is self._thread:
                threading.Thread(target=self._stop, daemon=True).start()
            else:
                self._stop()

    def _stop(self) -> None:
        self._server.shutdown()
        self._thread.join(_PATIENCE_SECONDS)
        self._server.server_close()

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
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the training script owns the log."""
