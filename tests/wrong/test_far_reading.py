"""Far data: what must hold and does not yet. Each expected failure names what is wrong today."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import obstore
import pytest

import tokenfeed
from far import FarStore, expected_tokens, open_far, read_windows, run_child
from flaky_server import behave
from servers import S3Server, Stall, faulty_proxy, s3_server
from tokenfeed.errors import ArgumentError, NotFoundError, TokenfeedError


@pytest.fixture
def server(tmp_path):
    with FarStore(tmp_path / "store", 1024) as server:
        yield server


def seen_by(server, act, name="Authorization"):
    """The values of a header in the requests that an act sends."""
    before = len(server.requests)
    act()
    requests = server.requests[before:]
    assert requests
    return {request.headers.get(name) for request in requests}


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 2: headers belong to the address, so those of the store opened last are sent",
)
def test_each_store_sends_its_own_headers(server):
    """A store sends the headers that it was opened with, whatever else is opened at the same address."""
    stores = {name: open_far(server.store, headers={"Authorization": name}) for name in ("first", "second")}
    for number, (name, store) in enumerate(stores.items()):
        assert seen_by(server, lambda: read_windows(store, 100 * number)) == {name}  # noqa: B023


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 2: headers belong to the address, so a store opened without any sends those of another",
)
def test_a_store_without_headers_sends_none(server):
    """A store that is opened without headers sends none, although another at the same address has some."""
    read_windows(open_far(server.store, headers={"Authorization": "secret"}), 0)
    assert seen_by(server, lambda: read_windows(open_far(server.store), 100)) == {None}


CLOSE = """
import sys, tempfile, threading
from pathlib import Path
from far import *

with tempfile.TemporaryDirectory() as folder, FarStore(Path(folder) / "store", 64) as server:
    store = open_far(server.store)
    server.answers.clear()
    raised = []

    def read():
        try:
            read_windows(store, 0)
        except tokenfeed.errors.TokenfeedError as error:
            raised.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    server.held.acquire()
    print("ready", flush=True)
    store.close()
    reader.join()
    assert len(raised) == 1 and "closed" in raised[0], raised
"""


@pytest.mark.xfail(
    strict=True,
    raises=subprocess.TimeoutExpired,
    reason="floor 2: `close` leaves a thread waiting that waits for a server",
)
def test_close_ends_a_read_that_waits_for_a_server():
    """`close` ends what waits in other threads, with an error that says that the store was closed."""
    assert run_child(CLOSE).returncode == 0


LATE = """
import concurrent.futures, sys, tempfile, threading
from pathlib import Path
from far import *

with tempfile.TemporaryDirectory() as folder, FarStore(Path(folder) / "store", 64) as server:
    store = open_far(server.store)
    read_windows(store, 0)                       # so that there are threads that take answers
    server.answers.clear()

    # The hook: the answer comes after the threads that take answers were told to end, and before that is over.
    Pool = concurrent.futures.ThreadPoolExecutor
    shutdown, submit, refused = Pool.shutdown, Pool.submit, threading.Event()

    def shut_down_while_an_answer_comes(self, *arguments, **options):
        shutdown(self, *arguments, **options)
        server.answers.set()
        refused.wait(10)

    def submit_or_tell(self, *arguments, **options):
        try:
            return submit(self, *arguments, **options)
        except RuntimeError:
            refused.set()
            raise

    Pool.shutdown, Pool.submit = shut_down_while_an_answer_comes, submit_or_tell

    def read():
        try:
            read_windows(store, 32)
        except tokenfeed.errors.TokenfeedError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    server.held.acquire()
    print("ready", flush=True)
    store.close()
    server.answers.set()
    reader.join()
"""


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=subprocess.TimeoutExpired,
    reason="floor 2: an answer that comes while the store is closed is dropped, and its reader waits for ever",
)
def test_an_answer_that_comes_while_a_store_is_closed_leaves_nobody_waiting():
    """A read ends, with its tokens or an error, when its answer comes while another thread closes the store."""
    assert run_child(LATE).returncode == 0


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="floor 2: a closed store goes on reading")
def test_a_closed_store_refuses_to_read(server):
    """A read after the `with` block of a far store is an error that says that the store was closed."""
    with open_far(server.store) as store:
        read_windows(store, 0)
    with pytest.raises(TokenfeedError, match="closed"):
        read_windows(store, 100)


@pytest.mark.xfail(
    strict=True, raises=pytest.fail.Exception, reason="floor 2: a loader goes on reading a store that was closed"
)
def test_a_loader_whose_store_was_closed_says_so(server):
    """`next` after the `with` block of its store is an error that says that the store was closed."""
    with open_far(server.store) as store:
        loader = tokenfeed.Loader(store.windows(2048), 4, prefetch=1, threads=1, rank=0, world_size=1)
        next(loader)
    with loader, pytest.raises(TokenfeedError, match="closed"):
        for _ in range(20):
            next(loader)


REFUSED = """
import os, tempfile
from pathlib import Path
from far import *

with tempfile.TemporaryDirectory() as folder, FarStore(Path(folder) / "store", 64) as server:
    store = open_far(server.store)
    read_windows(store, 0)
    os.environ["TOKENFEED_TIMEOUT"] = "2m"
    try:
        read_windows(store, 32)
    except tokenfeed.errors.ArgumentError:
        pass
    del os.environ["TOKENFEED_TIMEOUT"]
    print("ready", flush=True)
    assert (read_windows(store, 32) == expected_tokens(32)).all()
"""


@pytest.mark.xfail(
    strict=True,
    raises=subprocess.TimeoutExpired,
    reason="floor 2: a page stays registered when asking for it raises, and every later read of it waits for ever",
)
def test_a_setting_that_is_refused_leaves_pages_free():
    """A page can be read after a read of it was refused, here for a time limit that is no number."""
    assert run_child(REFUSED).returncode == 0


INTERRUPTED = """
import linecache, sys, tempfile
from pathlib import Path
from far import *

tried = set()

def interrupted(act):
    '''Whether an act was interrupted: before the first line of the room of files that was not tried yet.

    Lines that begin with `with` are left out: they are traced once more at the end of their block, where no signal
    comes.
    '''
    def trace(frame, event, _):
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not any(room in file for room in ("tokenfeed/storage/", "tokenfeed/files/")):
            return None
        if event == "line" and (file, line) not in tried:
            tried.add((file, line))
            if not linecache.getline(file, line).strip().startswith("with "):
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False

with tempfile.TemporaryDirectory() as folder, FarStore(Path(folder) / "store", 1000) as server:
    store = open_far(server.store)
    read_windows(store, 0)
    print("ready", flush=True)
    number = 0
    while interrupted(lambda: read_windows(store, 3 * number + 1)):
        assert (read_windows(store, 3 * number + 1) == expected_tokens(3 * number + 1)).all()
        number += 1
        print(number, flush=True)
    assert number > 10
"""


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=subprocess.TimeoutExpired,
    reason="floor 2: a page stays registered when asking for it is interrupted, and later reads of it wait for ever",
)
def test_an_interrupt_leaves_pages_free():
    """A page can be read after Ctrl-C at any line of an earlier read of it."""
    assert run_child(INTERRUPTED).returncode == 0


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 2: the memory for pages is bounded per call, so readers throw out what others wait for",
)
def test_memory_for_pages_is_bounded_over_all_readers(tmp_path):
    """Sixteen threads that share a store fetch no page twice: at most 1.1 bytes for each byte they read.

    Each reads a quarter of the memory, and all ask before one is answered.
    """
    count, windows = 16, 64
    with FarStore(tmp_path / "store", count * windows + 1) as server:
        store = open_far(server.store, memory_bytes=windows * 4 * 4096)
        read_windows(store, count * windows)
        before = server.bytes_of_tokens()
        server.answers.clear()
        places = range(0, count * windows, windows)
        readers = [threading.Thread(target=read_windows, args=(store, place, windows)) for place in places]
        for reader in readers:
            reader.start()
        for _ in readers:  # a store that lets fewer ask at once is right, too
            if not server.held.acquire(timeout=2):
                break
        server.answers.set()
        for reader in readers:
            reader.join()
        assert server.bytes_of_tokens() - before <= 1.1 * count * windows * 4096


LARGE = """
import sys, tempfile
from far import *

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

store = open_far(sys.argv[1], memory_bytes=1 << 20)
windows = store.windows(LENGTH)
for first in range(0, 600, 60):
    windows.read(range(first, first + 60))
before = resident()
print("ready", flush=True)
windows.read(range(0, 1024))
for first in range(1024, 5120, 60):
    windows.read(range(first, first + 60))
print(resident() - before)
"""


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 2: page memory grows to four times the largest read, for the life of the store",
)
def test_one_large_read_does_not_enlarge_the_memory_for_pages(tmp_path):
    """The memory for pages is what was asked for again once a read of many times that is over."""
    with FarStore(tmp_path / "store", 5200) as server:
        child = run_child(LARGE, server.store)
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 8 << 20


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 2: new pages are written into files that another process has deleted",
)
def test_pages_are_kept_after_another_process_removed_their_folder(server, tmp_path):
    """Pages that are fetched after another process made room by removing a folder of the cache are kept on disk."""
    cache = tmp_path / "cache"
    store = open_far(server.store, cache=cache)
    read_windows(store, 0)
    for folder in cache.iterdir():  # as a process does whose own data needs the room
        if folder.is_dir():
            shutil.rmtree(folder)
    read_windows(store, 100, 32)
    store.close()
    before = server.bytes_of_tokens()
    assert (read_windows(open_far(server.store, cache=cache), 100, 32) == expected_tokens(100, 32)).all()
    assert server.bytes_of_tokens() == before


EXIT = """
import os, signal, sys, threading, urllib.request
import tokenfeed, tokenfeed.torch, tokenfeed.loader.feed
from far import open_far

def ask(path):
    urllib.request.urlopen(sys.argv[1] + path).read()

def interrupt():
    ask("/stalled")
    os.kill(os.getpid(), signal.SIGINT)

tokenfeed.loader.feed._PATIENCE_SECONDS = 0.1    # `close` itself takes five seconds, which is another defect
store = open_far(sys.argv[1])
loader = tokenfeed.Loader(store.windows(2048), 4, prefetch=2, rank=0, world_size=1)
tokenfeed.observe.publish(loader, sys.argv[2])
loader = tokenfeed.torch.to_device(loader, "cpu")
try:
    next(loader)
    ask("/stall")
    threading.Thread(target=interrupt, daemon=True).start()
    while True:
        next(loader)
except KeyboardInterrupt:
    print("ready", flush=True)
"""


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 2: counters are read when the modules they need are gone"
)
def test_a_process_that_ends_while_a_server_stalls_says_nothing(server, tmp_path):
    """A process ends without a word while its loader reads ahead from a server that stalls."""
    server.put("/store/stall", b"", lambda exchange: (server.answers.clear(), behave(exchange)))
    server.put("/store/stalled", b"", lambda exchange: (server.held.acquire(), behave(exchange)))
    child = run_child(EXIT, server.store, str(tmp_path / "stats.jsonl"), seconds=60)
    assert (child.returncode, child.stderr) == (0, "")


def raised_by(act):
    """What an act raises, whatever it is: a panic of the client of servers is no Exception."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="floor 2: the client of object stores panics")
def test_an_endpoint_without_a_scheme_is_refused(monkeypatch):
    """An endpoint without http:// or https:// is refused in words that say so."""
    for name, value in S3Server("").environment("127.0.0.1:9000").items():
        monkeypatch.setenv(name, value)
    error = raised_by(lambda: tokenfeed.open("s3://bucket/store"))
    assert isinstance(error, ArgumentError), repr(error)
    assert "http://" in str(error)
    assert "https://" in str(error)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="floor 2: a missing bucket is told as a missing manifest")
def test_a_bucket_that_is_not_there_is_named(s3):
    """A bucket that does not exist is a NotFoundError that says which bucket is missing."""
    error = raised_by(lambda: tokenfeed.open("s3://no-such-bucket/store"))
    assert isinstance(error, NotFoundError), repr(error)
    assert re.search(r"bucket '?no-such-bucket", str(error)), str(error)


@pytest.fixture
def s3(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "TOKENFEED_"))]:
        monkeypatch.delenv(name)
    with s3_server() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


def shard_folders(s3):
    return {each["path"].split("/")[1] for chunk in obstore.list(s3.bucket(), "store") for each in chunk}


KILLED = """
import sys
import tokenfeed

writer = tokenfeed.Writer(sys.argv[1], columns={"tokens": "uint16"}, name="killed")
writer.append({"tokens": [1, 2, 3]})
print("ready", flush=True)
writer.close()
"""


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="floor 2: a shard that a killed writer left on an object store counts as being written for ever",
)
def test_remains_of_a_killed_writer_do_not_keep_others_from_sealing(s3):
    """A writer seals a store in which another one was killed between two uploads, and leaves the remains out."""
    with faulty_proxy(s3.url) as proxy:
        proxy.script("tokens.npy", Stall(), ..., method="PUT")  # its bytes arrive, and no answer comes
        environment = {**os.environ, **s3.environment(proxy.url)}
        with subprocess.Popen([sys.executable, "-c", KILLED, "s3://bucket/store"], env=environment) as process:
            while "killed-00000" not in shard_folders(s3):
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
    with tokenfeed.Writer("s3://bucket/store", columns={"tokens": "uint16"}, mode="append", name="alive") as writer:
        writer.append({"tokens": [4, 5, 6]})
    manifest = json.loads(bytes(obstore.get(s3.bucket(), "store/manifest.json").bytes()))
    assert [shard["name"] for shard in manifest.get("shards", [])] == ["alive-00000"]
    assert "killed-00000" in shard_folders(s3)
