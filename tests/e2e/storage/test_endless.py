"""Servers that send without end: no more is read than was asked for, and the connection is dropped."""

import gzip

import pytest

import tokenfeed
from flaky_server import Endless, FlakyServer
from tokenfeed.errors import ReadError, TokenfeedError
from tokenfeed.storage import objects
from tokenfeed.storage.fetcher import Fetcher, Range
from tokenfeed.storage.retries import Patience

MOST = 16 << 20
"""Bytes that one request may cost: buffers of both sockets, of the client and of the server."""


@pytest.fixture
def server():
    with FlakyServer() as server:
        yield server


def check_capped(server, path):
    sent = [request.num_bytes for request in server.asked(path)]
    assert sent
    assert max(sent) < MOST


def test_a_whole_object(server):
    server.put("/a", b"x" * 1_000_000, Endless(), ...)
    for _ in range(2):
        with pytest.raises(ReadError, match="1,000,000"):
            objects.read(server.url("/a"))
    check_capped(server, "/a")


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])
def test_a_range(server, headers):
    server.put("/a", gzip.compress(bytes(10_000_000)), Endless(headers=headers), ...)
    with pytest.raises(ReadError, match=r"bytes \[0, 1,000\) were asked for"):
        Fetcher(patience=Patience.of(5.0)).submit(Range(server.url("/a"), 0, 1000)).result(30)
    check_capped(server, "/a")


def test_a_store(server, monkeypatch):
    server.put("/store/manifest.json", b"{" + b" " * 98 + b"}", Endless(), ...)
    with pytest.raises(TokenfeedError):
        tokenfeed.open(server.url("/store"))
    check_capped(server, "/store/manifest.json")
