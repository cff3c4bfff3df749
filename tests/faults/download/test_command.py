"""`tokenfeed download`, as a user types it."""

import json
import os
import pty
import subprocess

from command_line import COMMAND, run, run_process
from downloads import contents, put_shards
from flaky_server import Slow


def test_the_command(server, tmp_path):
    data, address = put_shards(server, 5)
    done = run_process("download", address, "-n", 2, "-w", 2, "-o", tmp_path / "data")
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
    assert "shard_2.parquet: cannot download http" in done.stdout
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
