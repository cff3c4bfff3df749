"""Parts that were left behind, processes that are killed or work at once, disks that are full; and nginx."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from command_line import COMMAND
from downloads import SIZE, contents, get, label, make_file, put_shards, ranges, size_of, start, wait_until
from flaky_server import Break, Slow, Stall, Status
from servers import nginx_server
from tokenfeed.errors import WriteError


@pytest.mark.parametrize(
    ("part", "note", "asked"),
    [
        (70_000, {"etag": "right", "size": SIZE, "sha256": None}, "bytes=70000-"),
        (70_000, {"etag": '"old"', "size": SIZE, "sha256": None}, ["bytes=70000-", None]),
        (70_000, {"etag": "right", "size": 60_000, "sha256": None}, None),
        (70_000, {"etag": None, "size": SIZE, "sha256": None}, None),
        (70_000, {"etag": 5, "size": [], "sha256": None}, None),
        (70_000, None, None),
        (0, {"etag": '"old"', "size": 5, "sha256": None}, None),
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
    assert ranges(server, "/shard_0.parquet") == (asked if isinstance(asked, list) else [asked])


def test_a_whole_part_needs_no_request(server, tmp_path):
    """Killed between the last byte and the rename; and between the rename and the removal of the note."""
    data, address = put_shards(server, 2)
    note = {"etag": server.resources["/shard_0.parquet"].etag, "size": SIZE, "sha256": None}
    (tmp_path / "shard_0.parquet.tmp").write_bytes(data["shard_0.parquet"])
    (tmp_path / "shard_0.parquet.tmp.json").write_text(json.dumps(note))
    (tmp_path / "shard_1.parquet").write_bytes(data["shard_1.parquet"])
    (tmp_path / "shard_1.parquet.tmp.json").write_text(json.dumps(note))
    assert get(address, tmp_path).ok
    assert contents(tmp_path) == data
    assert server.requests == []


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
        done = get(address, tmp_path, timeout=0.4)
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
    assert ("shard_0.parquet" in get(address, tmp_path).skipped) == arrives
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
    """All workers wait: for bytes, for headers, for the time to try again. None of them keeps it from ending."""
    _, address = put_shards(server, 4, Stall(1000))
    server.resources["/shard_3.parquet"].script = [Stall(-1)]
    server.resources["/shard_1.parquet"].script = [Status(503), ...]
    command = [str(COMMAND), "download", address, "-o", str(tmp_path), "--timeout", "240"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(lambda: len(server.requests) >= 4 and size_of(tmp_path / "shard_0.parquet.tmp") == 1000)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)  # a second is promised, and 30 are the shortest wait
    assert process.returncode == 130, errors
    server.resources["/shard_1.parquet"].script = []
    assert get(address, tmp_path).ok
    assert "bytes=1000-" in ranges(server, "/shard_0.parquet")


def test_no_thread_is_left_behind(server, tmp_path):
    """When something else goes wrong while a worker waits for bytes."""
    _, address = put_shards(server, 3, Stall(1000))
    server.resources["/shard_1.parquet"].script = [Slow(1000, 0.05)]
    before = set(threading.enumerate())

    def fail(arrival):
        if size_of(tmp_path / "shard_0.parquet.tmp") == 1000:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        get(address, tmp_path, progress=fail, timeout=100.0)
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if "download" in name] == []


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


@pytest.mark.slow
def test_nginx_and_kill_minus_nine(tmp_path):
    """A second real server, whose ranges, ETags and logs nobody here wrote; slow: 400 kB/s for each connection.

    Four at a time, killed in mid-file; the second process asks for the rest alone.
    """
    www, log, folder = tmp_path / "www", tmp_path / "access.log", tmp_path / "data"
    data = {f"shard_{number}.parquet": make_file(number, 400_000) for number in range(4)}
    www.mkdir()
    for name, content in data.items():
        (www / name).write_bytes(content)
    options = f"""
        log_format bytes '$uri $status $body_bytes_sent "$http_range" "$http_if_range"'; access_log {log} bytes;
        limit_rate 400k; output_buffers 1 8k; sendfile off;
    """
    with nginx_server(www, tmp_path / "nginx", options) as url:
        had = kill_and_go_on(f"{url}/shard_{{0..3}}.parquet", folder, data)
        wait_until(lambda: log.read_text().count("shard_3") >= 1)
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    second = [line for line in lines if line[0] == "/shard_0.parquet" and line[1] == "206"]
    assert [(int(sent), rest.split('"')[1]) for _, _, sent, rest in second] == [(400_000 - had, f"bytes={had}-")]


def kill_and_go_on(address, folder, data):
    """How much of the first file the process had that was killed."""
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
    return had
