"""One file from servers that break off, stall, lie and change."""

import base64
import hashlib
import re
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downloads import (
    SIZE,
    contents,
    get,
    label,
    make_file,
    put_shards,
    ranges,
)
from flaky_server import Become, Break, Chunked, FlakyServer, Flip, Promise, Slow, Stall, Status, whole
from tiers import examples


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ([Break(70_000)], ["bytes=70000-"]),
        ([Break(0), Break(70_000), Break(1)], [None, "bytes=70000-", "bytes=70001-"]),
        ([Status(500), Status(503), Status(408)], [None, None, None]),
        ([Break(70_000), whole], ["bytes=70000-"]),
        ([Break(70_000), Status(416)], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"Content-Range": f"bytes 60000-{SIZE - 1}/{SIZE}"})], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"Content-Range": f"bytes 70000-{SIZE}/{SIZE + 1}"})], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"Content-Range": "nonsense"})], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"ETag": '"another"'})], ["bytes=70000-", None]),
        ([Stall(70_000)], ["bytes=70000-"]),
        ([Stall(-1)], [None]),
        ([Break(SIZE - 1), Become(make_file(9))], [f"bytes={SIZE - 1}-"]),
        ([Break(70_000), Become(make_file(9), Break(50_000))], ["bytes=70000-", "bytes=50000-"]),
        ([Break(70_000), Become(make_file(9, 50_000))], ["bytes=70000-"]),
        ([Chunked()], []),
        ([Chunked(complete=False)], [f"bytes={SIZE}-", None]),
        ([Chunked(bare=True)], []),
    ],
    ids=label,
)
def test_what_breaks_off_is_continued(server, tmp_path, script, asked):
    """The bytes are those that the server had last, and no more is asked for than need be."""
    data, address = put_shards(server, 2, *script)
    done = get(address, tmp_path, timeout=0.4)
    assert done.ok, done.failed
    assert contents(tmp_path)["shard_0.parquet"] == server.resources["/shard_0.parquet"].data
    assert contents(tmp_path).keys() == data.keys()
    assert ranges(server, "/shard_0.parquet") == [None, *asked]


def test_a_reset_in_mid_body(server, tmp_path):
    """What was under way is lost with the connection, what had been read is not asked for again."""
    data, address = put_shards(server, 2, Break(150_000, reset=True), Break(1000, reset=True))
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data


def test_without_etag_it_begins_anew(server, tmp_path):
    data, address = put_shards(server, 2, Break(70_000), Break(80_000), etag=False)
    assert get(address, tmp_path).ok
    assert ranges(server, "/shard_0.parquet") == [None, None, None]
    assert contents(tmp_path) == data


def test_a_weak_etag_is_none(server, tmp_path):
    data, address = put_shards(server, 2, Break(70_000), etag=False, headers={"ETag": 'W/"1"'})
    assert get(address, tmp_path).ok
    assert ranges(server, "/shard_0.parquet") == [None, None]
    assert contents(tmp_path) == data


def test_retries_are_counted_without_progress(server, tmp_path):
    """Twelve interruptions, two retries: enough while every attempt brings a MiB."""
    size = 14 << 20
    data, address = put_shards(server, 2, *[Break(1 << 20)] * 12, size=size)
    assert get(address, tmp_path, retries=2).ok
    assert contents(tmp_path) == data
    assert server.bytes_sent("/shard_0.parquet") == size

    server.put("/small_0.parquet", make_file(1), Break(1000), ...)
    server.put("/small_1.parquet", make_file(2))
    done = get(server.url("/small_{0..1}.parquet"), tmp_path / "small", retries=2)
    assert "ended" in done.failed["small_0.parquet"] or "broken" in done.failed["small_0.parquet"]
    assert len(server.asked("/small_0.parquet")) == 3
    assert (tmp_path / "small" / "small_0.parquet.tmp").stat().st_size == 3000


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(server, tmp_path):
    """It gets far every time, but never further."""
    size = 3 << 20
    _, address = put_shards(server, 2, Break(2 << 20), ..., size=size, etag=False)
    done = get(address, tmp_path, retries=2)
    assert list(done.failed) == ["shard_0.parquet"]
    assert len(server.asked("/shard_0.parquet")) <= 4
    assert set(contents(tmp_path)) == {"shard_1.parquet"}


@pytest.mark.parametrize("after", ["1", "Wed, 21 Oct 2015 07:28:00 GMT", "nonsense"])
def test_retry_after(server, tmp_path, after):
    data, address = put_shards(server, 2, Status(429, {"Retry-After": after}))
    begin = time.monotonic()
    assert get(address, tmp_path).ok
    assert after != "1" or time.monotonic() - begin >= 1.0
    assert contents(tmp_path) == data


def test_retry_after_is_capped(server, tmp_path, monkeypatch):
    monkeypatch.setattr("tokenfeed.text.download.retries._LONGEST_WAIT", 0.3)
    _, address = put_shards(server, 2, Status(503, {"Retry-After": "86400"}))
    assert get(address, tmp_path).ok


def test_a_stall_ends_in_the_stated_time(server, tmp_path):
    _, address = put_shards(server, 2, Stall(1000), ...)
    done = get(address, tmp_path, timeout=0.3, retries=2)
    assert "nothing came for 0.3 s (attempt 3 of 3)" in done.failed["shard_0.parquet"]


def test_a_trickle_is_a_stall(server, tmp_path):
    """A byte now and then keeps every timeout away, and is still not enough."""
    _, address = put_shards(server, 2, Slow(1, 0.05), ...)
    done = get(address, tmp_path, timeout=0.3, retries=1)
    assert "bytes came in 0.3 s (attempt 2 of 2)" in done.failed["shard_0.parquet"]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Status(200, {"Content-Type": "text/html; charset=utf-8"}, b"<h1>Sign in</h1>"), "web page .*<h1>Sign in</h1>"),
        (
            Status(200, {"Content-Type": "text/plain"}, b"Too many users"),
            "not a parquet file: it begins 'Too many users'",
        ),
        (Status(200, {}, b""), "not a parquet file"),
        (Status(200, {}, b"PAR1PAR1"), "not a whole parquet file: it has 8 bytes"),
        (Status(200, {}, make_file(0)[:-1]), "not a whole parquet file: it has 199,999 bytes"),
        (Status(200, {"Content-Encoding": "gzip"}, make_file(0)), "encoded as 'gzip'"),
        (Status(403), "403 Forbidden.*HF_TOKEN"),
        (Status(301, {"Location": "/shard_0.parquet"}), "redirected more than 10 times"),
        (Status(302, {"Location": "http://[bad"}), "redirected to what is no address"),
        (Status(206, {"Content-Range": "bytes 0-3/4"}, b"PAR1"), "another part than the one asked for"),
        (Status(204), "204"),
        (Status(501), "501"),
    ],
    ids=label,
)
def test_what_is_no_file(server, tmp_path, behaviour, message):
    data, address = put_shards(server, 2, behaviour, ...)
    done = get(address, tmp_path, retries=1)
    assert list(done.failed) == ["shard_0.parquet"]

    assert re.search(message, done.failed["shard_0.parquet"], re.DOTALL), done.failed
    assert contents(tmp_path) == {"shard_1.parquet": data["shard_1.parquet"]}


@pytest.mark.parametrize("name", ["Content-MD5", "x-amz-checksum-sha256", "Repr-Digest", "Digest", "X-Linked-Etag"])
def test_checksums(server, tmp_path, name):
    """A flipped bit is noticed and the file fetched again, once."""
    content = make_file(0)
    sha256, md5 = hashlib.sha256(content), base64.b64encode(hashlib.md5(content).digest()).decode()
    encoded = base64.b64encode(sha256.digest()).decode()
    value = {
        "Content-MD5": md5,
        "x-amz-checksum-sha256": encoded,
        "Repr-Digest": f"sha-256=:{encoded}:",
        "Digest": f"SHA-256={encoded},MD5={md5}",
        "X-Linked-Etag": f'"{sha256.hexdigest()}"',
    }[name]
    for number, script in enumerate([[Flip(1000)], [Flip(1000), ...]]):
        server.put(f"/{number}_0.parquet", content, *script, headers={name: value})
        server.put(f"/{number}_1.parquet", content)
    assert get(server.url("/0_{0..1}.parquet"), tmp_path / "once").ok
    assert contents(tmp_path / "once")["0_0.parquet"] == content
    failed = get(server.url("/1_{0..1}.parquet"), tmp_path / "always").failed
    assert len(server.asked("/1_0.parquet")) == 2
    assert "expected" in failed["1_0.parquet"]
    assert set(contents(tmp_path / "always")) == {"1_1.parquet"}


def test_longer_than_promised(server, tmp_path):
    """What follows the promised bytes is not part of the file, and does not disturb the next one."""
    data, address = put_shards(server, 4, Promise({}, extra=b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"))
    assert get(address, tmp_path, workers=1).ok
    assert contents(tmp_path) == data


def test_a_file_of_unknown_kind_and_size_is_refused(server, tmp_path):
    server.put("/a0.txt", b"text", Chunked(bare=True), etag=False)
    server.put("/a1.txt", b"text", Chunked(), etag=False)
    done = get(server.url("/a{0..1}.txt"), tmp_path)
    assert "neither size nor checksum" in done.failed["a0.txt"]
    assert contents(tmp_path) == {"a1.txt": b"text"}


@settings(max_examples=examples(30))
@given(cuts=st.lists(st.integers(0, 5000), max_size=8), size=st.integers(12, 30_000), seed=st.integers(0, 99))
def test_any_interruptions(cuts, size, seed):
    """However the server breaks the connection: the bytes are right, and not one is sent twice."""
    with FlakyServer() as server, tempfile.TemporaryDirectory() as folder:
        server.put("/f0.parquet", make_file(seed, size), *[Break(cut) for cut in cuts])
        server.put("/f1.parquet", make_file(seed, 12))
        done = get(server.url("/f{0..1}.parquet"), folder, retries=len(cuts))
        assert done.ok, done.failed
        assert contents(Path(folder))["f0.parquet"] == make_file(seed, size)
        deadline = time.monotonic() + 60  # the server counts when it has sent, and may come to it later than we
        while server.bytes_sent("/f0.parquet") < size and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.bytes_sent("/f0.parquet") == size
