"""The server of the page: its static files, the questions it answers, and who may ask them.

A page of another origin can make a browser send requests here, and DNS rebinding even lets it read the answers under
its own name. So `Host` must be loopback. The token is in the address that `tokenfeed serve` prints; the page keeps it
in the storage of its own origin (scheme, host and port) and sends it in a header, which no other page can do. A cookie
would go to every port of the host. The files of the page itself hold no data and need no token.
"""

import errno
import hmac
import io
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl

from tokenfeed.errors import AddressInUseError, ArgumentError, TokenfeedError, printable
from tokenfeed.ui import documents, overview, packing, runs, samples
from tokenfeed.ui.messages import Json, Query, to_bytes, without_paths
from tokenfeed.ui.subject import Subject

__all__ = ["HEADER", "Server"]

HEADER = "X-Tokenfeed-Token"

_ANSWERS: dict[str, Callable[[Subject, Query], Json]] = {
    "subject": lambda subject, query: subject.describe(),
    "store": overview.describe_store,
    "documents": documents.list_documents,
    "sample": samples.show_sample,
    "packing": packing.show_waste,
    "run": runs.describe_run,
    "ledger": runs.show_ledger,
    "trace": runs.trace_step,
    "find": runs.find_sightings,
    "live": runs.show_live,
}
"""The questions the page may ask. The work for each is bounded, whatever the size of the data."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HOSTS = ("127.0.0.1", "localhost")
_SECONDS = 10
"""Time that a client may take to send a request, however it sends it, and again to take the answer."""
_MOST_CONNECTIONS = 64
_MOST_HEADER_BYTES = 16 << 10
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """A page about one subject, on a port of 127.0.0.1.

    The constructor opens the socket, so `address` is known before `run` starts to answer.
    """

    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, subject: Subject, *, port: int = 0) -> None:
        """Port 0 takes any free port; a port that is in use raises AddressInUseError."""
        self.subject = subject
        self.token = secrets.token_urlsafe(24)
        self._tickets: set[str] = set()
        page = resources.files("tokenfeed.ui").joinpath("page")
        self.files = {f"/{file.name}": file.read_bytes() for file in page.iterdir() if file.is_file()}
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise AddressInUseError(
                    f"port {port} of 127.0.0.1 is in use by another process. Stop that process, choose another port, "
                    "or use port 0, which takes any free one"
                ) from error
            raise ArgumentError(
                f"cannot listen on port {port} of 127.0.0.1: {error}. Port 0 takes any free one"
            ) from error

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """Address of the page with its token, valid as long as the server runs."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def address_once(self) -> str:
        """Address with a token that works once, for where others may see it: on the command line of a browser."""
        ticket = secrets.token_urlsafe(24)
        self._tickets.add(ticket)
        return f"http://127.0.0.1:{self.port}/?token={ticket}"

    def admits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf8", "surrogateescape"), self.token.encode())

    def take_ticket(self, token: str) -> bool:
        """Whether it is a ticket, or the token itself; a ticket is used up."""
        is_ticket = token in self._tickets
        self._tickets.discard(token)
        return is_ticket or self.admits(token)

    def run(self) -> None:
        """Answer until Ctrl-C, or `shutdown` from another thread."""
        with self:
            self.serve_forever(poll_interval=0.1)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Patience(io.RawIOBase):
    """Bytes of a client until its time is up. The timeout of a socket would begin again with every byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = 0.0

    def begin(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._patience = _Patience(self.connection)
        self.rfile = io.BufferedReader(self._patience)

    def handle_one_request(self) -> None:
        self._patience.begin(self.timeout)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """HTTP/0.9 has no headers, and so none that protect: it gets no answer."""
        is_whole = super().parse_request() and self.request_version != "HTTP/0.9"
        self.connection.settimeout(self.timeout)  # to take the answer
        return is_whole

    def do_GET(self) -> None:
        kind, body = "application/json", b""
        status, answer = self._answer()
        if isinstance(answer, str):
            kind, body = _TYPES.get(answer.rpartition(".")[2], "text/plain"), self.server.files[answer]
        else:
            body = to_bytes(answer)
        if self.command != "GET" or "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what may follow is not read
        self.send_response_only(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_GET  # noqa: N815

    def _answer(self) -> tuple[int, Json | str]:
        """Status and answer, which is JSON or the name of a file of the page."""
        host = self.headers.get("Host", "").lower()
        if (host.rpartition(":")[0] if ":" in host else host) not in _HOSTS:  # a forwarded port may be another
            return 403, {"message": "This server only answers to 127.0.0.1 and localhost."}
        if self.command != "GET":
            return 405, {"message": "This server is read-only and answers GET only."}
        if sum(len(name) + len(value) for name, value in self.headers.items()) > _MOST_HEADER_BYTES:
            return 431, {"message": f"The headers of a request may have {_MOST_HEADER_BYTES:,} bytes."}
        path, _, query = self.path.partition("?")
        token, question = self.headers.get(HEADER, ""), path.removeprefix("/api/")
        if question == path:
            name = "/index.html" if path == "/" else path
            return (200, name) if name in self.server.files else (404, {"message": "There is no such file."})
        if question == "enter" and self.server.take_ticket(token):
            return 200, {"token": self.server.token}
        if not self.server.admits(token):
            return 403, {"message": "Open the address `tokenfeed serve` printed: it holds the token."}
        if question not in _ANSWERS:
            return 404, {"message": "There is no such question."}
        return self._ask(question, query)

    def _ask(self, question: str, query: str) -> tuple[int, Json]:
        subject = self.server.subject
        try:
            return 200, _ANSWERS[question](subject, Query(dict(parse_qsl(query))))
        except TokenfeedError as error:
            return 400, {"error": type(error).__name__, "message": without_paths(str(error)[:10_000], subject.homes)}
        except Exception as error:  # noqa: BLE001 (the message may hold paths, which the page must not see)
            print(printable(f"tokenfeed serve: {question}: {type(error).__name__}: {error}"), file=sys.stderr)
            return 500, {"error": "Error", "message": "This request failed. The terminal shows why."}

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "tokenfeed"

    def log_message(self, *_: Any) -> None:
        """Log nothing: a log of requests would hold the token."""
