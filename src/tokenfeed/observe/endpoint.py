"""`serve_metrics(loader)`: what Prometheus asks for, on loopback, from a thread of the training process."""

import threading
import weakref
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.observe.metrics import CONTENT_TYPE, to_openmetrics
from tokenfeed.observe.publishing import find_loader
from tokenfeed.observe.rates import NO_STATS

__all__ = ["MetricsServer", "serve_metrics"]

_PATIENCE_SECONDS = 5


def serve_metrics(loader: Any, port: int = 0, *, labels: Mapping[str, str] | None = None) -> "MetricsServer":
    """Answer `GET http://127.0.0.1:<port>/metrics` with the loader's counters; port 0 takes one that is free.

    `labels` are `{"rank": …}` unless given. Only this machine can ask. The thread ends with the loader, with the
    process, or by `close`. A port that is taken is an error.
    """
    found = find_loader(loader)
    given = {"rank": str(getattr(found, "rank", 0))} if labels is None else dict(labels)
    to_openmetrics(NO_STATS, given)  # a label that cannot be is told here, not to Prometheus
    try:
        server = MetricsServer(weakref.ref(found), port, given)
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            f"metrics cannot be served on port {port}: {error}. Port 0 takes one that is free."
        ) from None
    weakref.finalize(found, server.close)
    return server


class MetricsServer:
    """A server that runs. It need not be kept."""

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
        """Where it listens, on loopback."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """What to give Prometheus."""
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        """Stop answering. It can be called again."""
        # A loader may be collected in any thread, at any moment: nothing here may wait for what this thread holds.
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
        """Training scripts have logs of their own."""
