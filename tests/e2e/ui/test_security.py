"""Who is let in, and what nobody is told, by real requests to real servers."""

import contextlib
import http.client
import json
import socket
import time
from importlib import resources
from urllib.parse import quote

import numpy as np
import pytest

import tokenfeed
from attacks.lies import make_vast
from tokenfeed.ui.messages import plain, to_bytes, without_paths
from tokenfeed.ui.server import HEADER, _Handler

ASSETS = ["/", "/app.js", "/dom.js", "/style.css", "/icon.svg"]
QUESTIONS = {
    "store": [
        "subject",
        "store",
        "sample",
        "sample?view=documents",
        "packing",
        "documents?first=20",
    ],
    "run": [
        "subject",
        "run",
        "trace?step=31",
        "trace?sample=31",
        "find?document=3",
        "find?index=3",
        "sample",
        "documents",
        "live",
    ],
    "mixture": [
        "subject",
        "run",
        "ledger",
        "trace",
        "find?document=3&source=code",
        "live",
        "documents?source=code",
    ],
    "stats": ["subject", "live", "live?after=1"],
}
WRONG = [
    "sample?view=packed&length=77",  # no plan: the message says where it was looked for
    "sample?index=99999999",
    "sample?view=../../etc",
    "documents?first=-1",
    "find?document=99999999",
    "find?index=99999999",
    "trace?step=1&rank=/etc/passwd",
    "trace?sample=99999999999",
    "trace?step=1&start=2",
    "documents?table=/etc/passwd",
    "ledger?samples=-1",
    "packing?length=-1",
    "store?source=/etc/passwd",
    "documents?source=/etc",
    "live?after=x",
]


def test_nothing_without_the_token(clients):
    client = clients["store"]
    for target in [
        "/api/subject",
        "/api/sample",
        "/api/enter",
        "/api/nowhere",
        "/api/",
        f"/api/store?token={client.token}",
    ]:
        for token in (None, "1", client.token[:-1], f"{client.token}x", "é"):
            status, headers, body = client.get(target, token=token)
            assert status == 403, target
            assert "Set-Cookie" not in headers
            assert "token" in json.loads(body)["message"]
    assert client.get("/api/subject")[0] == 200


def test_the_page_itself_holds_nothing_and_needs_no_token(clients):
    for target in ASSETS:
        status, headers, body = clients["store"].get(target, token=None)
        assert status == 200
        assert "Set-Cookie" not in headers
        assert clients["store"].token.encode() not in body


def test_no_cookie_opens_it(clients):
    """Browsers send cookies to every port of a host: another server on this machine would get them."""
    client = clients["store"]
    for name in ("tokenfeed", client.header):
        assert client.get("/api/subject", token=None, Cookie=f"{name}={client.token}")[0] == 403


def test_a_long_header_takes_no_time(clients):
    """Nothing parses it, and what is too long is refused before it is looked at."""
    client = clients["store"]
    assert client.get("/api/subject", Cookie="a=b; " * 2000)[0] == 200
    assert client.get("/api/subject", Cookie='"\\' * 30_000)[0] in (400, 431)


def test_the_token_of_one_server_does_not_open_another(clients):
    assert clients["run"].get("/api/run", token=clients["store"].token)[0] == 403


def test_a_ticket_is_good_once(store_server, clients):
    """It gives the token, and opens nothing else."""
    ticket = store_server.address_once().partition("token=")[2]
    assert ticket not in store_server.address
    assert clients["store"].get("/api/subject", token=ticket)[0] == 403
    status, _, body = clients["store"].get("/api/enter", token=ticket)
    assert (status, json.loads(body)) == (200, {"token": store_server.token})
    assert clients["store"].get("/api/enter", token=ticket)[0] == 403
    assert clients["store"].get("/api/enter")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]", "0.0.0.0", "localhost.evil"]
)
def test_other_hosts_are_refused(clients, host):
    """A name that an attacker's DNS has pointed here is not ours, whatever token comes along."""
    for target in ("/api/subject", "/api/enter", "/"):
        assert clients["store"].get(target, Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "LOCALHOST:80"])
def test_a_forwarded_port_may_be_another(clients, host):
    assert clients["store"].get("/api/subject", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get(clients, method):
    for target in ("/", "/api/subject"):
        status, headers, _ = clients["store"].get(target, method=method)
        assert status == 405
        assert headers["Allow"] == "GET"


def test_no_websocket(clients):
    client = clients["store"]
    upgrade = {"Upgrade": "websocket", "Sec-WebSocket-Key": "x" * 16, "Sec-WebSocket-Version": "13"}
    assert client.get("/api/subject", Connection="Upgrade", **upgrade)[0] != 101


def test_no_file_but_those_of_the_page(clients):
    for name in (
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/%2e%2e/pyproject.toml",
        "//etc/passwd",
        "/page/app.js",
        "/api/",
        "/api/__init__",
    ):
        assert clients["store"].get(name)[0] == 404


def test_headers_that_protect(clients):
    for target in [*ASSETS, "/api/subject", "/nowhere"]:
        _, headers, _ = clients["store"].get(target)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


def test_only_loopback_is_listened_on(store_server):
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1", "127.0.1.1"}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, store_server.port), 2)
    assert store_server.address.startswith("http://127.0.0.1:")


def test_no_path_and_no_secret_in_any_answer(clients, made):
    """Everything that was ever told, errors included: neither where things lie nor what opens them."""
    for name, client in clients.items():
        for question in [*QUESTIONS[name], *WRONG]:
            status, _, body = client.get(f"/api/{question}")
            assert status in (200, 400), (name, question, body)
            if question in QUESTIONS[name]:
                assert status == 200, (name, question, body)
            json.loads(body)
        for asset in ASSETS:
            assert client.get(asset)[0] == 200
        told = b"\n".join(client.told)
        for secret in (
            str(made.root),
            made.root.name,
            str(made.root.parent),
            "password",
            "signature=",
            "/tokenfeed/",
        ):
            assert secret.encode() not in told, (name, secret)
            assert quote(secret).encode() not in told, (name, secret)


def test_assets_ask_nobody_else(clients):
    client = clients["store"]
    names = {path.name for path in resources.files("tokenfeed.ui").joinpath("page").iterdir()}
    assert {"index.html", "app.js", "style.css", "icon.svg"} <= names
    for name in names:
        status, _, body = client.get("/" if name == "index.html" else f"/{name}")
        assert status == 200
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text
        assert "eval(" not in text


def test_nonsense_is_survived(clients, store_server):
    for junk in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", store_server.port), 5) as raw:
            raw.settimeout(5)
            raw.sendall(junk)
            assert b" 200 " not in raw.recv(200)
    connection = http.client.HTTPConnection("127.0.0.1", store_server.port, timeout=5)
    connection.putrequest("GET", "/api/subject", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()
    assert clients["store"].get("/api/subject")[0] == 200


def test_a_request_that_never_ends_is_cut_off(store_server, clients, monkeypatch):
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    waiting = [socket.create_connection(("127.0.0.1", store_server.port), 30) for _ in range(20)]
    for each in waiting:
        each.sendall(b"GET /api/subject HTTP/1.1\r\nHost: local")
    assert clients["store"].get("/api/subject")[0] == 200
    for each in waiting:
        assert each.recv(100) == b""
        each.close()


def test_a_request_that_comes_drop_by_drop_is_cut_off(store_server, monkeypatch):
    """Every byte comes in time, and the request does not."""
    monkeypatch.setattr(_Handler, "timeout", 0.4)
    address = "127.0.0.1", store_server.port
    with socket.create_connection(address, 30) as slow, pytest.raises(OSError, match=r"pipe|reset"):
        for byte in b"GET /api/subject HTTP/1.1\r\nX: " + b"x" * 1000:
            slow.sendall(bytes((byte,)))
            time.sleep(0.05)


def test_a_request_of_the_first_http_gets_no_answer(store_server):
    """Its answer would have no headers, and so none that protect."""
    with socket.create_connection(("127.0.0.1", store_server.port), 30) as raw:
        raw.sendall(f"GET /api/subject\r\nHost: localhost\r\n{HEADER}: {store_server.token}\r\n\r\n".encode())
        assert raw.recv(100) == b""


def test_connections_are_bounded(store_server, clients):
    waiting = [socket.create_connection(("127.0.0.1", store_server.port), 30) for _ in range(200)]
    refused = 0
    for each in waiting:
        each.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            refused += each.recv(100) == b""
    for each in waiting:
        each.close()
    assert refused > 100
    deadline = time.monotonic() + 30
    status = 0
    while status != 200 and time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = clients["store"].get("/api/subject")[0]
    assert status == 200


VAST = [
    *("subject", "store", "documents", "sample", "sample?view=documents&index=3", "sample?length=16777215"),
    *("sample?view=documents&index=3&offset=1999999000", "find?document=0"),
    *("packing", "packing?length=16384", "packing?length=1048576&count=4"),
]


def test_work_is_bounded_however_large_the_data(start_client, tmp_path):
    """A document of 2·10⁹ tokens, of which the file is a hole, and a run of four million rows a step."""
    path = tmp_path / "store"
    with tokenfeed.Writer(path, columns={"tokens": "u1"}, spans={"documents": None}, name="part", sync=False) as writer:
        for _ in range(4):
            writer.append({"tokens": np.zeros(64, np.uint8)}, documents=None)
    make_vast(path, path / "part-00000", 2_000_000_000)
    options = {"rank": 0, "world_size": 1 << 20, "run": tmp_path / "run.jsonl", "prefetch": 0}
    with tokenfeed.Loader(tokenfeed.open(path).windows(16), 4, **options) as loader:
        next(loader)
    store, run = start_client(path), start_client(tmp_path / "run.jsonl")
    for question in VAST:
        status, _, body = (run if question.startswith("find") else store).get(f"/api/{question}")
        assert status == 200, body
        assert len(body) < 1 << 20
    assert 64 not in [one["length"] for one in store.ask("packing", length=64)["lengths"]]  # millions of rows
    assert "tokenfeed trace" in run.ask("trace", step=0, status=400)["message"]
    assert "tokenfeed find" in run.ask("find", document=3, status=400)["message"]


def test_text_that_is_no_text_and_numbers_that_are_none(start_client, tmp_path):
    with tokenfeed.Writer(
        tmp_path / "store",
        columns={"tokens": "uint16", "weight": "float32"},
        spans={"documents": "msgpack"},
        sync=False,
    ) as writer:
        payload = {"half": "a", "nan": float("nan"), "most": float("inf")}
        writer.append({"tokens": np.arange(9), "weight": np.full(9, np.nan)}, documents=payload)
    client = start_client(tmp_path / "store")
    told = client.ask("sample", view="documents")
    assert told["spans"]["documents"]["spans"][0]["payload"] == {"half": "a", "nan": "nan", "most": "inf"}
    assert client.get("/api/documents?table=%ED%B2%80")[0] == 400
    assert to_bytes({"a": [float("nan"), {"b": "\ud800"}]}) == b'{"a":["nan",{"b":"\\ud800"}]}'


def test_a_long_text_is_cleaned_in_no_time():
    """A pattern that begins anew at every letter would take hours for these."""
    for text in ("a" * 1_000_000, "?" * 1_000_000, "/" * 1_000_000, "a." * 500_000):
        assert len(plain(text, clean=True)) <= 2001
        without_paths(text)
