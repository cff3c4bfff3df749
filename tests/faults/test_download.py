"""Downloads from servers that break off, stall, lie and change, by processes that are killed; all of them real."""

import base64
import errno
import fcntl
import hashlib
import json
import os
import pty
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flaky_server import Become, Break, Chunked, FlakyServer, Flip, Promise, Slow, Stall, Status, whole
from tokenfeed.errors import ArgumentError, DownloadError, WriteError
from tokenfeed.text.download.shards import download
from tokenfeed.text.sources.listing import read_listing

COMMAND = Path(sys.executable).parent / "tokenfeed"
SIZE = 200_000


def make_file(seed: int, size: int = SIZE) -> bytes:
    """Bytes that look like a parquet file from afar."""
    return b"PAR1" + random.Random(seed).randbytes(size - 8) + b"PAR1"


def label(value):
    """The name of a parameter, the same in every process."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", str(value))[:80]


@pytest.fixture
def server():
    with FlakyServer() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENFEED_CACHE", str(tmp_path / "cache"))


def put_shards(server, count, *script, size=SIZE, **options):
    """`/shard_0.parquet` … on the server, the script for the first; returns their bytes and the address of all."""
    data = {f"shard_{number}.parquet": make_file(number, size) for number in range(count)}
    for number, (name, content) in enumerate(data.items()):
        server.put(f"/{name}", content, *(script if number == 0 else ()), **options)
    return data, server.url(f"/shard_{{0..{count - 1}}}.parquet")


def get(address, folder, **options):
    return download(address, folder, **{"backoff": 0.0, "timeout": 5.0, **options})


def contents(folder):
    """All files of a folder but the list of them: what is left behind would show."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "files.json"}


def ranges(server, path):
    return [request.range for request in server.asked(path)]


# Many files


def test_everything_arrives_in_order(server, tmp_path):
    data, address = put_shards(server, 6)
    done = get(address, tmp_path / "data", workers=1)
    assert done.ok
    assert contents(tmp_path / "data") == data
    assert [path.name for path in done.paths] == list(data)
    asked = [request.path for request in server.requests]
    assert asked == [f"/shard_{number}.parquet" for number in (0, 5, 1, 2, 3, 4)]


def test_the_list_is_there_before_the_first_byte(server, tmp_path):
    _, address = put_shards(server, 4, Stall(-1))
    thread = threading.Thread(target=lambda: get(address, tmp_path, timeout=1.0, retries=1), daemon=True)
    thread.start()
    while not server.requests:
        time.sleep(0.01)
    listing = read_listing(tmp_path)
    assert listing.train == ("shard_0.parquet", "shard_1.parquet", "shard_2.parquet")
    assert listing.val == ("shard_3.parquet",)
    thread.join()


def test_several_at_a_time(server, tmp_path):
    data, address = put_shards(server, 8)
    for name in data:
        server.resources[f"/{name}"].script = [Slow(50_000, 0.1)]
    begin = time.monotonic()
    assert get(address, tmp_path, workers=8).ok
    assert time.monotonic() - begin < 8 * 0.4 / 2
    assert contents(tmp_path) == data


def test_the_list_grows_and_never_shrinks(server, tmp_path):
    data, address = put_shards(server, 6)
    names = list(data)
    done = get(address, tmp_path, count=2)
    assert read_listing(tmp_path).train == tuple(names[:2])
    assert set(contents(tmp_path)) == {*names[:2], names[5]}
    assert done.skipped == ()

    asked = len(server.requests)
    done = get(address, tmp_path, count=4)
    assert read_listing(tmp_path).train == tuple(names[:4])
    assert sorted(done.skipped) == [*names[:2], names[5]]
    assert len(server.requests) == asked + 2

    done = get(address, tmp_path, count=1)
    assert [path.name for path in done.paths] == [names[0], names[5]]
    assert read_listing(tmp_path).train == tuple(names[:4])
    assert read_listing(tmp_path).val == (names[5],)

    with pytest.raises(ArgumentError, match=r"val file 0 is 'shard_5.parquet' in its files.json and 'shard_3.parquet'"):
        get(server.url("/shard_{0..3}.parquet"), tmp_path, count=2)
    with pytest.raises(ArgumentError, match=r"another dataset: train file 0 .* Choose another folder"):
        get(server.url("/other_{0..3}.parquet"), tmp_path, count=2)
    assert read_listing(tmp_path).train == tuple(names[:4])


def test_numbered_files_without_an_end(server, tmp_path):
    put_shards(server, 6)
    address = server.url("/shard_{:01d}.parquet")
    get(address, tmp_path, count=2)
    assert read_listing(tmp_path).val == ("shard_2.parquet",)
    get(address, tmp_path, count=4)
    assert [name[6] for name in read_listing(tmp_path).train] == ["0", "1", "3", "4"]
    assert read_listing(tmp_path).val == ("shard_2.parquet",)
    with pytest.raises(ArgumentError, match="how many files there are is not known"):
        get(address, tmp_path)


def test_one_file_that_is_missing(server, tmp_path):
    """A 404 is asked for once, and the others arrive."""
    data, address = put_shards(server, 4)
    del server.resources["/shard_1.parquet"]
    done = get(address, tmp_path)
    assert not done.ok
    assert list(done.failed) == ["shard_1.parquet"]
    assert "404 Not Found" in done.failed["shard_1.parquet"]
    assert server.url("/shard_1.parquet") in done.failed["shard_1.parquet"]
    assert len(server.asked("/shard_1.parquet")) == 1
    del data["shard_1.parquet"]
    assert contents(tmp_path) == data


def test_a_server_that_has_nothing(server, tmp_path):
    """After 20 files in a row the rest is not tried."""
    done = get(server.url("/shard_{000..499}.parquet"), tmp_path)
    assert len(done.failed) == 500
    assert len(server.requests) < 30
    assert "not tried" in done.failed["shard_400.parquet"]
    assert contents(tmp_path) == {}


def test_no_server(tmp_path):
    done = get("http://127.0.0.1:1/shard_{0..1}.parquet", tmp_path, retries=1)
    assert "Connection refused" in done.failed["shard_0.parquet"]
    assert "attempt 2 of 2" in done.failed["shard_0.parquet"]


def test_through_a_proxy(server, tmp_path, monkeypatch):
    data = {f"f{number}.parquet": make_file(number) for number in range(2)}
    for name, content in data.items():
        server.put(f"http://data.invalid/{name}", content, Break(70_000))
    monkeypatch.setenv("http_proxy", server.url("", login="me:proxysecret"))
    assert get("http://data.invalid/f{0..1}.parquet", tmp_path).ok
    assert contents(tmp_path) == data
    assert all(request.headers["Proxy-Authorization"].startswith("Basic ") for request in server.requests)
    monkeypatch.setenv("no_proxy", "data.invalid")
    done = get("http://data.invalid/f{0..1}.parquet", tmp_path / "direct", retries=0)
    assert "the name of the host is not known" in done.failed["f0.parquet"]


# One file


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
    assert (time.monotonic() - begin >= 1.0) == (after == "1")
    assert contents(tmp_path) == data


def test_retry_after_is_capped(server, tmp_path, monkeypatch):
    monkeypatch.setattr("tokenfeed.text.download.retries._LONGEST_WAIT", 0.3)
    _, address = put_shards(server, 2, Status(503, {"Retry-After": "86400"}))
    assert get(address, tmp_path).ok


def test_a_stall_ends_in_the_stated_time(server, tmp_path):
    _, address = put_shards(server, 2, Stall(1000), ...)
    begin = time.monotonic()
    done = get(address, tmp_path, timeout=0.3, retries=2)
    assert time.monotonic() - begin < 3 * 4 * 0.3
    assert "nothing came for 0.3 s (attempt 3 of 3)" in done.failed["shard_0.parquet"]


def test_a_trickle_is_a_stall(server, tmp_path):
    """A byte now and then keeps every timeout away, and is still not enough."""
    _, address = put_shards(server, 2, Slow(1, 0.05), ...)
    begin = time.monotonic()
    done = get(address, tmp_path, timeout=0.3, retries=1)
    assert time.monotonic() - begin < 2 * 4 * 0.3
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


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 5000), max_size=8), size=st.integers(12, 30_000), seed=st.integers(0, 99))
def test_any_interruptions(cuts, size, seed):
    """However the server breaks the connection: the bytes are right, and not one is sent twice."""
    with FlakyServer() as server, tempfile.TemporaryDirectory() as folder:
        server.put("/f0.parquet", make_file(seed, size), *[Break(cut) for cut in cuts])
        server.put("/f1.parquet", make_file(seed, 12))
        done = get(server.url("/f{0..1}.parquet"), folder, retries=len(cuts))
        assert done.ok, done.failed
        assert contents(Path(folder))["f0.parquet"] == make_file(seed, size)
        assert server.bytes_sent("/f0.parquet") == size


# Parts that were left behind


@pytest.mark.parametrize(
    ("part", "note", "asked"),
    [
        (70_000, {"etag": "right", "size": SIZE, "digests": {}}, "bytes=70000-"),
        (70_000, {"etag": '"old"', "size": SIZE, "digests": {}}, "bytes=70000-"),
        (70_000, {"etag": "right", "size": 60_000, "digests": {}}, None),
        (70_000, {"etag": None, "size": SIZE, "digests": {}}, None),
        (70_000, {"etag": 5, "size": [], "digests": {}}, None),
        (70_000, None, None),
        (0, {"etag": '"old"', "size": 5, "digests": {}}, None),
    ],
    ids=label,
)
def test_parts(server, tmp_path, part, note, asked):
    """A part is continued if what it belongs to is known and unchanged. Its bytes, where wrong, never survive."""
    data, address = put_shards(server, 2)
    etag = server.resources["/shard_0.parquet"].etag
    usable = note and note["etag"] == "right" and asked
    (tmp_path / "shard_0.parquet.tmp").write_bytes(data["shard_0.parquet"][:part] if usable else bytes(part))
    if note:
        text = json.dumps({**note, "etag": etag if note["etag"] == "right" else note["etag"]})
        (tmp_path / "shard_0.parquet.tmp.json").write_text(text)
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data
    assert ranges(server, "/shard_0.parquet") == [asked]


def test_a_whole_part_needs_no_request(server, tmp_path):
    """Killed between the last byte and the rename; and between the rename and the removal of the note."""
    data, address = put_shards(server, 2)
    note = {"etag": server.resources["/shard_0.parquet"].etag, "size": SIZE, "digests": {}}
    (tmp_path / "shard_0.parquet.tmp").write_bytes(data["shard_0.parquet"])
    (tmp_path / "shard_0.parquet.tmp.json").write_text(json.dumps(note))
    (tmp_path / "shard_1.parquet").write_bytes(data["shard_1.parquet"])
    (tmp_path / "shard_1.parquet.tmp.json").write_text(json.dumps(note))
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data
    assert server.requests == []


CHILD = """
import sys
from tokenfeed.text.download.shards import download
done = download(sys.argv[1], sys.argv[2], workers=2, timeout=20.0, backoff=0.0)
sys.exit(0 if done.ok else f"failed: {done.failed}")
"""


def start(address, folder):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", CHILD, address, str(folder)], stderr=subprocess.PIPE)


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def test_kill_minus_nine_in_mid_file(server, tmp_path):
    """Killed twice, then left alone: every byte was sent once."""
    data, address = put_shards(server, 3, Stall(70_000), Stall(50_000))
    part = tmp_path / "shard_0.parquet.tmp"
    for size in (70_000, 120_000):
        process = start(address, tmp_path)
        wait_until(lambda size=size: size_of(part) >= size)
        process.kill()
        process.communicate()
        assert not (tmp_path / "shard_0.parquet").exists()
    process = start(address, tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert contents(tmp_path) == data
    assert ranges(server, "/shard_0.parquet") == [None, "bytes=70000-", "bytes=120000-"]
    assert server.bytes_sent("/shard_0.parquet") == SIZE


def test_two_processes_at_once(server, tmp_path):
    """They share the work: each file is sent once, and both find all of them in place."""
    data, address = put_shards(server, 6)
    for name in data:
        server.resources[f"/{name}"].script = [Slow(20_000, 0.05)]
    processes = [start(address, tmp_path) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert contents(tmp_path) == data
    assert [server.bytes_sent(f"/{name}") for name in data] == [SIZE] * 6


def test_the_other_process_is_killed(server, tmp_path):
    """The one that waited goes on where the other was."""
    data, address = put_shards(server, 2, Stall(70_000))
    first = start(address, tmp_path)
    wait_until(lambda: size_of(tmp_path / "shard_0.parquet.tmp") >= 70_000)
    second = start(address, tmp_path)
    wait_until((tmp_path / "shard_1.parquet").exists)
    time.sleep(0.3)
    first.kill()
    first.communicate()
    _, errors = second.communicate()
    assert second.returncode == 0, errors
    assert contents(tmp_path) == data
    assert server.bytes_sent("/shard_0.parquet") == SIZE


def test_another_process_that_does_nothing(server, tmp_path):
    data, address = put_shards(server, 2)
    with (tmp_path / "shard_0.parquet.tmp").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = get(address, tmp_path, timeout=0.2, retries=1)
    assert "another process holds it and has added nothing for 0.4 s" in done.failed["shard_0.parquet"]
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data


@pytest.mark.parametrize("arrives", [True, False])
def test_the_other_process_ends_between_opening_and_locking(server, tmp_path, monkeypatch, arrives):
    """What was opened as a part is the whole file by the time it is locked, or has no name any more: left alone."""
    data, address = put_shards(server, 2)
    lock, path, part = fcntl.flock, tmp_path / "shard_0.parquet", tmp_path / "shard_0.parquet.tmp"
    calls = []

    def flock(fd, operation):
        if not calls and part.exists() and os.path.samestat(os.fstat(fd), part.stat()):
            calls.append(fd)
            part.write_bytes(data["shard_0.parquet"])
            if arrives:
                part.rename(path)
            else:
                part.unlink()
        lock(fd, operation)

    monkeypatch.setattr("fcntl.flock", flock)
    assert ("shard_0.parquet" in get(address, tmp_path, timeout=0.5).skipped) == arrives
    assert contents(tmp_path) == data
    assert len(server.asked("/shard_0.parquet")) == (not arrives)


def test_a_file_system_without_locks(server, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    data, address = put_shards(server, 3, Break(70_000))
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data


def test_interrupt_from_the_keyboard(server, tmp_path):
    """Within a second, though all workers wait: for bytes, for headers, for the time to try again."""
    _, address = put_shards(server, 4, Stall(1000))
    server.resources["/shard_3.parquet"].script = [Stall(-1)]
    server.resources["/shard_1.parquet"].script = [Status(503, {"Retry-After": "50"})]
    command = [str(COMMAND), "download", address, "-o", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(lambda: len(server.requests) == 4 and size_of(tmp_path / "shard_0.parquet.tmp") == 1000)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert time.monotonic() - begin < 2.0  # one is promised, the other is for a busy machine
    assert process.returncode != 0
    assert get(address, tmp_path).ok
    assert "bytes=1000-" in ranges(server, "/shard_0.parquet")


def test_no_thread_is_left_behind(server, tmp_path):
    """When something else goes wrong while a worker waits for bytes."""
    _, address = put_shards(server, 3, Stall(1000))
    before = set(threading.enumerate())

    def fail(arrival):
        if arrival.name == "shard_2.parquet":
            wait_until(lambda: size_of(tmp_path / "shard_0.parquet.tmp") == 1000)
            raise RuntimeError("stop")

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="stop"):
        get(address, tmp_path, progress=fail, timeout=20.0)
    assert time.monotonic() - begin < 2.0
    assert [thread for thread in threading.enumerate() if "_fetch_all" in thread.name and thread not in before] == []


# Disks


def test_a_disk_that_is_full(server, tmp_path):
    code = """
import resource, signal, sys
from tokenfeed.errors import WriteError
from tokenfeed.text.download.shards import download
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    download(sys.argv[1], sys.argv[2])
except WriteError as error:
    assert "EFBIG" in str(error) and error.filename.endswith("shard_0.parquet.tmp"), error
else:
    raise AssertionError
"""
    data, address = put_shards(server, 2)
    server.resources["/shard_1.parquet"].become(make_file(5, 50_000))
    done = subprocess.run([sys.executable, "-c", code, address, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert get(address, tmp_path).ok  # and what had been written is continued once there is room
    assert contents(tmp_path)["shard_0.parquet"] == data["shard_0.parquet"]
    assert server.bytes_sent("/shard_0.parquet") < 2 * SIZE + 1


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        get(server.url("/shard_{0..1}.parquet"), tmp_path / "file" / "data")


# The Hugging Face hub


FILES = {
    "README.md": b"# hello",
    "data/a-0.parquet": make_file(0),
    "data/a-1.parquet": make_file(1),
    "data/sub/b.parquet": make_file(2),
    "z.parquet": make_file(3),
}
TOKEN = "hf_verysecretindeed"


@pytest.fixture
def hub(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url("/"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return server


def test_a_repository(hub, tmp_path):
    """Listed in pages, with sizes and checksums; the files lie in one folder under plain names."""
    hub.put_repository("owner/name", FILES, page=2)
    done = download("hf://owner/name", backoff=0.0)
    assert done.ok, done.failed
    assert done.folder == tmp_path / "cache" / "owner--name"
    names = ["data--a-0.parquet", "data--a-1.parquet", "data--sub--b.parquet", "z.parquet"]
    assert [path.name for path in done.paths] == names
    assert list(contents(done.folder).values()) != []
    assert contents(done.folder) == dict(zip(names, list(FILES.values())[1:], strict=True))
    assert read_listing(done.folder).val == ("z.parquet",)
    assert len(hub.asked("/api/datasets/owner/name/tree/main")) == 3
    assert all(request.headers["Authorization"] == f"Bearer {TOKEN}" for request in hub.requests)


def test_a_revision_and_a_folder(hub, tmp_path):
    hub.put_repository("owner/name", FILES, revision="v1.0")
    hub.resources["/api/datasets/owner/name/tree/v1.0/data"] = hub.resources["/api/datasets/owner/name/tree/v1.0"]
    assert download("hf://owner/name@v1.0/data", backoff=0.0).folder.name == "owner--name--data@v1.0"


def test_the_token_goes_to_the_hub_alone(hub, tmp_path):
    hub.put_repository("owner/name", FILES)
    with FlakyServer() as elsewhere:
        elsewhere.put("/x.parquet", FILES["z.parquet"], Break(70_000))
        target = elsewhere.url("/x.parquet?sig=signed")
        hub.put("/datasets/owner/name/resolve/main/z.parquet", b"", Status(302, {"Location": target}), ...)
        done = download("hf://owner/name", tmp_path, backoff=0.0)
        assert done.ok, done.failed
        assert [request.headers.get("Authorization") for request in elsewhere.requests] == [None, None]
        assert ranges(elsewhere, "/x.parquet") == [None, "bytes=70000-"]


def test_a_wrong_checksum_in_the_list(hub, tmp_path):
    hub.put_repository("owner/name", FILES, oid=lambda data: hashlib.sha256(data + b"!").hexdigest())
    done = download("hf://owner/name", tmp_path, backoff=0.0)
    assert len(done.failed) == 4
    assert "sha256 is" in done.failed["z.parquet"]
    assert contents(tmp_path) == {}


def test_a_size_other_than_listed(hub, tmp_path):
    """A file of the right size is skipped, one of another is replaced; a server that has another is not believed."""
    hub.put_repository("owner/name", FILES)
    (tmp_path / "z.parquet").write_bytes(b"PAR1PAR1")
    (tmp_path / "data--a-0.parquet").write_bytes(FILES["data/a-0.parquet"])
    hub.resources["/cdn/owner/name/data/a-1.parquet"].become(make_file(7, 100))
    done = download("hf://owner/name", tmp_path, backoff=0.0)
    assert done.skipped == ("data--a-0.parquet",)
    assert list(done.failed) == ["data--a-1.parquet"]
    assert "says 200,000 bytes" in done.failed["data--a-1.parquet"]
    assert (tmp_path / "z.parquet").read_bytes() == FILES["z.parquet"]


def test_a_part_of_what_was_listed_before(hub, tmp_path):
    """A part, even a whole one, of a version that the list does not know any more is thrown away."""
    hub.put_repository("owner/name", FILES)
    old = make_file(8)
    etag = hub.resources["/cdn/owner/name/z.parquet"].etag
    for size in (70_000, SIZE):
        note = {"etag": etag, "size": SIZE, "digests": {"sha256": hashlib.sha256(old).hexdigest()}}
        (tmp_path / "z.parquet.tmp").write_bytes(old[:size])
        (tmp_path / "z.parquet.tmp.json").write_text(json.dumps(note))
        assert download("hf://owner/name", tmp_path, backoff=0.0).ok
        assert contents(tmp_path)["z.parquet"] == FILES["z.parquet"]
        (tmp_path / "z.parquet").unlink()
    assert ranges(hub, "/cdn/owner/name/z.parquet") == [None, None]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Status(404), "404"),
        (Status(401), "HF_TOKEN"),
        (Status(200, {}, b"<html>"), "expected JSON, got '<html>'"),
        (Status(200, {}, b'{"error": "no"}'), "expected a list of files"),
        (Status(200, {}, b"[]"), "0 parquet files"),
        (Status(200, {"Link": '<?recursive=true>; rel="next"'}, b"[]"), "circle"),
        (Status(200, {"Link": '<http://evil.example/>; rel="next"'}, b"[]"), "another host"),
        (Status(500), "attempt 6 of 6"),
    ],
    ids=label,
)
def test_a_list_that_cannot_be_had(hub, tmp_path, behaviour, message):
    hub.put("/api/datasets/owner/name/tree/main", b"", behaviour, ...)
    with pytest.raises(DownloadError, match=message):
        download("hf://owner/name", tmp_path, backoff=0.0)


@pytest.mark.parametrize("text", ["hf://owner", "hf://../x y", "nothing", "ftp://host/a_{0..1}", "https://host/a.txt"])
def test_what_names_no_dataset(tmp_path, text):
    with pytest.raises(ArgumentError):
        download(text, tmp_path)


# Secrets


def test_no_secret_is_shown(hub, tmp_path, capfd):
    """Not in reasons, tracebacks or files, even if the server repeats what it was sent."""
    login, query = "someone:passw0rd", "X-Signature=ABCDEF123456&token=tttttttt"
    echo = f"<html>{TOKEN} {login} /x?{query} passw0rd ABCDEF123456".encode()
    scripts = [
        [Status(500), ...],
        [Status(404)],
        [Status(200, {"Content-Type": "text/html"}, echo)],
        [Status(200, {}, echo), ...],
        [Stall(100), ...],
        [Break(100), ...],
        [Status(302, {"Location": f"http://127.0.0.1:1/y?{query}"}), ...],
        [],
    ]
    for number, script in enumerate(scripts):
        hub.put(f"/s{number}.parquet", make_file(1), *script)
    address = hub.url("/s{0..7}.parquet", login=login) + f"?{query}"
    done = get(address, tmp_path / "data", timeout=0.3, retries=1)
    assert len(done.failed) == 7
    assert all(request.query == query for request in hub.asked("/s0.parquet"))
    basic = "Basic " + base64.b64encode(login.encode()).decode()
    assert {request.headers["Authorization"] for request in hub.requests} == {basic}

    command = subprocess.run(
        [COMMAND, "--debug", "download", address, "-o", tmp_path / "data", "--timeout", "0.3", "--retries", "0"],
        capture_output=True,
        text=True,
    )
    assert command.returncode == 1
    wrong = subprocess.run(
        [COMMAND, "--debug", "download", address.replace("{0..7}", "")], capture_output=True, text=True
    )
    assert "Traceback" in wrong.stderr
    shown = [*done.failed.values(), repr(done), command.stdout, command.stderr, wrong.stderr.replace("\n", "")]
    shown += [path.read_text("latin-1") for path in (tmp_path / "data").iterdir() if path.suffix == ".json"]
    for text in shown:
        for secret in (TOKEN, "passw0rd", "ABCDEF123456", "tttttttt", basic):
            assert secret not in text


# The command


def run(*arguments):
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, env=environment)


def test_the_command(server, tmp_path):
    data, address = put_shards(server, 5)
    done = run("download", address, "-n", 2, "-w", 2, "-o", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "is complete: 3 files, 600.0 kB, 0 of them there before" in done.stdout
    report = json.loads(run("download", address, "-n", 2, "-o", tmp_path / "data", "--json").stdout)
    assert report["ok"]
    assert sorted(report["skipped"]) == sorted(["shard_0.parquet", "shard_1.parquet", "shard_4.parquet"])
    assert report["folder"] == str(tmp_path / "data")

    del server.resources["/shard_2.parquet"]
    done = run("download", address, "-o", tmp_path / "data")
    assert done.returncode == 1
    assert "shard_2.parquet: http" in done.stdout
    assert "404" in done.stdout
    assert "lacks 1 of 5 files" in done.stdout
    done = run("download", address, "-o", tmp_path / "data", "--json")
    assert done.returncode == 1
    assert list(json.loads(done.stdout)["failed"]) == ["shard_2.parquet"]
    assert run("download", "nothing").returncode == 2
    shown = run("download", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "hf://owner/name" in shown.stdout
    assert contents(tmp_path / "data").keys() == data.keys() - {"shard_2.parquet"}


def test_the_progress_bars(server, tmp_path):
    """On a terminal: one bar for all, one for each file under way."""
    data, address = put_shards(server, 3)
    for name in data:
        server.resources[f"/{name}"].script = [Slow(20_000, 0.05)]
    here, there = pty.openpty()
    command = [COMMAND, "download", address, "-o", tmp_path]
    process = subprocess.Popen(
        command, stdout=there, stderr=there, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(there)
    shown = b""
    try:
        while chunk := os.read(here, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(here)
    assert process.wait() == 0
    for text in ("of 3 files", "shard_0.parquet", "/s", "is complete"):
        assert text in shown.decode()


# nginx


@pytest.fixture
def nginx(tmp_path):
    """A second real server, whose ranges, ETags and logs nobody here wrote. Slow: 400 kB/s for each connection."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("NOT TESTED against nginx, which is not installed: apt-get install nginx-light")
    root = tmp_path / "nginx"
    (root / "www").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    temporary = "".join(
        f"{name}_temp_path {root}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (root / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;
events {{ }}
http {{
    {temporary}
    log_format bytes '$uri $status $body_bytes_sent "$http_range" "$http_if_range"';
    access_log {root}/access.log bytes;
    server {{ listen 127.0.0.1:{port}; root {root}/www; limit_rate 400k; output_buffers 1 8k; sendfile off; }}
}}
""")
    process = subprocess.Popen([program, "-c", str(root / "nginx.conf"), "-e", str(root / "error.log")])
    try:
        wait_until(lambda: (root / "pid").exists() and (root / "pid").read_text())
        yield f"http://127.0.0.1:{port}", root
    finally:
        process.terminate()
        process.wait()


def test_nginx_and_kill_minus_nine(nginx, tmp_path):
    """Four at a time, killed in mid-file; the second process asks for the rest alone."""
    address, root = nginx
    data = {f"shard_{number}.parquet": make_file(number, 400_000) for number in range(4)}
    for name, content in data.items():
        (root / "www" / name).write_bytes(content)
    address, folder = f"{address}/shard_{{0..3}}.parquet", tmp_path / "data"
    part = folder / "shard_0.parquet.tmp"
    process = start(address, folder)
    wait_until(lambda: size_of(part) >= 100_000)
    process.kill()
    process.communicate()
    had = size_of(part)
    assert 100_000 <= had < 400_000
    process = start(address, folder)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert contents(folder) == data
    wait_until(lambda: (root / "access.log").read_text().count("shard_3") >= 1)
    lines = [line.split(" ", 3) for line in (root / "access.log").read_text().splitlines()]
    second = [line for line in lines if line[0] == "/shard_0.parquet" and line[1] == "206"]
    assert [(int(sent), rest.split('"')[1]) for _, _, sent, rest in second] == [(400_000 - had, f"bytes={had}-")]
