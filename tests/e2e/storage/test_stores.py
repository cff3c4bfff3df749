"""Stores in object storage and on HTTP servers: the same as their local twins, whoever writes them and is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

import tokenfeed
from servers import Status, faulty_proxy
from tiers import pick
from tokenfeed.errors import ArgumentError, NotAStoreError, StateError, WriteError
from tokenfeed.storage import objects
from tokenfeed.storage.folder import open_folder
from tokenfeed.store.sealing import list_shards, load_manifest
from tokenfeed.store.verify import verify

KILLS = int(os.environ.get("KILL_ROUNDS", pick(1, 4)))


@pytest.fixture(params=["memory", "s3"])
def remote(request):
    """An empty folder that can be written to."""
    if request.param == "s3":
        request.getfixturevalue("s3_environment")
    return f"{'memory://tests' if request.param == 'memory' else 's3://bucket'}/{uuid.uuid4().hex}"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where shards of remote stores are written before they are uploaded."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def download(uri, folder):
    for key in objects.list_keys(uri):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(open_folder(uri).read(key))
    return folder


def write(path, *values, **options):
    given = {"mode": "append", "columns": {"tokens": "uint16"}, "spans": {"documents": "json"}}
    with tokenfeed.Writer(path, **given, **options) as writer:
        for value in values:
            writer.append({"tokens": value}, documents=len(value))


def check_same(remote, local):
    here, there = tokenfeed.open(local), tokenfeed.open(remote)
    assert there.identity == here.identity
    assert there.num_items == here.num_items
    assert there.columns == here.columns
    assert list(there.spans) == list(here.spans)
    assert there.splits == here.splits
    assert [shard.name for shard in there.shards] == [shard.name for shard in here.shards]


def test_the_same_bytes_as_a_local_store(remote, plain, store_path, tmp_path, temporary):
    plain.write(remote, shard_bytes=40_000, name="part")
    check_same(remote, store_path)
    copy = download(remote, tmp_path / "copy")
    files = {path.relative_to(store_path): path.read_bytes() for path in store_path.rglob("*") if path.is_file()}
    assert files == {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert list(temporary.iterdir()) == []
    for quick in (True, False):
        report = verify(remote, quick=quick)
        assert (report.problems, report.notes) == ([], [])
        assert report.num_files == verify(store_path).num_files
    shard = tokenfeed.open(remote).shards[0]
    assert shard.column_part("tokens").path == f"{remote}/part-00000/tokens.npy"
    assert tokenfeed.open(remote).paths == [remote]


def test_verifying_finds_what_is_wrong(remote, temporary):
    write(remote, [1, 2, 3], [4, 5], name="part", shard_bytes=1)
    folder = open_folder(remote)
    good = folder.read("part-00000/tokens.npy")
    folder.replace("part-00000/tokens.npy", good[:-1] + b"?")
    folder.replace("part-00001/tokens.npy", good)
    objects.delete(folder.path("part-00001/documents.payload.bin"))
    problems = verify(remote).problems
    assert [path for path in ("part-00000/tokens.npy: checksum", "part-00001/tokens.npy: has") if path in str(problems)]
    assert "part-00001/documents.payload.bin" in str(problems)
    assert len(problems) == 3


def test_writers_go_on_where_others_stopped(remote, tmp_path, temporary):
    """Sealing, unsealing, splits, and an unsealed store that opens by its list."""
    for path in (remote, tmp_path / "local"):
        write(path, [1, 2, 3], name="a", split="train")
        assert load_manifest(path).shards is not None
        given = {"mode": "append", "columns": {"tokens": "uint16"}, "spans": {"documents": "json"}}
        writer = tokenfeed.Writer(path, **given, name="b", split="val", shard_bytes=1)
        writer.append({"tokens": [4]}, documents=1)
        writer.append({"tokens": [5]}, documents=1)  # which commits the one before
        assert load_manifest(path).shards is None
        assert tokenfeed.open(path, split="all").num_items == 4
        writer.abort()
        write(path, [7], name="c")
        with pytest.raises(ArgumentError, match="exists already"):
            write(path, [8], name="c")
        with pytest.raises(ArgumentError, match="has columns"):
            tokenfeed.Writer(path, columns={"tokens": "uint32"}, spans={"documents": "json"})
        tokenfeed.seal(path)
        assert list(tokenfeed.open(path).splits) == ["", "train", "val"]
        versions = tokenfeed.open(path, split="all").versions
        assert (versions[0].items, versions[-1].items) == (3, 5)
        assert tokenfeed.open(path, split="all", version=1).identity == versions[0].identity
    check_same(remote, tmp_path / "local")
    assert list(temporary.iterdir()) == []


def test_a_complete_store_is_not_written_twice(remote, temporary):
    for name in "ab":
        write(remote, [1, 2, 3], name=name)
    options = {"columns": {"tokens": "uint16"}, "spans": {"documents": "json"}}
    with pytest.raises(ArgumentError, match="complete store of 6 items"):
        tokenfeed.Writer(remote, **options)


def test_nothing_is_left_by_a_writer_that_aborts(remote, temporary):
    with pytest.raises(KeyboardInterrupt), tokenfeed.Writer(remote, columns={"tokens": "u1"}) as writer:
        writer.append({"tokens": [1]})
        assert list(temporary.iterdir()) == []  # the files have no names
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []
    assert objects.list_keys(remote) == ["manifest.json"]
    with pytest.raises(StateError, match="no finished shard"):
        tokenfeed.open(remote)


def test_an_upload_that_fails_leaves_a_store_that_opens(s3, s3_environment, monkeypatch, temporary):
    path = f"s3://bucket/{uuid.uuid4().hex}"
    write(path, [1, 2], name="a")
    with faulty_proxy(s3.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.script("b-00000/documents", Status(403), ..., method="PUT")
        with pytest.raises(WriteError, match="AWS_ACCESS_KEY_ID"):
            write(path, [3], name="b")
    assert list(temporary.iterdir()) == []
    assert tokenfeed.open(path).num_items == 2
    assert list_shards(path) == (["a-00000"], [])  # what had been uploaded is gone again


def test_combined_stores_here_and_there(remote, tmp_path, temporary):
    write(f"{remote}/a", [1, 2], name="a")
    write(f"{remote}/b", [3], name="b")
    write(tmp_path / "c", [4, 5], name="c")
    tokenfeed.combine([f"{remote}/a", f"{remote}/b"], f"{remote}/ab")
    assert [store.uri for store in load_manifest(f"{remote}/ab").stores] == ["../a", "../b"]
    parts = [f"{remote}/a", f"{remote}/b", tmp_path / "c"]
    tokenfeed.combine(parts, tmp_path / "abc")
    tokenfeed.combine(parts, f"{remote}/abc")
    for path in (tmp_path / "abc", f"{remote}/abc"):
        assert tokenfeed.open(path).num_items == 5
        assert verify(path).problems == []
    assert tokenfeed.open(tmp_path / "abc").identity == tokenfeed.open(f"{remote}/abc").identity
    assert tokenfeed.open([f"{remote}/a", tmp_path / "c"]).num_items == 4
    with pytest.raises(ArgumentError, match="already holds a store"):
        tokenfeed.combine([f"{remote}/a"], f"{remote}/ab")
    write(f"{remote}/b", [9], name="b2")
    assert tokenfeed.open(tmp_path / "abc").num_items == 5, "the versions that were combined"


def test_stores_on_an_http_server(www, tmp_path):
    folder, url = www
    name = uuid.uuid4().hex
    for one in "ab":
        write(folder / name / one, [1, 2, 3], name=one)
    tokenfeed.combine([folder / name / one for one in "ab"], folder / name / "both")
    for one in ("a", "b", "both"):
        check_same(f"{url}/{name}/{one}", folder / name / one)
        assert verify(f"{url}/{name}/{one}").problems == []
    options = {"columns": {"tokens": "uint16"}, "spans": {"documents": "json"}}
    writer = tokenfeed.Writer(folder / name / "a", mode="append", **options)
    writer.append({"tokens": [1]})
    writer._commit()
    with pytest.raises(ArgumentError, match=r"not sealed.*tokenfeed\.seal"):
        tokenfeed.open(f"{url}/{name}/a")
    assert "not sealed" in verify(f"{url}/{name}/a").problems[0]
    writer.close()
    for act in (
        lambda: tokenfeed.Writer(f"{url}/{name}/new", columns={"tokens": "u1"}),
        lambda: tokenfeed.combine([f"{url}/{name}/a"], f"{url}/{name}/new"),
        lambda: tokenfeed.seal(f"{url}/{name}/a"),
    ):
        with pytest.raises(ArgumentError, match="http"):
            act()


def test_file_addresses(tmp_path):
    write((tmp_path / "a b").as_uri(), [1, 2], name="a")
    check_same((tmp_path / "a b").as_uri(), tmp_path / "a b")
    assert tokenfeed.open((tmp_path / "a b").as_uri()).windows(2, extra=0)[0].tokens.tolist() == [1, 2]


def test_what_is_no_store(remote, www):
    for path in (remote, f"{www[1]}/nothing-here"):
        with pytest.raises(NotAStoreError, match=r"manifest\.json"):
            tokenfeed.open(path)
        assert "manifest.json" in verify(path).problems[0]
    with pytest.raises(ArgumentError, match="Download it and open the copy"):
        tokenfeed.open(f"{remote}/tokens.bin")


CODE = """
import itertools, sys
import numpy as np
import tokenfeed
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for round in range(rounds) if rounds else itertools.count():
    with tokenfeed.Writer(path, mode="append", columns={"tokens": "uint16"}, spans={"documents": "json"},
                          name=f"{name}-{round}", shard_bytes=3000) as writer:
        for number in range(30):
            writer.append({"tokens": np.arange(100 + number) + number}, documents=[number, 100 + number])
    print("one round", flush=True)
"""


def check_whole(path, folder):
    """Whatever was committed is whole, and nothing else is seen. Returns how many documents there are."""
    report = verify(path)
    assert report.ok, report.problems
    opened = tokenfeed.open(path)
    copy = download(path, folder)
    store = tokenfeed.open(copy)
    assert store.identity == opened.identity
    documents = store.documents()
    batch = documents.read(range(len(documents)))
    for document in (batch[row] for row in range(len(batch))):
        number, length = document.payload
        assert document.tokens.tolist() == list(range(number, number + length))
    shutil.rmtree(copy)
    return len(documents)


def test_two_writers_in_two_processes(s3_environment, tmp_path):
    path = f"s3://bucket/{uuid.uuid4().hex}"
    writers = [subprocess.Popen([sys.executable, "-W", "error", "-c", CODE, path, name, "2"]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert load_manifest(path).shards is not None
    assert check_whole(path, tmp_path / "copy") == 2 * 2 * 30


def test_kill_minus_nine_at_any_moment(s3_environment, tmp_path):
    path = f"s3://bucket/{uuid.uuid4().hex}"
    seen = 0
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for number in range(KILLS):
        command = [sys.executable, "-c", CODE, path, f"w{number}", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
            writer.stdout.readline()
            time.sleep(0.037 * number % 0.2)
            writer.send_signal(signal.SIGKILL)
        now = check_whole(path, tmp_path / "copy")
        assert now >= seen + 30
        seen = now
    write(path, name="x")  # goes on beside what was left behind
    tokenfeed.seal(path)
    assert check_whole(path, tmp_path / "copy") == seen
    assert [one for one in Path(tmp_path).iterdir() if not one.name.startswith("tokenfeed-")] == []
