"""Requests to the page: every part of them hostile, over sockets of their own, to servers of every kind of subject.

The answer must be a whole one of HTTP with the headers that protect; never 500, never data without the token, never a
path of this machine; and the server must go on answering.
"""

import contextlib
import email
import io
import json
import random
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np

import tokenfeed
from fuzz.harness import Case
from fuzz.mutator import INTEGERS, NAMES, mutate_bytes
from fuzz.store_targets import check
from fuzz.text_targets import byte_tokenizer
from tokenfeed import observe
from tokenfeed.ui import Server, open_subject
from tokenfeed.ui.server import HEADER

Attempt = Callable[[Case], None]

QUESTIONS = ["subject", "store", "documents", "packing", "sample", "run", "ledger", "trace", "find", "live", "enter"]
NUMBERS = [
    *("first", "count", "index", "length", "offset", "step", "sample", "start"),
    *("samples", "document", "epochs", "after", "rank"),
]
WORDS = ["table", "view", "source", "name", "kind"]
KNOWN = [
    "documents",
    "windows",
    "packed",
    "web",
    "code",
    "a",
    "x" * 3000,
]
HARMLESS = ["0", "1", "2", "7", "64", "100", "4095"]
HOSTILE = [*map(str, INTEGERS), *NAMES, "nan", "1e9", "٣", "0x10", "1_0", "+1", " 1", "%"]
METHODS = ["GET"] * 12 + [
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "CONNECT",
    "get",
    "PROPFIND",
    "\0",
    "G" * 9000,
]
PATHS = [
    *("/", "/index.html", "/app.js", "/style.css", "/../server.py", "/..%2f..%2fetc/passwd", "//etc/passwd", "*", ""),
    *(
        "/%00",
        "/api",
        "/api/",
        "/api//store",
        "/api/store/",
        "/API/store",
        "/api/../app.js",
        "/\\..\\..",
        "http://127.0.0.1/",
    ),
    *("/" + "a" * 70_000, "/?" * 2000, "/é", "/%ff%fe", "/.git/config", "/app.js%00.html", "/api/__class__", "/;/x"),
]
HOSTS = [
    *(
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1]",
        "localhost.",
        "127.0.0.1@evil.example",
        "127.1",
        "0",
        "\0",
    ),
    *("127.0.0.1:99999999", "localhost:x", "a" * 20_000, "127.0.0.1 evil", "127.0.0.1,evil.example"),
]
HEADERS = [
    *("Cookie: " + "a=b; " * 3000, 'Cookie: "' + "\\" * 15_000, "Content-Length: 10", "Content-Length: -1", "X: \0"),
    *("Content-Length: 99999999999999999999", "Transfer-Encoding: chunked", "Range: bytes=0-0", "Range: bytes=9-1,-"),
    *("Expect: 100-continue", "Upgrade: websocket", "Connection: Upgrade", "Connection: close", "Origin: null"),
    *("Origin: http://evil.example", "Referer: http://evil.example/x", "X-Forwarded-Host: evil", "no colon here"),
    *(": no name", " folded: header", "X" * 66_000 + ": y", "Accept-Encoding: gzip, br;q=9e999", "If-None-Match: *"),
    *(f"{HEADER}: second", f"{HEADER.lower()}: ", "Sec-Fetch-Site: cross-site", "Authorization: Basic ====", "é: ü"),
]
STATUSES = {200, 400, 403, 404, 405, 408, 411, 413, 414, 431, 501, 505}


def make_subjects(folder: Path) -> dict[str, Server]:
    """A store, a run, a run of a mixture, and statistics; all of it in folders whose names nobody may be told."""
    rng = np.random.default_rng(0)
    stores = {}
    for name in ("web", "code"):
        with tokenfeed.Writer(
            folder / name, columns={"tokens": "uint16", "weight": "float32"}, spans={"documents": "msgpack"}, sync=False
        ) as writer:
            for number in range(60):
                size = int(rng.integers(0, 300))
                payload = {"half": "\\ud800", "number": number, "nan": float("nan"), "note": "<script>" * (number % 3)}
                columns = {"tokens": rng.integers(0, 300, size), "weight": np.full(size, np.nan)}
                writer.append(columns, documents=payload)
        stores[name] = tokenfeed.open(folder / name)
        stores[name].pack(64)
    views = {name: store.windows(16) for name, store in stores.items()}
    mixture = tokenfeed.mix({"web": (views["web"], 0.7), "code": (views["code"], 0.3)})
    for name, source in (("run", views["web"]), ("mixture", mixture)):
        options = {"prefetch": 0, "rank": 0, "world_size": 2, "run": folder / f"{name}.jsonl"}
        with (
            tokenfeed.Loader(source, 4, **options) as loader,
            observe.publish(loader, folder / f"{name}.stats.jsonl"),
        ):
            [next(loader) for _ in range(9)]
    tokenizer = folder / "tokenizer"
    byte_tokenizer().save(tokenizer)
    subjects = {"web": tokenizer, "run.jsonl": None, "mixture.jsonl": None, "run.stats.jsonl": None}
    servers = {}
    for name, given in subjects.items():
        servers[name] = Server(open_subject(str(folder / name), tokenizer=None if given is None else str(given)))
        threading.Thread(target=servers[name].run, daemon=True).start()
    return servers


def page(folder: Path) -> Attempt:
    root = folder / "not-to-be-told"
    root.mkdir()
    servers = make_subjects(root)

    def attempt(case: Case) -> None:
        server = servers[case.rng.choice(list(servers))]
        request, may_enter = draw_request(case.rng, server)
        case.note("request", request)
        with io.StringIO() as told, contextlib.redirect_stderr(told):
            answer, was_reset = send(server, request)
            check("Traceback" not in told.getvalue(), told.getvalue()[-2000:])
            shown = told.getvalue()
        check(answer or was_reset or not is_whole(request), "no answer", request[:200])
        while answer and not was_reset:
            answer = check_answer(answer, request, may_enter, root, shown)
        if case.number % 50 == 0:
            check(send(server, plain_request(server))[0].startswith(b"HTTP/1.1 200 "), "it answers no more")

    return attempt


def draw_request(rng: random.Random, server: Server) -> tuple[bytes, bool]:
    """(bytes of one request, whether its token is right). Where one part is hostile, the others are mostly right."""
    hostile = rng.choice((*["query"] * 5, "path", "method", "host", "token", "headers", "bytes", "all"))

    def wrong(part: str) -> bool:
        return hostile in (part, "all") and (hostile == part or rng.random() < 0.5)

    question = rng.choice(QUESTIONS)
    query = "&".join(f"{name}={value}" for name, value in draw_query(rng, wrong("query")))
    path = rng.choice(PATHS) if wrong("path") else f"/api/{question}" + (f"?{query}" if query else "")
    method = rng.choice(METHODS) if wrong("method") else "GET"
    host = rng.choice(HOSTS) if wrong("host") else f"127.0.0.1:{server.port}"
    token = draw_token(rng, server.token) if wrong("token") else server.token
    lines = [f"{method} {path} {rng.choice(('HTTP/1.1',) * 9 + ('HTTP/1.0', 'HTTP/2.0', 'HTTP/9', 'x', ''))}"]
    lines += [f"Host: {host}", f"{HEADER}: {token}", "Connection: close"]
    if wrong("headers"):
        lines += [rng.choice(HEADERS) for _ in range(rng.choice((1, 2, 5, 120)))]
        rng.shuffle(lines[1:])
    data = "\r\n".join(lines).encode("utf8", "surrogatepass") + b"\r\n\r\n"
    if wrong("headers") and rng.random() < 0.5:
        data += rng.randbytes(rng.choice((1, 10, 1000)))
    if wrong("bytes"):
        data = mutate_bytes(rng, data)
    return data, server.token.encode() in data


def draw_query(rng: random.Random, hostile: bool) -> list[tuple[str, str]]:
    pairs = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 200) if hostile else (0, 1, 2))):
        name = rng.choice(NUMBERS + WORDS)
        if hostile and rng.random() < 0.6:
            value = rng.choice(HOSTILE)
        else:
            value = rng.choice(HARMLESS if name in NUMBERS else KNOWN)
        try:
            pairs.append((name, quote(value, errors="surrogatepass") if rng.random() < 0.9 else value[:2000]))
        except UnicodeError:
            pairs.append((name, "%ED%A0%80"))
    return [(name, value.replace("\n", "%0A").replace("\0", "%00").replace(" ", "+")) for name, value in pairs]


def draw_token(rng: random.Random, token: str) -> str:
    near = (token[:-1], f"{token}x", token.swapcase(), token[::-1])
    return rng.choice((*near, "", "x", "é" * 9, "a" * 9000, "\ud800", "\0"))


def plain_request(server: Server) -> bytes:
    lines = "GET /api/subject HTTP/1.1", "Host: localhost", f"{HEADER}: {server.token}", "Connection: close", "", ""
    return "\r\n".join(lines).encode()


def is_whole(request: bytes) -> bool:
    """Whether the server must answer: a line that asks for something in HTTP/1, and headers that end."""
    return b"\r\n\r\n" in request and re.match(rb"[A-Z]{1,20} \S{1,60000} HTTP/1\.[01]\r\n", request) is not None


def send(server: Server, request: bytes) -> tuple[bytes, bool]:
    """(all that the server answers, whether it reset the connection): it need not read all of what it refuses."""
    answer, was_reset = b"", False
    with socket.create_connection(("127.0.0.1", server.port), 50) as connection:
        connection.settimeout(50)
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            was_reset = True
        try:
            while data := connection.recv(1 << 16):
                answer += data
        except ConnectionError:
            was_reset = True
    return answer, was_reset


def check_answer(answer: bytes, request: bytes, may_enter: bool, root: Path, shown: str) -> bytes:
    """Check the first answer; what follows it is returned."""
    if not answer.startswith(b"HTTP/"):  # that a line which cannot be understood is none, is said without headers
        check(answer.lstrip().startswith(b"<!DOCTYPE"), answer[:200])
        return b""
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, _, lines = head.partition(b"\r\n")
    status, headers = int(first.split()[1]), email.message_from_bytes(lines)
    if status == 100:
        return rest
    size = 0 if request.startswith(b"HEAD ") else int(headers["Content-Length"] or len(rest))
    body, rest = rest[:size], rest[size:]
    check(len(body) == size, "half an answer", size, len(body))
    check(status in STATUSES, status, body[:500], shown)
    policy = headers["Content-Security-Policy"] or ""
    check("default-src 'none'" in policy and "unsafe" not in policy, "no policy", status)
    check(headers["Set-Cookie"] is None, "a cookie")
    check(root.name.encode() not in body and str(root.parent).encode() not in body, "a path", body[:500])
    if headers.get_content_type() == "application/json":
        told = json.loads(body) if body else {}
        if status == 200:
            check(may_enter, "data without the token", body[:200])
            check(len(body) < 4 << 20, "a vast answer", len(body))
        else:
            check("message" in told or not body, told)
    return rest
