"""Processes that end while requests are under way: with their own status, and without a word.

A thread of obstore that finds no interpreter aborts the process, and one that finds its event loop closed prints a
traceback. Busy threads and a short switch interval make both likely.
"""

import subprocess
import sys

import numpy as np
import pytest

import tokenfeed
from flaky_server import FlakyServer
from tiers import slow

JOB = """
import os, random, signal, sys, threading, time
import tokenfeed

def busy():
    while True:
        pass

url, how = sys.argv[1:]
sys.setswitchinterval(1e-6)
view = tokenfeed.open(url, remote=tokenfeed.Remote(block_bytes=512, gap_bytes=0)).windows(8)
for _ in range(4):
    threading.Thread(target=busy, daemon=True).start()
loader = tokenfeed.Loader(view, batch_size=64, prefetch=4)
next(loader)
time.sleep(random.random() / 20)
if how == "with":
    loader.close()
elif how == "exception":
    raise SystemExit(7)
elif how == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
"""
STATUS = {"with": 0, "without": 0, "exception": 7, "interrupt": -2}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with tokenfeed.Writer(folder, columns={"tokens": "uint16"}, name="a") as writer:
        writer.append({"tokens": np.arange(60_000)})
    with FlakyServer() as server:
        server.put_folder(folder, "/store")
        yield server.url("/store")


def end(url: str, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", JOB, url, how], capture_output=True, timeout=120)
    assert done.returncode in (STATUS[how], 130 if how == "interrupt" else STATUS[how]), done.stderr
    noise = [line for line in done.stderr.splitlines() if b"KeyboardInterrupt" not in line]
    assert how == "interrupt" or noise == []
    assert not any(word in done.stderr for word in (b"closed", b"Fatal", b"ignored", b"Exception in thread"))


@pytest.mark.parametrize("how", ["with", "interrupt", *slow("without", "exception")])
def test_an_exit_under_load(url, how):
    end(url, how)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", STATUS)
def test_many_exits_under_load(url, how):
    for _ in range(50):
        end(url, how)
