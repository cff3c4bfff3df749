"""Training data read from a real S3 server: the same batches as from a local copy, ahead of time, through a cache."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import obstore
import pytest

import tokenfeed
from servers import Status, faulty_proxy, s3_server
from tiers import slow
from tokenfeed.errors import CorruptionError, ReadError

LENGTH = 64
ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A store of three shards."""
    path = tmp_path_factory.mktemp("local") / "store"
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(
        path, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=1 << 17, name="s", sync=False
    ) as writer:
        for number in range(1000):
            tokens = rng.integers(0, 60_000, rng.integers(0, 300))
            writer.append({"tokens": tokens}, documents={"number": number})
    return path


@pytest.fixture(scope="module")
def s3(local):
    with s3_server() as server:
        for name in ("store", "replaced", "longer"):
            server.put(local, under=name)
        yield server


@pytest.fixture
def proxy(s3, monkeypatch):
    with faulty_proxy(s3.url) as proxy:
        s3.use(monkeypatch, proxy.url)
        yield proxy


def open_remote(**options):
    return tokenfeed.open("s3://bucket/store", remote=tokenfeed.Remote(**options))


def collect(view, steps, **options):
    """The rows of so many steps."""
    with contextlib.closing(tokenfeed.Loader(view, 8, rank=0, world_size=1, **options)) as loader:
        return [batch.column("tokens").copy() for batch, _ in zip(loader, range(steps), strict=False)], loader.stats()


@pytest.mark.parametrize(
    "options", [{"block_bytes": 512, "gap_bytes": 0, "memory_bytes": 0}, *slow({}, {"gap_bytes": 1 << 20})]
)
def test_batches_equal_those_of_a_local_copy(local, proxy, options, tmp_path):
    here, there = tokenfeed.open(local), open_remote(**options)
    assert here.identity == there.identity
    made = tmp_path / "remote-plan"
    assert there.pack(LENGTH, cache=made).rows == here.pack(LENGTH, cache=tmp_path / "plan").rows
    views = [
        (here.windows(LENGTH, spans=["documents"]), there.windows(LENGTH, spans=["documents"])),
        (here.packed(LENGTH, cache=tmp_path / "plan"), there.packed(LENGTH, cache=made)),
        (here.windows(LENGTH), there.windows(LENGTH)),
    ]
    for mine, theirs in views:
        expected, _ = collect(mine, 8, prefetch=4)
        found, stats = collect(theirs, 8, prefetch=4)
        assert all((a == b).all() for a, b in zip(expected, found, strict=True))
        assert stats.remote is not None
        assert stats.remote.requests > 0
        assert stats.remote.bytes_fetched >= stats.remote.requests
    indices = np.random.default_rng(1).permutation(len(here.documents()))[:30]
    mine, theirs = here.documents().read(indices), there.documents().read(indices)
    assert (mine.column("tokens") == theirs.column("tokens")).all()
    assert mine.payloads == theirs.payloads
    mixed = [tokenfeed.mix({"a": (a.windows(LENGTH), 2), "b": (here.windows(LENGTH), 1)}) for a in (here, there)]
    rows = [collect(mixture, 6, prefetch=4)[0] for mixture in mixed]
    assert all((a == b).all() for a, b in zip(*rows, strict=True))


def test_reads_are_made_ahead_and_at_once(proxy):
    """While the loop computes, all that it may ask for next is read."""
    view = open_remote().windows(LENGTH)
    proxy.latency = 0.5
    with contextlib.closing(tokenfeed.Loader(view, 8, prefetch=8, rank=0, world_size=1)) as loader:
        for _ in range(3):
            next(loader)
            while loader.stats().queued < 7:
                time.sleep(0.01)
    assert proxy.most_at_once > 8


def test_second_epoch_through_the_disk_cache_asks_nobody(local, proxy, tmp_path):
    view = open_remote(cache=tmp_path / "cache", memory_bytes=0).windows(LENGTH, spans=["documents"])
    steps = -(-len(view) // 8)
    first, _ = collect(view, steps, epochs=1)
    view.reader.close()
    asked = len(proxy.requests)
    second, _ = collect(view, steps, epochs=1)
    assert len(proxy.requests) == asked
    # A new process asks for the manifest, and for nothing else.
    again = open_remote(cache=tmp_path / "cache").windows(LENGTH, spans=["documents"])
    asked = len(proxy.requests)
    third, stats = collect(again, steps, epochs=1)
    assert len(proxy.requests) == asked
    assert stats.remote.cache_hits > 0
    expected, _ = collect(tokenfeed.open(local).windows(LENGTH), steps, epochs=1)
    for rows in (first, second, third):
        assert all((a == b).all() for a, b in zip(expected, rows, strict=True))


def test_a_damaged_block_on_disk_is_fetched_again(local, proxy, tmp_path):
    cache = tmp_path / "cache"
    view = open_remote(cache=cache).windows(LENGTH)
    indices = np.arange(len(view))
    expected = view.read(indices).inputs.copy()
    view.reader.close()
    rng = np.random.default_rng(0)
    for data in cache.rglob("data"):
        content = bytearray(data.read_bytes())
        for place in rng.integers(0, len(content), 20):
            content[place] ^= 1
        data.write_bytes(content)
    again = open_remote(cache=cache).windows(LENGTH)
    assert (again.read(indices).inputs == expected).all()
    assert again.reader.stats().cache_damaged > 0
    again.reader.close()
    mended = open_remote(cache=cache).windows(LENGTH)
    assert (mended.read(indices).inputs == expected).all()
    assert mended.reader.stats().cache_damaged == mended.reader.stats().requests == 0


@pytest.mark.parametrize("what", ["limit", *slow("writes fail")])
def test_a_full_cache_slows_and_does_no_harm(local, proxy, tmp_path, what):
    code = f"""
import resource, signal, sys, numpy as np, tokenfeed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if {what == "writes fail"}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
limit = 40_000 if {what == "limit"} else 1 << 30
remote = tokenfeed.Remote(cache={str(tmp_path / "cache")!r}, cache_bytes=limit)
there = tokenfeed.open("s3://bucket/store", remote=remote).windows({LENGTH})
here = tokenfeed.open({str(local)!r}).windows({LENGTH})
for indices in np.array_split(np.random.default_rng(0).permutation(len(here)), 20):
    assert (there.read(indices).inputs == here.read(indices).inputs).all()
    there.reader.close()
assert there.reader.stats().cache_is_full
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert used < 40_000 + (1 << 16) * 4 or what != "limit"


def test_idle_data_of_other_stores_makes_room(proxy, tmp_path):
    cache = tmp_path / "cache"
    old, recent = cache / "old-4096", cache / "recent-4096"
    for folder in (old, recent):
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(bytes(1 << 20))
        (folder / "sums").write_bytes(b"")
    os.utime(old, (time.time() - 3600,) * 2)
    view = open_remote(cache=cache, cache_bytes=(1 << 21) + 100_000).windows(LENGTH)
    for indices in np.array_split(np.arange(len(view)), 10):
        view.read(indices)
        view.reader.close()
    assert not old.exists()
    assert recent.exists()


def test_an_object_of_another_size_is_an_error(s3, local, proxy):
    view = tokenfeed.open("s3://bucket/longer").windows(LENGTH)
    data = (local / "s-00000" / "tokens.npy").read_bytes()
    obstore.put(s3.bucket(), "longer/s-00000/tokens.npy", data + b"\0\0")
    with pytest.raises(CorruptionError, match="bytes, expected"):
        view.read([0])


def test_errors_reach_the_loop_and_reading_goes_on_after(proxy):
    view = open_remote().windows(LENGTH)
    proxy.script("tokens.npy", Status(403), ...)
    with contextlib.closing(tokenfeed.Loader(view, 8, rank=0, world_size=1)) as loader:
        with pytest.raises(ReadError, match=r"tokens\.npy"):
            next(loader)
        proxy._scripts.clear()
        for _ in range(100):  # requests that are under way may still be refused
            with contextlib.suppress(ReadError):
                batch = next(loader)
                break
        assert batch.samples.tolist() == list(range(8))


KILLED = f"""
import sys, tokenfeed
store = tokenfeed.open("s3://bucket/store", remote=tokenfeed.Remote(cache=sys.argv[1], block_bytes=512, gap_bytes=0))
loader = tokenfeed.Loader(store.windows({LENGTH}), 8, rank=int(sys.argv[2]), world_size=2)
for batch in loader:
    print(batch.samples[0], flush=True)
"""


@pytest.mark.slow
def test_ranks_share_a_cache_and_may_be_killed(local, proxy, tmp_path):
    """Two ranks on one cache, killed at random moments again and again: what is in the cache is whole or not there."""
    cache, rng = tmp_path / "cache", np.random.default_rng(0)
    for _ in range(ROUNDS):
        ranks = [
            subprocess.Popen([sys.executable, "-c", KILLED, str(cache), str(rank)], stdout=subprocess.PIPE)
            for rank in range(2)
        ]
        for rank in ranks:
            assert rank.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
            rank.stdout.close()
    assert any(Path(cache).rglob("data"))
    view = open_remote(cache=cache, block_bytes=512, gap_bytes=0).windows(LENGTH)
    indices = np.arange(len(view))
    assert (view.read(indices).inputs == tokenfeed.open(local).windows(LENGTH).read(indices).inputs).all()
    assert view.reader.stats().cache_hits > 0
