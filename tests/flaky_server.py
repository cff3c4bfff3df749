"""A real HTTP server on loopback that misbehaves as told.

Every path has bytes and a script: the first request to it meets the first behaviour of the script, the second the
second, and so on (`...` repeats the one before it for ever); when the script is at its end the server behaves. What was
asked for and how much was sent is on record.

    with FlakyServer() as server:
        server.put("/a.parquet", data, Break(after=1000), Status(503))
        server.url("/a.parquet"), server.requests, server.bytes_sent("/a.parquet")
"""

import contextlib
import hashlib
import json
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import EllipsisType
from typing import Any, Self


@dataclass
class Request:
    """One request as the server saw it."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    status: int = 0
    num_bytes: int = 0
    """How many bytes of body were sent."""

    @property
    def range(self) -> str | None:
        return self.headers.get("Range")


@dataclass
class Resource:
    """What is under a path."""

    data: bytes
    script: "list[Behaviour]"
    headers: dict[str, str]
    etag: str | None

    def become(self, data: bytes) -> None:
        self.data = data
        self.etag = self.etag and make_etag(data)


@dataclass
class Exchange:
    """A request that is being answered."""

    request: Request
    resource: Resource
    server: "FlakyServer"
    handler: BaseHTTPRequestHandler

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.request.status = status
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()

    def send(self, data: bytes) -> None:
        if self.handler.command == "HEAD":
            return
        self.handler.wfile.write(data)
        self.request.num_bytes += len(data)

    def part(self) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the right answer."""
        data, headers = self.resource.data, dict(self.resource.headers)
        if self.resource.etag:
            headers |= {"ETag": self.resource.etag, "Accept-Ranges": "bytes"}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.request.range or "")
        if self.request.headers.get("If-Match", self.resource.etag) != self.resource.etag:
            return 412, {"Content-Length": "0"}, b""
        if not match:
            return 200, headers | {"Content-Length": str(len(data))}, data
        start, stop = int(match[1]), min(len(data), int(match[2] or len(data)) + bool(match[2]))
        if start >= stop:
            return 416, headers | {"Content-Length": "0", "Content-Range": f"bytes */{len(data)}"}, b""
        headers |= {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", "Content-Length": str(stop - start)}
        return 206, headers, data[start:stop]

    def close(self, *, reset: bool = False) -> None:
        """End the connection, politely or with a reset that loses what is under way."""
        self.handler.close_connection = True
        self.handler.wfile.flush()
        if reset:
            self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.handler.connection.shutdown(socket.SHUT_WR)
        self.handler.rfile.close()
        self.handler.wfile.close()
        self.handler.connection.close()


Behaviour = Callable[[Exchange], None] | EllipsisType


def make_etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def behave(exchange: Exchange) -> None:
    """The right answer."""
    status, headers, body = exchange.part()
    exchange.head(status, headers)
    exchange.send(body)


@dataclass
class Status:
    """An answer with another status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    def __call__(self, exchange: Exchange) -> None:
        exchange.head(self.status, {"Content-Length": str(len(self.body)), **self.headers})
        exchange.send(self.body)


@dataclass
class Break:
    """The connection ends after some bytes of the body."""

    after: int
    reset: bool = False

    def __call__(self, exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        exchange.head(status, headers)
        exchange.send(body[: self.after])
        exchange.close(reset=self.reset)


@dataclass
class Stall:
    """Nothing more comes after some bytes of the body; after −1, not even headers."""

    after: int

    def __call__(self, exchange: Exchange) -> None:
        if self.after >= 0:
            status, headers, body = exchange.part()
            exchange.head(status, headers)
            exchange.send(body[: self.after])
        exchange.server.stopping.wait(60)
        exchange.handler.close_connection = True


@dataclass
class Slow:
    """The body comes in pieces with a pause after each."""

    piece: int
    pause: float

    def __call__(self, exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        exchange.head(status, headers)
        for start in range(0, len(body), self.piece):
            exchange.send(body[start : start + self.piece])
            if exchange.server.stopping.wait(self.pause):
                return


@dataclass
class Promise:
    """Other headers than the right ones: a length that is not true, another range, a wrong checksum."""

    headers: Mapping[str, str]
    extra: bytes = b""
    """Sent after the body."""

    def __call__(self, exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        exchange.head(status, {**headers, **self.headers})
        exchange.send(body + self.extra)
        exchange.close()


@dataclass
class Become:
    """The content is replaced, then the behaviour follows."""

    data: bytes = field(repr=False)
    then: Behaviour = behave

    def __call__(self, exchange: Exchange) -> None:
        exchange.resource.become(self.data)
        self.then(exchange)


@dataclass
class Flip:
    """One bit of the body is wrong."""

    position: int

    def __call__(self, exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        body = bytearray(body)
        body[self.position] ^= 1
        exchange.head(status, headers)
        exchange.send(bytes(body))


def whole(exchange: Exchange) -> None:
    """Ranges are ignored."""
    headers = {"Content-Length": str(len(exchange.resource.data)), **exchange.resource.headers}
    if exchange.resource.etag:
        headers["ETag"] = exchange.resource.etag
    exchange.head(200, headers)
    exchange.send(exchange.resource.data)


@dataclass
class Chunked:
    """No length is told: the body comes in chunks, the last of which may be missing; or (`bare`) it just ends."""

    piece: int = 1000
    complete: bool = True
    bare: bool = False

    def __call__(self, exchange: Exchange) -> None:
        _, headers, _ = exchange.part()
        headers = {name: value for name, value in headers.items() if name != "Content-Length"}
        exchange.head(200, headers if self.bare else {**headers, "Transfer-Encoding": "chunked"})
        data = exchange.resource.data
        if self.bare:
            exchange.send(data)
        else:
            for start in range(0, len(data), self.piece):
                piece = data[start : start + self.piece]
                exchange.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if self.complete:
                exchange.send(b"0\r\n\r\n")
        exchange.close()


@dataclass
class Endless:
    """The headers of the right answer, and a body in chunks that goes on long after it should have ended."""

    num_bytes: int = 64 << 20
    headers: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        exchange.head(status, {**headers, **self.headers, "Transfer-Encoding": "chunked"})
        piece = (body * (1 + (1 << 16) // len(body)))[: 1 << 16]
        while exchange.request.num_bytes < self.num_bytes:
            exchange.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        exchange.close()


@dataclass
class Pages:
    """A JSON list in pages, each of which names the next in its Link header."""

    url: str
    entries: list[Any]
    page: int

    def __call__(self, exchange: Exchange) -> None:
        match = re.search(r"cursor=(\d+)", exchange.request.query)
        start = int(match[1]) if match else 0
        headers, stop = {"Content-Type": "application/json"}, start + self.page
        if stop < len(self.entries):
            headers["Link"] = f'<{self.url}?recursive=true&cursor={stop}>; rel="next"'
        Status(200, headers, json.dumps(self.entries[start:stop]).encode())(exchange)


class LoopbackServer(socketserver.ThreadingTCPServer):
    """On a free port of this machine, one thread for every connection, until it is closed."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, handler: "type[LoopbackHandler]") -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.port = int(self.server_address[1])
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are none of the server's business."""

    def close(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopbackHandler(BaseHTTPRequestHandler):
    """Keeps connections, and says nothing of clients that go away."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


class FlakyServer(LoopbackServer):
    """Serves what was `put`."""

    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self.requests: list[Request] = []
        super().__init__(_Handler)

    def put(
        self, path: str, data: bytes, *script: Behaviour, etag: bool = True, headers: Mapping[str, str] | None = None
    ) -> None:
        """Put bytes under a path, with a script."""
        self.resources[path] = Resource(data, list(script), dict(headers or {}), make_etag(data) if etag else None)

    def put_folder(self, folder: Path, under: str = "") -> None:
        """Put all files of a folder, such as a store."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(f"{under}/{file.relative_to(folder)}", file.read_bytes())

    def put_repository(
        self,
        repository: str,
        files: Mapping[str, bytes],
        *,
        revision: str = "main",
        page: int = 1000,
        oid: Callable[[bytes], str] = lambda data: hashlib.sha256(data).hexdigest(),
    ) -> None:
        """A dataset repository as the Hugging Face hub has it: a list in pages, and files behind signed redirects."""
        entries: list[dict[str, Any]] = [{"type": "directory", "path": "data", "size": 0, "oid": "0" * 40}]
        for path, data in files.items():
            entry = {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
            if path.endswith(".parquet"):
                entry["lfs"] = {"oid": oid(data), "size": len(data), "pointerSize": 132}
            entries.append(entry)
            stored = f"/cdn/{repository}/{path}"
            headers = {"X-Linked-Etag": f'"{oid(data)}"', "X-Linked-Size": str(len(data))}
            self.put(stored, data)
            target = self.url(f"{stored}?X-Signature=signed-by-the-hub")
            self.put(
                f"/datasets/{repository}/resolve/{revision}/{path}",
                b"",
                Status(302, {"Location": target, **headers}),
                ...,
            )
        where = f"/api/datasets/{repository}/tree/{revision}"
        self.put(where, b"", Pages(self.url(where), entries, page), ...)

    def url(self, path: str, *, login: str = "") -> str:
        return f"http://{login + '@' if login else ''}127.0.0.1:{self.port}{path}"

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def bytes_sent(self, path: str) -> int:
        return sum(request.num_bytes for request in self.asked(path))

    def behaviour(self, resource: Resource) -> Behaviour:
        with self.lock:
            if not resource.script:
                return behave
            if len(resource.script) == 2 and resource.script[1] is ...:
                return resource.script[0]
            return resource.script.pop(0)


class _Handler(LoopbackHandler):
    server: FlakyServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        request = Request(self.command, path, query, {name.title(): value for name, value in self.headers.items()})
        resource = self.server.resources.get(path) or Resource(b"", [Status(404, body=b"no such file")], {}, None)
        with self.server.lock:
            self.server.requests.append(request)
        behaviour = self.server.behaviour(resource)
        with contextlib.suppress(OSError):  # the client went away
            behaviour(Exchange(request, resource, self.server, self))
            return
        self.close_connection = True

    do_HEAD = do_GET  # noqa: N815
