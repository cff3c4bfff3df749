"""`top` and `doctor`, as a user types them."""

import json
import os
import pty
import signal
import subprocess
import time
from importlib import metadata

import pytest

import tokenfeed
from command_line import COMMAND, run
from tokenfeed import observe


@pytest.fixture
def published(store_path, tmp_path):
    """A run file beside a stats file that a loader has just written to."""
    loader = tokenfeed.Loader(
        tokenfeed.open(store_path).windows(16), 4, rank=0, world_size=1, run=tmp_path / "run.jsonl"
    )
    next(loader)
    with observe.publish(loader, tmp_path / "run.stats.jsonl", every=0.05):
        while (seen := observe.read_snapshots(tmp_path / "run.stats.jsonl"))[-1].stats.batches <= 10 or len(seen) < 4:
            next(loader)
            time.sleep(0.01)
        yield tmp_path / "run.jsonl"
    loader.close()


def test_top_once(published):
    done = run("top", published, "--once")
    assert done.returncode == 0, done.stderr
    for text in ("rank", "0 of 1", str(os.getpid()), "tokens/s", "waits", "of 32"):
        assert text in done.stdout
    assert "Nothing to gain" in done.stdout or "The loop waits" in done.stdout


def test_top_json(published):
    told = json.loads(run("top", published.with_name("run.stats.jsonl"), "--json").stdout)
    (loader,) = told["loaders"]
    assert loader["state"] == "runs"
    assert loader["rates"]["items_per_second"] > 0
    assert loader["last"]["stats"]["batches"] > 5
    assert loader["words"]


def test_top_live_ends_by_ctrl_c(published):
    """In a real terminal: frame after frame, until it is interrupted."""
    control, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160", "LINES": "40", "TERM": "xterm"}
    command = [COMMAND, "top", published, "--every", "0.1"]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, stdin=terminal, env=environment) as process:
        os.close(terminal)
        seen, deadline = b"", time.monotonic() + 60
        while seen.count(b"tokens/s before") < 3:
            assert time.monotonic() < deadline
            seen += os.read(control, 65536)
        process.send_signal(signal.SIGINT)
        os.set_blocking(control, False)
        while process.poll() is None:
            assert time.monotonic() < deadline
            try:
                os.read(control, 65536)
            except OSError:
                time.sleep(0.01)
        assert process.returncode == 0
    os.close(control)


def test_doctor():
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["tokenfeed"]["found"] == tokenfeed.__version__
    assert checks["numba"]["status"] == "ok"
    assert "__pycache__" in checks["kernels"]["found"]
    assert "usable of" in checks["cores"]["found"]
    assert all(check["status"] in ("ok", "note", "problem") for check in told["checks"])
    assert all(check["advice"] for check in told["checks"] if check["status"] != "ok")


def test_doctor_finds_what_is_missing(monkeypatch):
    """One package that is needed, and one that is not."""
    found = metadata.version

    def version(name):
        if name in ("msgpack", "pyarrow"):
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "version", version)
    done = run("doctor")
    assert done.returncode == 1, done.stderr
    assert "tokenfeed does not work here: msgpack" in done.stdout
    assert "pip install 'tokenfeed[text]', if you need it." in done.stdout
    assert "Traceback" not in done.stderr
