"""A server that lies: every answer about a store is hostile in some way. The data is right, or it is an error."""

import gc
import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from fuzz.harness import Case
from fuzz.store_targets import check
from plain import make_documents

Attempt = Callable[[Case], None]
LENGTH = 64


class Asked:
    """One request: its path, its range if it has one, and the file that is meant."""

    def __init__(self, head: bytes, root: Path) -> None:
        first, *lines = head.decode("latin1").split("\r\n")
        self.method, self.path = first.split()[:2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        file = root / self.path.partition("?")[0].strip("/")
        self.data = file.read_bytes() if file.is_file() else None
        self.range: tuple[int, int] | None = None
        if headers.get("range", "").startswith("bytes=") and self.data is not None:
            start, _, stop = headers["range"][6:].partition("-")
            size = len(self.data)
            self.range = (int(start), min(size, int(stop) + 1) if stop else size) if start else (size - int(stop), size)

    def body(self) -> bytes:
        assert self.data is not None
        return self.data if self.range is None else self.data[slice(*self.range)]

    def head(self, **headers: Any) -> bytes:
        """Status and headers of the right answer, with some replaced; those that are None are left out."""
        assert self.data is not None
        told: dict[str, Any] = {"Content-Length": len(self.body()), "ETag": '"one"', "Accept-Ranges": "bytes"}
        status = "200 OK"
        if self.range is not None:
            status, told["Content-Range"] = (
                "206 Partial Content",
                f"bytes {self.range[0]}-{self.range[1] - 1}/{len(self.data)}",
            )
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        status = told.pop("status", status)
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in told.items() if value is not None)]
        return "\r\n".join([*lines, "", ""]).encode("latin1")


Answer = Callable[[Asked, random.Random], bytes]


def _headers(**headers: Any) -> Answer:
    return lambda asked, rng: asked.head(**headers) + asked.body()


def _raw(data: bytes) -> Answer:
    return lambda asked, rng: data


def _moved(place: str) -> Answer:
    return _raw(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())


def _shifted(by: int) -> Answer:
    """The bytes of another range, said to be those of the right one."""

    def answer(asked: Asked, rng: random.Random) -> bytes:
        if asked.range is None or asked.data is None:
            return asked.head() + asked.body()
        start = max(0, asked.range[0] + by)
        body = asked.data[start : start + len(asked.body())]
        said = f"bytes {start}-{start + len(body) - 1}/{len(asked.data)}"
        return asked.head(Content_Range=said, Content_Length=len(body)) + body

    return answer


ANSWERS: dict[str, Answer] = {
    "right": _headers(),
    "a length that is too small": lambda asked, rng: asked.head(Content_Length=len(asked.body()) // 2) + asked.body(),
    "a length that is too large": lambda asked, rng: asked.head(Content_Length=len(asked.body()) + 7) + asked.body(),
    "half of it": lambda asked, rng: asked.head() + asked.body()[: len(asked.body()) // 2],
    "twice of it": lambda asked, rng: asked.head() + asked.body() * 2,
    "nothing of it": lambda asked, rng: asked.head(),
    "a length of -1": _headers(Content_Length=-1),
    "a length of 2**63": _headers(Content_Length=2**63),
    "a length of letters": _headers(Content_Length="many"),
    "two lengths": _headers(Content_Length="10\r\nContent-Length: 20"),
    "no length": _headers(Content_Length=None),
    "no length, and 16 MiB": lambda asked, rng: asked.head(Content_Length=None) + asked.body() + bytes(1 << 24),
    "all of it for a range": lambda asked, rng: (
        asked.head(status="200 OK", Content_Range=None, Content_Length=len(asked.data or b"")) + (asked.data or b"")
    ),
    "the range before": _shifted(-512),
    "the range after": _shifted(512),
    "a range of another size": _headers(Content_Range="bytes 0-0/1"),
    "a range of letters": _headers(Content_Range="bytes x-y/z"),
    "a range of vast numbers": _headers(Content_Range=f"bytes {2**63}-{2**64}/{2**65}"),
    "no range": _headers(Content_Range=None),
    "said to be compressed": _headers(Content_Encoding="gzip"),
    "said to be chunked": _headers(Transfer_Encoding="chunked", Content_Length=None),
    "another version each time": lambda asked, rng: asked.head(ETag=f'"{rng.random()}"') + asked.body(),
    "no version": _headers(ETag=None),
    "a version of 10,000 letters": _headers(ETag='"' + "x" * 10_000 + '"'),
    "a version that is no text": _headers(ETag='"\xff\x1b[2J"'),
    "a redirection to itself": lambda asked, rng: _moved(asked.path)(asked, rng),
    "a redirection to a file": _moved("file:///etc/passwd"),
    "a redirection to nowhere": _raw(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    ),
    "a redirection without a place": _raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"),
    **{
        f"status {status}": _raw(f"HTTP/1.1 {status} x\r\nContent-Length: 5\r\n\r\n\x1b[2Jx".encode())
        for status in (100, 204, 206, 304, 400, 401, 403, 404, 410, 416, 418, 500, 503, 599, 999)
    },
    "no HTTP": _raw(b"\x00\x01\x02" * 100),
    "an empty answer": _raw(b""),
    "a head without end": _raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000),
    "a header without end": _raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000),
}


class Liar:
    """Answers requests on loopback, a connection each, with whatever `choose(asked)` says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.choose: Callable[[Asked], bytes] = lambda asked: b""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(10)
                head = b""
                while b"\r\n\r\n" not in head and (data := connection.recv(1 << 16)):
                    head += data
                if head:
                    asked = Asked(head.partition(b"\r\n\r\n")[0], self.root)
                    answer = self.choose(asked)
                    is_head = asked.method == "HEAD"
                    connection.sendall(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if is_head else answer)
            except OSError:
                return


def answers(folder: Path) -> Attempt:
    """A liar about some requests, honest about others; the data is right or refused."""
    os.environ["TOKENFEED_TIMEOUT"] = "1"
    plain = make_documents([(7 * number * number) % 301 for number in range(60)])
    plain.write(folder / "store", shard_bytes=12_000, name="part")
    server = Liar(folder)
    url = f"http://127.0.0.1:{server.port}/store"
    named = list(ANSWERS)

    def attempt(case: Case) -> None:
        name = named[case.number % len(named)]
        lies_always, of_files = case.rng.random() < 0.5, case.rng.choice(("", ".json", ".npy", "tokens"))
        rng = random.Random(case.number)
        case.note("answer", (name, lies_always, of_files))

        def choose(asked: Asked) -> bytes:
            if asked.data is None:
                return b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"
            is_lie = of_files in asked.path and (lies_always or rng.random() < 0.5)
            return ANSWERS[name if is_lie else "right"](asked, rng)

        server.choose = choose
        gc.collect()  # stores of earlier cases, with their memory
        store = tokenfeed.open(url, remote=tokenfeed.Remote(memory_bytes=1 << 20))
        view = store.windows(LENGTH)
        numbers = np.array([case.rng.randrange(len(view)) for _ in range(8)])
        rows = view.read(numbers)
        for row, number in zip(rows.tokens, numbers.tolist(), strict=True):
            check(np.array_equal(row, plain.tokens[number * LENGTH : (number + 1) * LENGTH + 1]), "window", number)

    return attempt
