"""The stats file: it stays small, survives what it must, and costs the training loop nothing worth noticing."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from downloads import wait_until
from tiers import pick
from tokenfeed import observe
from tokenfeed.errors import ArgumentError, NotFoundError, StateError, WriteError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.snapshots import Scalar, Snapshot
from tokenfeed.observe.watching import watch
from tokenfeed.storage.remote import RemoteStats


def make_loader(path, **options):
    return tokenfeed.Loader(tokenfeed.open(path).windows(16), 4, **{"rank": 0, "world_size": 1, **options})


def threads_named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_snapshots_follow_the_loader(store_path, tmp_path):
    loader = make_loader(store_path)
    path = tmp_path / "made" / "run.stats.jsonl"
    with observe.publish(loader, path, every=0.05):
        first, *_ = observe.read_snapshots(path)
        assert first.stats.batches == 0
        assert (first.rank, first.world_size, first.pid, first.ended) == (0, 1, os.getpid(), False)
        assert 10**6 < first.memory_bytes < 10**11
        for _ in range(5):
            next(loader)
        wait_until(lambda: observe.read_snapshots(path)[-1].stats.batches == 5)
    last = observe.read_snapshots(path)[-1]
    assert last.ended
    assert last.stats.items == 5 * 4 * 16
    loader.close()


def test_it_ends_with_its_loader_and_keeps_it_not_alive(store_path, tmp_path):
    path = tmp_path / "stats.jsonl"
    loader = make_loader(store_path)
    next(loader)
    observe.publish(loader, path, every=0.02)
    assert threads_named("tokenfeed-publish")
    loader.close()
    del loader
    gc.collect()
    wait_until(lambda: not threads_named("tokenfeed-publish"))
    snapshots = observe.read_snapshots(path)
    assert snapshots[-1].ended
    assert snapshots[-1].stats.batches == 1
    (watched,) = watch(path)
    assert watched.state == "ended"


@pytest.mark.parametrize("cyclic", [False, True])
def test_the_last_snapshot_of_a_collected_loader_has_its_last_counters(store_path, tmp_path, cyclic):
    path = tmp_path / "stats.jsonl"
    loader = make_loader(store_path)
    observe.publish(loader, path, every=3600)
    for _ in range(7):
        next(loader)
    if cyclic:
        loader.itself = loader  # collected by the garbage collector, which calls weak references first
    del loader
    gc.collect()
    last = observe.read_snapshots(path)[-1]
    assert (last.ended, last.stats.batches, last.stats.delivered) == (True, 7, 28)
    wait_until(lambda: not threads_named("tokenfeed-publish"))


def test_size_is_bounded(store_path, tmp_path):
    path = tmp_path / "stats.jsonl"
    loader = make_loader(store_path)
    with observe.publish(loader, path, every=0.01, max_bytes=4096):
        wait_until((tmp_path / "stats.jsonl.1").exists)
        for _ in range(100):
            sizes = [file.stat().st_size for file in tmp_path.iterdir() if file.name.startswith("stats")]
            assert len(sizes) <= 2
            assert sum(sizes) <= 2 * 4096
            assert observe.read_snapshots(path)  # also while the file is being set aside
            time.sleep(0.005)
    assert len(observe.read_snapshots(path)) > 4096 // 700
    loader.close()


def test_every_rank_has_a_file_of_its_own_and_readers_read_all(store_path, tmp_path):
    path = tmp_path / "stats.jsonl"
    loaders = [make_loader(store_path, rank=rank, world_size=3) for rank in range(3)]
    publishers = [observe.publish(loader, path, every=0.05) for loader in loaders]
    for number, loader in enumerate(loaders):
        for _ in range(number + 1):
            next(loader)
    wait_until(lambda: [each.last.stats.batches for each in watch(path)] == [1, 2, 3])
    assert [each.last.rank for each in watch(path)] == [0, 1, 2]
    names = ["stats.jsonl", "stats.jsonl.rank1", "stats.jsonl.rank2"]
    assert sorted(file.name for file in tmp_path.glob("stats*")) == names
    path.unlink()  # the folder of a machine that has ranks 1 and 2 alone
    publishers[0].close()
    assert [each.last.rank for each in watch(path)][-2:] == [1, 2]
    assert [each.last.rank for each in watch(tmp_path / names[2])] == [2]
    for publisher, loader in zip(publishers, loaders, strict=True):
        publisher.close()
        loader.close()


def test_ranks_that_set_their_files_aside_at_the_same_moment_lose_nothing(store_path, tmp_path, monkeypatch):
    path, everybody, replace = tmp_path / "stats.jsonl", threading.Barrier(2), Path.replace
    loaders = [make_loader(store_path, rank=rank, world_size=2) for rank in range(2)]
    publishers = [observe.publish(loader, path, every=3600) for loader in loaders]
    for publisher in publishers:
        publisher._write(ended=False)
        monkeypatch.setattr(publisher, "_max_bytes", 0)  # full now
    turns = {publisher: threading.Event() for publisher in publishers}
    turns[publishers[0]].set()

    def meet(file, target):
        everybody.wait(60)
        assert turns[mine.publisher].wait(60)
        return replace(file, target)

    def write(publisher):
        mine.publisher = publisher
        publisher._write(ended=False)
        turns[publishers[1]].set()

    mine = threading.local()
    monkeypatch.setattr(Path, "replace", meet)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, publishers))
    assert [each.rank for each in observe.read_snapshots(path)].count(1) == 3
    assert len(observe.read_snapshots(path)) == 6
    monkeypatch.undo()
    for publisher, loader in zip(publishers, loaders, strict=True):
        publisher.close()
        loader.close()


def test_many_ranks_are_read_by_the_ends_of_their_files(tmp_path):
    """All are there, however long their files: the lines that are looked at are bounded over all of them."""
    for rank in range(1024):
        scalars = tuple(Scalar("x" * 60, step, 0.1) for step in range(100 * (rank == 0)))
        stats, name = Stats(1, 1, 0, 1.0, 0.1, 0.0, 0), f"stats.jsonl.rank{rank}" if rank else "stats.jsonl"
        snapshot = Snapshot(1e9, "host", 1, 0, rank, 1024, 1.0, 4, 1.5, 10**8, False, stats, scalars=scalars)
        (tmp_path / name).write_text(f"\n{snapshot.to_json()}\n" * 20)
    snapshots = observe.read_snapshots(tmp_path / "stats.jsonl")
    assert {each.rank for each in snapshots} == set(range(1024))
    assert len(snapshots) < 12 * 1024


SCRIPT = """
import sys, time, tokenfeed
from tokenfeed import observe
loader = tokenfeed.Loader(tokenfeed.open(sys.argv[1]).windows(16), 4, rank=0, world_size=1)
observe.publish(loader, sys.argv[2], every=0.02)
print("started", flush=True)
for number, batch in enumerate(loader):
    time.sleep(0.001)
    if number == int(sys.argv[3]):
        break
"""


def test_kill_leaves_nothing_that_hurts(store_path, tmp_path):
    """After a kill -9 the file is read, what happened is told, and the next run writes into the same file."""
    path = tmp_path / "stats.jsonl"
    for _ in range(int(os.environ.get("KILL_ROUNDS", pick(1, 2)))):
        run = [sys.executable, "-c", SCRIPT, store_path, path, str(10**9)]
        with subprocess.Popen(run, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"started\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGKILL)
        with path.open("ab") as file:
            file.write(b'{"time": 17')  # as a kill in the middle of a write would leave it
        watched = watch(path)[-1]
        assert watched.last.pid == process.pid
        assert watched.state == "gone"
        assert f"Process {process.pid} no longer exists" in watched.words[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["stats.jsonl", "store"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, store_path, path, "20"], check=True, capture_output=True)
    assert not done.stderr
    last = observe.read_snapshots(path)[-1]
    assert last.ended, "a process that ends in peace says so"
    assert last.stats.batches == 21
    assert watch(path)[-1].state == "ended"


def test_a_silent_process_is_told(store_path, tmp_path):
    loader = make_loader(store_path)
    path = tmp_path / "stats.jsonl"
    publisher = observe.publish(loader, path, every=0.1)
    (watched,) = watch(path)
    assert watched.state == "runs"
    (watched,) = watch(path, now=time.time() + 60)
    assert watched.state == "silent"
    publisher.close()
    loader.close()


def test_rates_are_those_of_the_last_seconds(tmp_path):
    """From snapshots as they might be: a minute of 1,000 items a second, then ten seconds of 3,000."""
    lines, items = [], 0
    for second in range(71):
        stats = Stats(second, second, 0, float(second), 0.1 * second, 0.0, 0, items=items, threads=2, prefetch=8)
        snapshot = Snapshot(1e9 + second, "elsewhere", 1, 0, 0, 1, 1.0, 4, 1.5 * second, 10**8, False, stats)
        lines.append(snapshot.to_json())
        items += 1000 if second < 60 else 3000
    (tmp_path / "run.stats.jsonl").write_text("\n".join([*lines, ""]))
    (watched,) = watch(tmp_path / "run.jsonl", seconds=5, now=1e9 + 70)
    assert watched.rates.items_per_second == pytest.approx(3000)
    assert watched.rates.wait_fraction == pytest.approx(0.1)
    assert watched.cpu == pytest.approx(1.5)
    assert watched.history[:60] == [1000] * 60
    assert watched.history[60:] == [3000] * 10


numbers = st.integers(0, 2**53)
floats = st.floats(0, 1e9)
snapshots = st.builds(
    Snapshot,
    time=floats,
    host=st.text(max_size=20),
    pid=numbers,
    loader=numbers,
    rank=numbers,
    world_size=numbers,
    every=floats,
    cores=numbers,
    cpu_seconds=floats,
    memory_bytes=numbers,
    ended=st.booleans(),
    stats=st.builds(
        Stats,
        batches=numbers,
        samples=numbers,
        bytes=numbers,
        wall_seconds=floats,
        wait_seconds=floats,
        read_seconds=floats,
        queued=numbers,
        remote=st.none() | st.builds(RemoteStats, requests=numbers, cache_is_full=st.booleans()),
        items=numbers,
        encode_seconds=st.none() | floats,
    ),
)


@given(snapshots, st.integers(0, 100))
def test_snapshots_come_back_and_cut_ones_do_not(snapshot, cut):
    line = snapshot.to_json()
    assert "\n" not in line
    assert Snapshot.from_json(line) == snapshot
    newer = json.loads(line) | {"temperature": 3}
    newer["stats"]["spilt"] = 1
    assert Snapshot.from_json(json.dumps(newer)) == snapshot
    with pytest.raises(ValueError):
        Snapshot.from_json(line[: len(line) * cut // 101])


def test_files_that_are_none(tmp_path):
    with pytest.raises(NotFoundError, match=r"observe\.publish"):
        observe.read_snapshots(tmp_path / "run.jsonl")
    (tmp_path / "run.jsonl").write_text('{"plan": {}}\n')
    with pytest.raises(StateError, match="no live statistics"):
        observe.read_snapshots(tmp_path / "run.jsonl")
    (tmp_path / "run.stats.jsonl").write_text("")
    with pytest.raises(StateError, match="is empty"):
        observe.read_snapshots(tmp_path / "run.jsonl")


def test_arguments(store_path, tmp_path):
    loader = make_loader(store_path)
    with pytest.raises(ArgumentError, match="every"):
        observe.publish(loader, tmp_path / "x", every=0)
    with pytest.raises(ArgumentError, match=r"expected a Loader.*got list"):
        observe.publish([1, 2], tmp_path / "x")
    with pytest.raises(WriteError):
        observe.publish(loader, store_path)  # a folder
    assert not threads_named("tokenfeed-publish")


def test_a_device_loader_is_seen_through(store_path, tmp_path):
    torch = pytest.importorskip("torch")
    del torch
    from tokenfeed.torch import to_device

    loader = to_device(make_loader(store_path), "cpu")
    next(loader)
    with observe.publish(loader, tmp_path / "stats.jsonl"):
        assert observe.read_snapshots(tmp_path / "stats.jsonl")[-1].stats.batches == 1
    loader.loader.close()


def test_a_snapshot_is_one_short_write(tmp_path, monkeypatch):
    """What it costs the loop does not grow with the run."""
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.arange(100_000) % 1000})
    loader = make_loader(tmp_path / "store")
    publisher = observe.publish(loader, tmp_path / "stats.jsonl", every=3600)
    written, write = [], os.write

    def count(file, data):
        if os.fstat(file).st_ino == (tmp_path / "stats.jsonl").stat().st_ino:
            written.append(len(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", count)
    for _ in range(50):
        next(loader)
        publisher._write(ended=False)
    assert len(written) == 50
    assert max(written) < 1000
    publisher.close()
    loader.close()
