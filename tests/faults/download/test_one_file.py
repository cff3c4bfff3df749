"""One file from servers that break off, stall, lie and change."""

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
from tokenfeed.text.download.datasets import Dataset, RemoteFile


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ([Break(70_000)], ["bytes=70000-"]),
        ([Break(0), Break(70_000), Break(1)], [None, "bytes=70000-", "bytes=70001-"]),
        ([Status(500), Status(503), Status(408)], [None, None, None]),
        ([Status(409), Status(429)], [None, None]),
        ([Break(70_000), whole], ["bytes=70000-", None]),
        ([Break(70_000), Status(416)], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"Content-Range": f"bytes 60000-{SIZE - 1}/{SIZE}"})], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"Content-Range": f"bytes 70000-{SIZE}/{SIZE + 1}"})], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"Content-Range": "nonsense"})], ["bytes=70000-", None]),
        ([Break(70_000), Promise({"ETag": '"another"'})], ["bytes=70000-", None]),
        ([Stall(70_000)], ["bytes=70000-"]),
        ([Stall(-1)], [None]),
        ([Break(SIZE - 1), Become(make_file(9))], [f"bytes={SIZE - 1}-", None]),
        ([Break(70_000), Become(make_file(9)), Break(50_000)], ["bytes=70000-", None, "bytes=50000-"]),
        ([Break(70_000), Become(make_file(9, 50_000))], ["bytes=70000-", None]),
    ],
    ids=label,
)
def test_what_breaks_off_is_continued(server, tmp_path, script, asked):
    """The bytes are those that the server had last, and no more is asked for than need be."""
    data, address = put_shards(server, 2, *script)
    done = get(address, tmp_path, timeout=8.0 if not any(isinstance(each, Stall) for each in script) else 2.0)
    assert done.ok, done.failed
    assert contents(tmp_path)["shard_0.parquet"] == server.resources["/shard_0.parquet"].data
    assert contents(tmp_path).keys() == data.keys()
    assert ranges(server, "/shard_0.parquet") == [None, *asked]


@pytest.mark.parametrize(
    ("script", "options", "asked"),
    [
        ([Break(150_000, reset=True), Break(1000, reset=True)], {}, None),
        ([Break(70_000), Break(80_000)], {"etag": False}, [None, None, None]),
        ([Break(70_000)], {"etag": False, "headers": {"ETag": 'W/"1"'}}, [None, None]),
    ],
    ids=["reset", "no ETag", "weak ETag"],
)
def test_what_is_lost_on_the_way_and_what_begins_anew(server, tmp_path, script, options, asked):
    """A reset loses what was under way alone; without an ETag that tells versions apart, nothing can be continued."""
    data, address = put_shards(server, 2, *script, **options)
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data
    assert asked in (None, ranges(server, "/shard_0.parquet"))


def test_a_file_that_does_not_get_on_is_given_up(server, tmp_path):
    """Twelve interruptions are no reason while every attempt brings a MiB, and a thousand bytes each are too little."""
    size = 14 << 20
    data, address = put_shards(server, 2, *[Break(1 << 20)] * 12, size=size)
    assert get(address, tmp_path, timeout=3.0).ok
    assert contents(tmp_path) == data
    assert server.bytes_sent("/shard_0.parquet") == size

    server.put("/small_0.parquet", make_file(1), Break(1000), ...)
    server.put("/small_1.parquet", make_file(2))
    done = get(server.url("/small_{0..1}.parquet"), tmp_path / "small", timeout=1.0)
    message = done.failed["small_0.parquet"]
    assert re.search(r"the connection broke, tried \d+ times.*0.25 s without a byte and 1 s in all.*again", message)
    num_tries = len(server.asked("/small_0.parquet"))
    assert num_tries >= 3
    assert (tmp_path / "small" / "small_0.parquet.tmp").stat().st_size == 1000 * num_tries


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(server, tmp_path):
    """It gets far every time, but never further."""
    size = 3 << 20
    _, address = put_shards(server, 2, Break(2 << 20), ..., size=size, etag=False)
    done = get(address, tmp_path, timeout=1.0)
    assert list(done.failed) == ["shard_0.parquet"]
    assert set(contents(tmp_path)) == {"shard_1.parquet"}


def test_a_stall_and_a_trickle_are_given_up(server, tmp_path):
    """A byte now and then keeps every timeout away, and is still not enough."""
    _, address = put_shards(server, 2, Stall(1000), ...)
    server.resources["/shard_1.parquet"].script = [Slow(1, 0.05), ...]
    done = get(address, tmp_path, timeout=1.2)
    assert "the server stalled, tried" in done.failed["shard_0.parquet"]
    assert re.search(r"only \d+ bytes came in 0.\d s, tried", done.failed["shard_1.parquet"])


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Status(200, {"Content-Type": "text/html; charset=utf-8"}, b"<h1>Sign in</h1>"), "web page instead of a file"),
        (
            Status(200, {"Content-Type": "text/plain"}, b"Too many users"),
            "not a parquet file: it begins b'Too '",
        ),
        (Status(200, {}, b""), "not a parquet file"),
        (Status(200, {}, b"PAR1PAR1"), "not a whole parquet file: it has 8 bytes"),
        (Status(200, {}, make_file(0)[:-1]), "not a whole parquet file: it has 199,999 bytes"),
        (Status(200, {"Content-Encoding": "gzip"}, make_file(0)), "sends it encoded"),
        (Status(403), "403.*HF_TOKEN"),
        (Status(301, {"Location": "/shard_0.parquet"}), "redirects without end"),
        (Status(302, {"Location": "http://[bad"}), "302"),
        (Status(206, {"Content-Range": "bytes 0-3/4"}, b"PAR1"), "not a whole parquet file"),
        (Status(204), "not a parquet file"),
        (Status(501), "501"),
        (Chunked(), "does not say how long it is"),
        (Chunked(bare=True), "does not say how long it is"),
    ],
    ids=label,
)
def test_what_is_no_file(server, tmp_path, behaviour, message):
    data, address = put_shards(server, 2, behaviour, ...)
    done = get(address, tmp_path)
    assert list(done.failed) == ["shard_0.parquet"]

    assert re.search(message, done.failed["shard_0.parquet"], re.DOTALL), done.failed
    assert contents(tmp_path) == {"shard_1.parquet": data["shard_1.parquet"]}


def test_a_checksum(server, tmp_path):
    """A flipped bit is noticed and the file fetched again, once."""
    content = make_file(0)
    digest = hashlib.sha256(content).hexdigest()
    for name, script in (("once.parquet", [Flip(1000)]), ("always.parquet", [Flip(1000), ...])):
        server.put(f"/{name}", content, *script)
    server.put("/val.parquet", content)
    files = [RemoteFile(name, server.url(f"/{name}"), sha256=digest) for name in ("once.parquet", "always.parquet")]
    dataset = Dataset("checked", tuple(files), (RemoteFile("val.parquet", server.url("/val.parquet"), sha256=digest),))
    failed = get(dataset, tmp_path).failed
    assert len(server.asked("/once.parquet")) == len(server.asked("/always.parquet")) == 2
    assert f"expected {digest}, twice" in failed["always.parquet"]
    assert contents(tmp_path) == {"once.parquet": content, "val.parquet": content}


def test_more_than_the_disk_can_hold(server, tmp_path):
    """Of a body without end nothing is kept."""
    data, address = put_shards(server, 2, Promise({"Content-Length": str(10**17)}), ...)
    done = get(address, tmp_path)
    assert "announces 100,000,000,000,000,000 bytes, and" in done.failed["shard_0.parquet"]
    assert contents(tmp_path) == {"shard_1.parquet": data["shard_1.parquet"]}


def test_longer_than_promised(server, tmp_path):
    """What follows the promised bytes is not part of the file, and does not disturb the next one."""
    data, address = put_shards(server, 4, Promise({}, extra=b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"))
    assert get(address, tmp_path, workers=1).ok
    assert contents(tmp_path) == data


@settings(max_examples=examples(10))
@given(cuts=st.lists(st.integers(0, 5000), max_size=8), size=st.integers(12, 30_000), seed=st.integers(0, 99))
def test_any_interruptions(cuts, size, seed):
    """However the server breaks the connection: the bytes are right, and not one is sent twice."""
    with FlakyServer() as server, tempfile.TemporaryDirectory() as folder:
        server.put("/f0.parquet", make_file(seed, size), *[Break(cut) for cut in cuts])
        server.put("/f1.parquet", make_file(seed, 12))
        done = get(server.url("/f{0..1}.parquet"), folder, timeout=60.0)
        assert done.ok, done.failed
        assert contents(Path(folder))["f0.parquet"] == make_file(seed, size)
        deadline = time.monotonic() + 60  # the server counts when it has sent, and may come to it later than we
        while server.bytes_sent("/f0.parquet") < size and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.bytes_sent("/f0.parquet") == size
