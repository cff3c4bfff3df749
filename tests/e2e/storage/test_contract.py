"""What local folders, memory, S3 and HTTP have in common: one set of tests for all of them."""

import gzip
import io
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tokenfeed.errors import ArgumentError, NotFoundError, ReadError, TruncatedError
from tokenfeed.storage import objects
from tokenfeed.storage.fetcher import Fetcher, Range, RemoteFile, fetcher
from tokenfeed.storage.folder import open_folder
from tokenfeed.storage.objects import open_file
from tokenfeed.storage.retries import Patience

KINDS = ["local", "memory", "s3", "gs", "http"]
REMOTE = KINDS[1:]
WRITABLE = ["memory", "s3", "gs"]


class Place:
    """A new, empty folder of one kind, and a way to put files into it that need not be the one tested."""

    def __init__(self, kind, request, tmp_path):
        self.kind = kind
        name = uuid.uuid4().hex
        if kind == "local":
            self.path = str(tmp_path / "folder")
        elif kind == "memory":
            self.path = f"memory://tests/{name}/a b"
        elif kind == "s3":
            request.getfixturevalue("s3_environment")
            self.path = f"s3://bucket/{name}/a b"
        elif kind == "gs":
            request.getfixturevalue("gcs_environment")
            self.path = f"gs://bucket/{name}/a b"
        else:
            www, url = request.getfixturevalue("www")
            self._www = www / name / "a b"
            self.path = f"{url}/{name}/a%20b"

    @property
    def folder(self):
        return open_folder(self.path)

    def put(self, name, data):
        if self.kind == "http":
            (self._www / name).parent.mkdir(parents=True, exist_ok=True)
            (self._www / name).write_bytes(data)
        elif self.kind == "local":
            (self.folder.local / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder.local / name).write_bytes(data)
        else:
            objects.write(self.folder.path(name), data)


@pytest.fixture
def place(request, tmp_path):
    return Place(request.param, request, tmp_path)


def every(kinds):
    return pytest.mark.parametrize("place", kinds, indirect=True)


@every(KINDS)
def test_reading_what_is_there_and_what_is_not(place):
    place.put("file", b"hello")
    place.put("deep/er/file", b"")
    folder = place.folder
    assert folder.exists("file")
    assert folder.read("file") == b"hello"
    assert folder.read("deep/er/file") == b""
    assert folder.read_all(["deep/er/file", "file", "file"]) == [b"", b"hello", b"hello"]
    assert not folder.exists("missing")
    assert not folder.exists("missing/file")
    for wanted in (folder.read, lambda name: folder.read_all(["file", name])):
        with pytest.raises((ReadError, NotFoundError)) as caught:
            wanted("missing")
        assert caught.value.errno == 2
        assert caught.value.filename == folder.path("missing")
        assert folder.path("missing") in str(caught.value)


@every(["local", *WRITABLE])
def test_writing(place):
    folder = place.folder
    folder.make()
    assert folder.create("manifest", b"one")
    assert not folder.create("manifest", b"two")
    assert folder.read("manifest") == b"one"
    folder.replace("manifest", b"three")
    folder.replace("empty", b"")
    assert folder.read_all(["manifest", "empty"]) == [b"three", b""]
    assert not folder.create("manifest", b"four")


@every(["local", *WRITABLE])
def test_folders_and_their_markers(place):
    assert place.kind == "local" or place.folder.folders("mark") == {}
    for name in ("file", "b/mark", "b/x", "a/x", "c/deep/mark", ".hidden/mark", "b.2/mark"):
        place.put(name, b"1")
    assert place.folder.folders("mark") == {"a": False, "b": True, "b.2": True, "c": False}


@every(["http"])
def test_http_servers_are_read_only_and_have_no_lists(place):
    folder = place.folder
    assert not folder.can_list
    for act in (
        folder.make,
        lambda: folder.create("x", b""),
        lambda: folder.replace("x", b""),
        lambda: folder.folders("mark"),
        lambda: objects.delete(folder.path("x")),
        lambda: objects.list_names(place.path),
        lambda: objects.upload(folder.path("x"), io.BytesIO()),
    ):
        with pytest.raises(ArgumentError, match="http"):
            act()


@every(WRITABLE)
def test_objects(place, tmp_path, monkeypatch):
    """Listing, deleting, and files that are uploaded in parts."""
    folder = place.folder
    (tmp_path / "large").write_bytes(os.urandom(10_000_000))
    (tmp_path / "small").write_bytes(b"small")
    for name in ("large", "small"):
        with (tmp_path / name).open("rb") as file:
            objects.upload(folder.path(f"up/{name}"), file)
        assert folder.read(f"up/{name}") == (tmp_path / name).read_bytes()
        assert objects.head(folder.path(f"up/{name}")).size == (tmp_path / name).stat().st_size
    folder.replace("top", b"")
    assert objects.list_names(place.path) == [("top", False), ("up", True)]
    assert objects.list_keys(place.path) == ["top", "up/large", "up/small"]
    objects.delete(folder.path("top"))
    objects.delete(folder.path("top"))
    assert objects.list_names(place.path) == [("up", True)]
    monkeypatch.setattr("tokenfeed.storage.fetcher.LARGEST_READ", 100)
    with pytest.raises(ReadError, match="at most 100"):
        objects.read(folder.path("up/large"))


@every(REMOTE)
def test_ranges(place):
    data = os.urandom(300_000)
    place.put("data", data)
    uri = place.folder.path("data")
    info = objects.head(uri)
    assert info.size == len(data)
    assert info.version
    ranges = [
        Range(uri, start, start + size, info.version) for start in range(0, 290_000, 9_973) for size in (0, 1, 7_000)
    ]
    answers = fetcher().submit_all(ranges)
    for wanted, answer in zip(ranges, answers, strict=True):
        fetched = answer.result(20)
        assert bytes(fetched.data) == data[wanted.start : wanted.stop]
        assert wanted.start == wanted.stop or (fetched.size, fetched.version) == info
    assert bytes(fetcher().submit(Range(uri, 299_999, 300_000)).result(20).data) == data[-1:]


@every(REMOTE)
def test_ranges_that_are_not_there(place):
    place.put("data", b"x" * 1000)
    uri = place.folder.path("data")
    with pytest.raises(TruncatedError, match="ends at byte 1,000"):
        fetcher().submit(Range(uri, 990, 1010)).result(20)
    with pytest.raises(ReadError, match="shorter"):
        fetcher().submit(Range(uri, 2000, 2010)).result(20)
    missing = place.folder.path("missing")
    for act in (objects.read, objects.head, open_file, lambda uri: fetcher().submit(Range(uri, 0, 10)).result(20)):
        with pytest.raises(NotFoundError, match="there is no such object") as caught:
            act(missing)
        assert isinstance(caught.value, FileNotFoundError)
        assert (caught.value.errno, caught.value.filename) == (2, missing)
    assert not objects.exists(missing)
    with pytest.raises(ArgumentError, match="not a range"):
        fetcher().submit(Range(uri, 5, 4))


@every(REMOTE)
def test_an_object_that_is_replaced_is_never_mixed(place):
    place.put("data", b"old" * 1000)
    uri = place.folder.path("data")
    version = objects.head(uri).version
    with open_file(uri) as file:
        assert file.read(3) == b"old"
        place.put("data", b"new" * 1001)
        with pytest.raises(ValueError, match="replaced while it was being read"):
            fetcher().submit(Range(uri, 0, 3, version)).result(20)
    assert bytes(fetcher().submit(Range(uri, 0, 3)).result(20).data) == b"new"


@every(REMOTE)
def test_files(place):
    """Random access, whole lines, other readers on top, and one chunk ahead."""
    lines = [f"{number}: {'x' * (number % 100)}\n".encode() for number in range(20_000)]
    data = b"".join(lines)
    place.put("text", data)
    place.put("text.gz", gzip.compress(data, 1))
    place.put("empty", b"")
    uri = place.folder.path("text")
    with RemoteFile(uri, objects.head(uri), chunk_bytes=100_000) as file:
        for position, count in (
            (0, 10),
            (99_995, 20),
            (500_000, 250_000),
            (3, 1),
            (len(data) - 5, 100),
            (len(data), 5),
        ):
            file.seek(position)
            assert file.tell() == position
            found = b""
            while len(found) < count and (more := file.read(count - len(found))):
                found += more
            assert found == data[position : position + count]
        file.seek(-7, io.SEEK_END)
        assert file.read() == data[-7:]
        file.seek(0)
        assert io.BufferedReader(file).readlines() == lines
    with gzip.open(io.BufferedReader(open_file(place.folder.path("text.gz")))) as text:
        assert text.read() == data
    assert open_file(place.folder.path("empty")).read() == b""
    with pytest.raises(NotFoundError):
        open_file(place.folder.path("missing"))


@every(REMOTE)
def test_first_come_first_served_and_no_more_at_once_than_allowed(place):
    place.put("data", bytes(range(256)) * 100)
    uri = place.folder.path("data")
    ours = Fetcher(concurrency=1)
    done = []
    answers = ours.submit_all([Range(uri, number, number + 1) for number in range(40)])
    for number, answer in enumerate(answers):
        answer.add_done_callback(lambda _, number=number: done.append(number))
    cancelled = [number for number, answer in enumerate(answers) if answer.cancel()]
    for number, answer in enumerate(answers):
        assert number in cancelled or bytes(answer.result(20).data) == bytes([number])
    rest = [number for number in done if number not in cancelled]
    assert rest == sorted(rest)
    assert ours.counters.requests == 40 - len(cancelled)
    assert ours.counters.bytes_fetched == 40 - len(cancelled)


@every(REMOTE)
def test_threads_share_a_fetcher(place):
    data = os.urandom(100_000)
    place.put("data", data)
    uri = place.folder.path("data")

    def work(seed):
        starts = [(seed * 7919 + number * 104729) % 90_000 for number in range(50)]
        answers = [fetcher().submit(Range(uri, start, start + 999)) for start in starts]
        return all(bytes(a.result(20).data) == data[s : s + 999] for s, a in zip(starts, answers, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@every(REMOTE)
def test_a_forked_child_is_told_what_to_do(place):
    """obstore's threads are not there; the parent goes on, and so does a child that asks first."""
    place.put("data", b"0123456789")
    code = """
import os, sys
from tokenfeed.errors import ForkError
from tokenfeed.storage.fetcher import Range, fetcher
from tokenfeed.storage.objects import open_file, read, write
uri = sys.argv[1]
def check():
    if uri.startswith("memory"):
        write(uri, b"0123456789")
    assert read(uri) == b"0123456789"
    assert bytes(fetcher().submit(Range(uri, 3, 7)).result(20).data) == b"3456"
def forked(act):
    child = os.fork()
    if child == 0:
        act()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
def refused():
    for act in (read, open_file, lambda uri: fetcher().submit(Range(uri, 3, 7))):
        try:
            act(uri)
        except ForkError as error:
            assert "spawn" in str(error) and "after the fork" in str(error) and isinstance(error, RuntimeError)
        else:
            raise AssertionError
forked(check)
check()
forked(refused)
check()
print("all well")
"""
    command = [sys.executable, "-W", "error", "-c", code, place.folder.path("data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("all well\n", "")


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="concurrency"):
        Fetcher(concurrency=0)
    assert Fetcher(patience=Patience(1.0)).counters.requests == 0
