"""What a loader waits for, and how waits end. What is wrong today.

Whatever may hang does so in a process of its own, which is killed at the end of the test.
"""

import contextlib
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import command_line
import tokenfeed
from flaky_server import FlakyServer, Stall
from tiers import slow
from tokenfeed.observe import read_snapshots

PATIENCE = 60
"""Seconds until a test gives up on what must happen, on however busy a machine."""
DEADLINE = 4
"""Seconds in which what takes 0.1 s must be done. Today `close` waits for a stuck thread for 5 s."""

SCRIPT = """
import contextlib, os, sys, threading
import tokenfeed
from tokenfeed.observe import publish

path, what, stats, until = sys.argv[1:]


def hold(batch):
    print("stuck", flush=True)
    threading.Event().wait()


def wait():
    with contextlib.suppress(tokenfeed.errors.TokenfeedError):  # that it was closed
        next(loader)


view = tokenfeed.open(path).windows(4)
loader = tokenfeed.Loader(view, 4, collate=hold if what == "collate" else None, rank=3, world_size=4)
publish(loader, stats, every=0.05)
waiter = threading.Thread(target=wait, daemon=True)
waiter.start()
sys.stdin.readline()
closing = threading.Thread(target=loader.close, daemon=True)
closing.start()
(closing if until == "close" else waiter).join()
os._exit(0)
"""


def wait_until(is_so):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def stuck(what, folder, *, until="close"):
    """A process whose loader waits in `next`, for `collate` or for a server; its live numbers are in folder/stats."""
    with tokenfeed.Writer(folder / "store", columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": np.arange(4001)})
    with FlakyServer() as server:
        for path in (folder / "store").rglob("*.*"):
            if path.is_file():
                script = (Stall(-1), ...) if path.name == "tokens.npy" else ()
                server.put(f"/{path.relative_to(folder)}", path.read_bytes(), *script)
        path = folder / "store" if what == "collate" else server.url("/store")
        command = [sys.executable, "-c", SCRIPT, str(path), what, str(folder / "run.stats.jsonl"), until]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                if what == "collate":
                    assert "stuck" in process.stdout.readline()
                else:
                    wait_until(lambda: any("tokens.npy" in request.path for request in server.requests))
                yield process, server
            finally:
                process.kill()


def watch(folder):
    """What `tokenfeed top` says of a loader, once its numbers were written a few times more."""
    stats = folder / "run.stats.jsonl"
    enough = len(read_snapshots(stats)) + 4
    wait_until(lambda: len(read_snapshots(stats)) >= enough)
    done = command_line.run("top", stats, "--once", "--span", 0.1)  # since nothing has moved any more
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 4: what waits for collate is told to wait for the disk"
)
def test_a_wait_for_collate_is_told(tmp_path):
    """`top` says that a loader waits for `collate` while it does, and blames no disk."""
    with stuck("collate", tmp_path):
        told = watch(tmp_path)
    assert "collate" in told
    assert "disk" not in told


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 4: requests count when they end, so a stalled server has none"
)
def test_a_wait_for_a_server_is_told(tmp_path):
    """`top` says which server a loader waits for while it does, and blames no disk."""
    with stuck("server", tmp_path) as (_, server):
        told = watch(tmp_path)
        address = server.url("").removeprefix("http://")
    assert address in told
    assert "disk" not in told


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="floor 4: a `next` that waits for long says nothing")
def test_a_long_wait_is_logged_once(tmp_path, monkeypatch):
    """A `next` that has waited for TOKENFEED_STALL seconds logs what it waits for and all stacks, once."""
    monkeypatch.setenv("TOKENFEED_STALL", "0.2")
    logged, records = threading.Event(), []

    class Note(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())
            logged.set()

    def hold_the_batch(batch):
        logged.wait(2)  # if nothing is logged, the test shall end nevertheless
        threading.Event().wait(0.5)  # time for a second message, which must not come

    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": np.arange(101)})
    loader = tokenfeed.Loader(
        tokenfeed.open(tmp_path / "store").windows(4), 4, collate=hold_the_batch, rank=0, world_size=1, prefetch=1
    )
    handler = Note()
    logging.getLogger().addHandler(handler)
    try:
        next(loader)
    finally:
        logging.getLogger().removeHandler(handler)
        loader.close()
    told = [each for each in records if "collate" in each]
    assert len(told) == 1
    assert "hold_the_batch" in told[0]
    assert "test_a_long_wait_is_logged_once" in told[0]


@pytest.mark.xfail(
    strict=True, raises=subprocess.TimeoutExpired, reason="floor 4: close waits five seconds for a thread that is stuck"
)
@pytest.mark.parametrize("what", ["collate", *slow("server")])
def test_close_ends_at_once(what, tmp_path):
    """`close` ends at once though a thread of the loader is stuck."""
    with stuck(what, tmp_path, until="close") as (process, _):
        process.communicate("\n", timeout=DEADLINE)


@pytest.mark.xfail(
    strict=True, raises=subprocess.TimeoutExpired, reason="floor 4: a `next` that waits is left waiting by close"
)
@pytest.mark.parametrize("what", ["collate", *slow("server")])
def test_close_ends_a_wait(what, tmp_path):
    """A `next` that waits in one thread ends when another thread closes the loader."""
    with stuck(what, tmp_path, until="wait") as (process, _):
        process.communicate("\n", timeout=DEADLINE)
