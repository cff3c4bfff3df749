"""`top`, `doctor`, `bench` and `demo`, as a user types them."""

import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

import tokenfeed
from command_line import COMMAND, run, run_process
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
    assert isinstance(told["gpus"], list)


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


def test_doctor(tmp_path):
    secret = "a-value-never-to-be-seen"
    done = run("doctor", "--json", AWS_ACCESS_KEY_ID=secret, AWS_SECRET_ACCESS_KEY=secret, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["numba"]["status"] == "ok"
    assert "__pycache__" in checks["kernels"]["found"]
    assert "AWS_SECRET_ACCESS_KEY" in checks["credentials"]["found"]
    assert "signed" in checks["credentials"]["found"]
    assert "tiktoken" in checks["tokenizer engines"]["found"]
    assert str(tmp_path) in checks["cache folder"]["found"]
    assert all(check["status"] in ("ok", "note", "problem") for check in told["checks"])
    assert all(check["advice"] for check in told["checks"] if check["status"] != "ok")


def test_doctor_finds_what_stops_tokenfeed(tmp_path):
    """A package that is broken, and a folder for temporary files that is not there."""
    (tmp_path / "ways" / "tiktoken").mkdir(parents=True)
    (tmp_path / "ways" / "tiktoken" / "__init__.py").write_text("raise ImportError('it is broken')")
    done = run_process("doctor", PYTHONPATH=str(tmp_path / "ways"), AWS_SECRET_ACCESS_KEY="secret-without-key")
    assert done.returncode == 1, done.stderr
    assert "tokenfeed does not work here: tokenizer engines" in done.stdout
    assert "set AWS_ACCESS_KEY_ID" in done.stdout
    assert "secret-without-key" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_bench(store_path):
    options = ("--length", "16", "--batch", "8", "--seconds", "0.6")
    told = json.loads(run("bench", store_path, *options, "--json").stdout)
    ways = {way["name"]: way for way in told["ways"]}
    assert list(ways) == ["pread", "mmap", "loader"]
    for way in ways.values():
        assert way["batches"] > 0
        assert way["windows"] == 8 * way["batches"]
        assert way["items"] == 16 * way["windows"]
        assert way["windows_per_second"] == pytest.approx(way["windows"] / way["seconds"], rel=0.01)
        assert way["seconds_to_first"] > 0
    done = run("bench", store_path, *options)
    assert done.returncode == 0, done.stderr
    assert "windows/s" in done.stdout
    done = run("bench", store_path, "--length", "1000000000")
    assert done.returncode == 2
    assert "smaller length" in done.stderr


def test_bench_of_a_foreign_file(tmp_path):
    (tmp_path / "train.bin").write_bytes(bytes(20_000))
    done = run_process(
        "bench", tmp_path / "train.bin", "--dtype", "uint16", "--length", "64", "--seconds", "0.3", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ways"]) == 3


def test_demo(tmp_path):
    kept = tmp_path / "kept"
    done = run_process(
        "demo", "--keep", kept, "--documents", "100", "--batches", "50", "--seconds", "1", TMPDIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "million tokens/s" in done.stdout
    assert re.search(r"✓ an epoch of ([0-9,]+) samples delivered \1, \1 of them different", done.stdout)
    after, before = map(float, re.search(r"([0-9.]+) bits per byte, ([0-9.]+) before training", done.stdout).groups())
    assert 1 < after < before < 8
    assert re.search(r"http://127\.0\.0\.1:[0-9]+/\?token=", done.stdout)
    assert "the page answers" in done.stdout
    assert tokenfeed.open(kept / "store").num_items > 10_000
    assert observe.read_snapshots(kept / "run.jsonl")[-1].ended
    assert [path.name for path in tmp_path.iterdir()] == ["kept"], "nothing else is left behind"
    done = run("demo", "--keep", kept)
    assert done.returncode == 2
    assert "exists already" in done.stderr
