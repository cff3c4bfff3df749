"""`prepare` and its workers killed at random moments; disks that are full; two runs at once; Ctrl-C.

KILL_ROUNDS says how often each is killed; a long run sets it to 50.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import tokenfeed
from command_line import COMMAND
from golden import golden_tokenizer
from preparing import damage, make_documents, picture, write_jsonl
from tiers import pick
from tokenfeed.errors import StateError, WorkerError, WriteError
from tokenfeed.preparation import workplace
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.verify import verify

ROUNDS = int(os.environ.get("KILL_ROUNDS", pick(1, 3)))

CODE = """
import sys, tokenfeed
tokenfeed.prepare(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], workers=2, engine="processes",
    slice_bytes=60_000, shard_bytes=50_000,
                  val=0.1, keep=["url"], progress=lambda progress: print(progress.slices, flush=True))
"""
OPTIONS = {"slice_bytes": 60_000, "shard_bytes": 50_000, "val": 0.1, "keep": ["url"]}


def workers_of_this_process():
    """Those of a pool; servers that other tests started are left alone."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "tokenfeed.preparation.engines.pool" in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Some seconds of work in some dozens of slices, a tokenizer, and the store that must come of it."""
    folder = tmp_path_factory.mktemp("text")
    write_jsonl(folder / "text.jsonl", make_documents(900))
    golden_tokenizer("tiktoken").save(folder / "tokenizer")
    tokenfeed.prepare(folder / "text.jsonl", folder / "expected", tokenizer=folder / "tokenizer", workers=0, **OPTIONS)
    return folder


def check(store):
    """Whatever was done is whole, at any moment."""
    if (store / "manifest.json").exists():
        assert damage(store) == []


def wait_until_gone(processes):
    for process in processes:
        try:
            process.wait(20)
        except psutil.TimeoutExpired as error:
            process.kill()
            raise AssertionError(f"{process} outlived its run") from error


def test_kill_minus_nine_of_the_run(text, tmp_path):
    """At random moments, again and again on one store, until it is complete. Its workers end with it."""
    rng = random.Random(ROUNDS)
    store = tmp_path / "store"
    arguments = [sys.executable, "-c", CODE, text / "text.jsonl", store, text / "tokenizer"]
    killed = 0
    while killed < ROUNDS:
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        if rng.random() < 0.8:  # the others are killed while they start
            for _ in range(rng.randrange(4)):
                process.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until_gone(workers)
        check(store)
        killed += 1
        if (store / "manifest.json").exists() and '"shards"' in (store / "manifest.json").read_text():
            assert picture(store) == picture(text / "expected")
            store = tmp_path / f"store{killed}"
            arguments[4] = store
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    assert picture(store) == picture(text / "expected")


def test_kill_minus_nine_of_workers(text, tmp_path):
    """Noticed at once: a fresh worker begins the slice again, and the run ends as if nothing had been."""
    rng = random.Random(ROUNDS)
    total = retries = 0
    while total < ROUNDS:
        store = tmp_path / f"store{total}"
        moments = sorted(rng.sample(range(12), 2))  # after so many slices; one that dies three times is given up
        killed = []

        def kill(progress, moments=moments, killed=killed):
            workers = workers_of_this_process()
            if workers and len(killed) < len(moments) and progress.slices >= moments[len(killed)]:
                worker = rng.choice(workers)
                killed.append(worker.pid)
                worker.kill()

        report = tokenfeed.prepare(
            text / "text.jsonl",
            store,
            tokenizer=text / "tokenizer",
            workers=2,
            engine="processes",
            progress=kill,
            **OPTIONS,
        )
        assert report.is_complete
        assert verify(store).ok
        assert picture(store) == picture(text / "expected")
        assert not workers_of_this_process()
        assert killed
        total += len(killed)
        retries += report.retries
    assert retries > total / 2 or total < 3  # some died between two slices


DEADLY = """
import os, signal
from tokenfeed.preparation import annotates

@annotates()
def annotate(text, kept, tokens):
    if kept["url"].endswith("/567") and not os.environ.get("TAME"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {}
"""


@pytest.mark.slow
def test_a_slice_that_kills_its_worker_is_named(text, tmp_path, monkeypatch):
    """After three attempts. What others did is kept; and once the cause is gone, the rest is done."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    options = {"map": f"{tmp_path / 'deadly.py'}:annotate", **OPTIONS, "tokenizer": text / "tokenizer"}
    with pytest.raises(WorkerError, match=r"slice \d+ of text\.jsonl .* 3 attempts.*signal 9, SIGKILL"):
        tokenfeed.prepare(text / "text.jsonl", tmp_path / "store", workers=2, **options)
    check(tmp_path / "store")
    assert not workers_of_this_process()
    monkeypatch.setenv("TAME", "1")
    report = tokenfeed.prepare(text / "text.jsonl", tmp_path / "store", workers=2, **options)
    assert report.is_complete
    assert 0 < report.made < report.num_slices
    assert verify(tmp_path / "store").ok


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "num_processes"), [("processes", 2), ("local", 0)])
def test_control_c(text, tmp_path, engine, num_processes):
    """Stops at once, says how to go on, and leaves nobody behind."""
    store = tmp_path / "store"
    command = [COMMAND, "prepare", text / "text.jsonl", "-o", store, "--tokenizer", text / "tokenizer", "-w", "2"]
    command += ["--engine", engine]
    write_jsonl(tmp_path / "more.jsonl", make_documents(12_000, seed=1))
    command[2:3] = [text / "text.jsonl", tmp_path / "more.jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    deadline = time.monotonic() + 60
    while not list(store.glob("*-train-*/tokens.npy")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == num_processes
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "goes on where it stopped" in errors
    assert "Traceback" not in errors
    wait_until_gone(workers)
    check(store)


def test_two_runs_at_once(text, tmp_path, monkeypatch):
    """The second is refused, as long as the first or one of its workers is there."""
    monkeypatch.setattr(workplace, "_PATIENCE_SECONDS", 0.2)
    (tmp_path / "store" / ".prepare").mkdir(parents=True)
    other = Workplace(tmp_path / "store").lock
    options = {"tokenizer": text / "tokenizer", "workers": 0, **OPTIONS}
    for exclusive in (True, False):
        other.take(exclusive=exclusive)
        with pytest.raises(StateError, match="another run is preparing"):
            tokenfeed.prepare(text / "text.jsonl", tmp_path / "store", **options)
    tokenfeed.prepare(text / "text.jsonl", tmp_path / "store", part=(0, 5), **options)  # parts work side by side
    other.release()
    assert tokenfeed.prepare(text / "text.jsonl", tmp_path / "store", **options).is_complete
    assert not (tmp_path / "store" / ".prepare" / "lock").exists()


@pytest.mark.slow
def test_two_runs_at_once_where_there_are_no_locks(text, tmp_path):
    """As on some network file systems: one of them may fail, and the store is complete, or is said not to be."""
    code = CODE.replace(
        "import sys, tokenfeed",
        """
import errno, fcntl, sys, tokenfeed
def flock(*_):
    raise OSError(errno.ENOLCK, "no locks available")
fcntl.flock = flock
""",
    ).replace("workers=2", "workers=0")
    store = tmp_path / "store"
    arguments = [sys.executable, "-c", code, text / "text.jsonl", store, text / "tokenizer"]
    runs = [subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(run.communicate()[1], run.returncode) for run in runs]
    for errors, status in ended:
        assert status == 0 or "taken over by another writer" in errors or "cannot write" in errors, errors
    if any(status == 0 for _, status in ended):
        assert verify(store).problems == []
    tokenfeed.prepare(text / "text.jsonl", store, tokenizer=text / "tokenizer", workers=0, **OPTIONS)
    assert picture(store) == picture(text / "expected")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_disk_that_is_full(text, tmp_path, workers):
    """Files may not grow beyond 20,000 bytes. The error says which; the store is whole; with more room it goes on."""
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import tokenfeed
from tokenfeed.errors import WriteError
from tokenfeed.kernels.checksum import checksum
checksum(b"")
tokenizer = tokenfeed.Tokenizer.load({str(text / "tokenizer")!r}, engine="tiktoken")  # others write a file of their own
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    tokenfeed.prepare({str(text / "text.jsonl")!r}, sys.argv[1], tokenizer=tokenizer, workers={workers}, **{OPTIONS!r})
except WriteError as error:
    assert "EFBIG" in str(error) and error.filename.startswith(sys.argv[1]), error
else:
    raise AssertionError("nothing was too large")
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "store"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "store")
    tokenfeed.prepare(text / "text.jsonl", tmp_path / "store", tokenizer=text / "tokenizer", workers=0, **OPTIONS)
    assert picture(tmp_path / "store") == picture(text / "expected")


def test_a_store_that_cannot_be_written(text, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        tokenfeed.prepare(text / "text.jsonl", tmp_path / "file" / "store", tokenizer=text / "tokenizer")
