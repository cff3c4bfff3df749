"""Writers that share a store or a name, at work or killed; on a disk, and on an object store."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import pytest

import tokenfeed
from servers import s3_server
from tiers import slow
from tokenfeed.errors import ArgumentError, WriteError
from tokenfeed.storage import lease, objects
from tokenfeed.store.sealing import list_shards, load_manifest
from tokenfeed.store.verify import verify

COLUMNS = {"columns": {"tokens": "uint16"}}


@pytest.fixture(params=["disk", "memory", *slow("bucket")])
def place(request, tmp_path, monkeypatch):
    """A store on a disk, among the objects of this process, or on an S3 server."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2.0)
    if request.param != "bucket":
        yield str(tmp_path / "store") if request.param == "disk" else f"memory://bucket/{uuid.uuid4().hex}"
        return
    with s3_server() as s3:
        s3.use(monkeypatch)
        yield "s3://bucket/store"


def tokens(path):
    store = tokenfeed.open(path)
    return store.windows(store.num_items, extra=0)[0].tokens.tolist()


def test_a_name_is_one_writers_own(place):
    """The second is refused and disturbs nothing, before and after the first has committed."""
    first = tokenfeed.Writer(place, name="a", shard_bytes=1, **COLUMNS)
    first.append({"tokens": [1]})
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"another writer|exists already"):  # noqa: SIM117
            with tokenfeed.Writer(place, name="a", mode="append", **COLUMNS) as second:
                second.append({"tokens": [9]})
        first.append({"tokens": [2]})
    first.close()
    assert tokens(place) == [1, 2, 2]
    assert verify(place).problems == []
    with pytest.raises(ArgumentError, match="exists already"):  # noqa: SIM117
        with tokenfeed.Writer(place, name="a", mode="append", **COLUMNS) as second:
            second.append({"tokens": [9]})
    with tokenfeed.Writer(place, name="b", mode="append", **COLUMNS) as other:
        other.append({"tokens": [3]})
    assert tokens(place) == [1, 2, 2, 3]


KILLED = """
import sys, time, tokenfeed
writer = tokenfeed.Writer(sys.argv[1], name="a", columns={"tokens": "uint16"}, **eval(sys.argv[2]))
writer.append({"tokens": [9] * int(sys.argv[3])})
print("written", flush=True)
time.sleep(100)
"""


def kill_writer(place, options="{}", items=1000, **environment):
    arguments = [sys.executable, "-c", KILLED, place, options, str(items)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env={**os.environ, **environment})
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("place", ["disk", *slow("bucket")], indirect=True)  # other processes do not have "memory"
def test_a_killed_writer_blocks_nobody_for_long(place):
    """On a disk its name is free at once; in a bucket when its lease has not been renewed for a while."""
    kill_writer(place)
    if place.startswith("s3:"):
        with pytest.raises(
            ArgumentError, match=r"another writer named 'a' is at work on .*: process .* free 2 seconds"
        ):
            tokenfeed.Writer(place, name="a", **COLUMNS)
        time.sleep(4)
    with tokenfeed.Writer(place, name="a", **COLUMNS) as writer:
        writer.append({"tokens": [1, 2]})
    assert tokens(place) == [1, 2]
    if place.startswith("s3:"):
        assert objects.list_keys(f"{place}/.writers") == []


def test_a_writer_that_lost_its_name_commits_nothing(place):
    """It was stopped for longer than its lease; or its folder was removed under it."""
    first = tokenfeed.Writer(place, name="a", mode="append", **COLUMNS)
    first.append({"tokens": [1]})
    if "://" in place:
        first._lease._stop.set()
        time.sleep(4)
    else:
        (tokenfeed.storage.folder.LocalFolder(place).local / "a-00000").rename(f"{place}/gone")
    with tokenfeed.Writer(place, name="a", mode="append", **COLUMNS) as second:
        second.append({"tokens": [2]})
    with pytest.raises(WriteError, match="taken over by another writer"):
        first.close()
    assert "a-00000" in list_shards(place).committed
    tokenfeed.seal(place)
    assert tokens(place) == [2]


def test_names_are_checked_with_what_is_added_to_them(place):
    with pytest.raises(ArgumentError, match=r"name has 195 characters.* at most 190"):
        tokenfeed.Writer(place, name="a" * 195, **COLUMNS)
    with tokenfeed.Writer(place, name="a" * 190, **COLUMNS) as writer:
        writer.append({"tokens": [1]})
    assert tokens(place) == [1]


@pytest.mark.parametrize("place", ["disk", *slow("bucket")], indirect=True)  # other processes do not have "memory"
def test_a_script_that_was_killed_does_not_write_twice(place):
    """Shards of an unsealed store, and nobody at work."""
    kill_writer(place, '{"shard_bytes": 1}')
    with tokenfeed.Writer(place, name="b", mode="append", seal=False, **COLUMNS) as writer:
        writer.append({"tokens": [1]})
    with pytest.raises(ArgumentError, match=r'1 shard of a writer that is done or was killed.* mode="append" '):
        tokenfeed.Writer(place, **COLUMNS)
    with tokenfeed.Writer(place, mode="append", name="c", **COLUMNS) as writer:
        writer.append({"tokens": [2]})
    assert tokens(place) == [1, 2]


def test_writers_join_those_at_work(tmp_path):
    """Also after these have committed shards."""
    first = tokenfeed.Writer(tmp_path, name="a", shard_bytes=1, **COLUMNS)
    first.append({"tokens": [1]})
    first.append({"tokens": [2]})
    with tokenfeed.Writer(tmp_path, name="b", **COLUMNS) as second:
        second.append({"tokens": [3]})
    first.close()
    assert tokens(tmp_path) == [1, 2, 3]


def test_what_a_killed_writer_left_does_not_keep_others_from_sealing(tmp_path):
    kill_writer(str(tmp_path))
    assert list_shards(tmp_path).unfinished == ["a-00000"]
    with tokenfeed.Writer(tmp_path, name="b", **COLUMNS) as writer:
        writer.append({"tokens": [1]})
    assert [entry.name for entry in load_manifest(tmp_path).shards] == ["b-00000"]


@pytest.mark.slow
def test_a_killed_writer_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    with s3_server() as s3:
        kill_writer("s3://bucket/store", items=5_000_000, TMPDIR=str(tmp_path), **s3.environment())
        assert list(tmp_path.iterdir()) == []
        s3.use(monkeypatch)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        writer = tokenfeed.Writer("s3://bucket/other", **COLUMNS)
        with pytest.raises(WriteError, match="missing"):
            writer.append({"tokens": [1]})
