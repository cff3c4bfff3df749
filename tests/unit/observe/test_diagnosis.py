"""The diagnosis: of counters as they might be, and of real loaders with a real bottleneck each."""

import contextlib
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenfeed
from clock import Clock, is_blocked
from servers import faulty_proxy, s3_server
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe import Rates, diagnose
from tokenfeed.storage.remote import RemoteStats

NOTHING = Stats(0, 0, 0, 0.0, 0.0, 0.0, 0)


def after(wait, read, **others):
    """Ten seconds of 100 batches by two threads."""
    given = {"threads": 2, "prefetch": 8, "items": 100_000, **others}
    return Stats(100, 3200, 10**7, 10.0, wait, read, 0, **given)


@pytest.mark.parametrize(
    ("stats", "cores", "words"),
    [
        (NOTHING, 8, "has not asked for a batch yet"),
        (after(0.002, 5.0), 8, "Nothing to gain: the loop waits 0.02% of the time."),
        (after(0.009, 5.0), 8, "Nothing to gain"),
        (after(1.2, 19.0), 8, "waits 12% of the time: reading is the bottleneck; 2 threads are busy 95%"),
        (after(1.2, 19.0), 8, "Try threads=4."),
        (after(1.2, 19.0), 3, "Try threads=3."),
        (after(1.2, 19.0), 2, "All cores are in use"),
        (after(1.2, 19.0, collate_seconds=15.0), 8, "collate is the bottleneck; it takes 79%"),
        (after(1.2, 19.0, collate_seconds=2.0), 8, "reading is the bottleneck"),
        (after(1.2, 2.0), 8, "Try prefetch=16"),
        (after(5.0, 5.0, prefetch=0, threads=0), 8, "because prefetch is 0"),
        (after(5.0, 9.0, encode_seconds=19.0), 8, "tokenising is the bottleneck; 2 threads are busy 95%"),
        (after(5.0, 9.0, encode_seconds=19.0), 2, "prepare a store"),
        (after(5.0, 9.0, encode_seconds=3.0), 8, "reading and packing text is the bottleneck"),
        (after(5.0, 19.0, remote=RemoteStats(waits=50)), 8, "the server is the bottleneck; 50 reads had to wait"),
        (after(5.0, 19.0, remote=RemoteStats(waits=50)), 8, "Remote(cache=folder)"),
        (after(5.0, 19.0, remote=RemoteStats(waits=5, bytes_fetched=9 * 10**7)), 8, "sends 9 bytes for each byte used"),
        (after(5.0, 19.0, remote=RemoteStats(waits=5, cache_is_full=True)), 8, "Remote(cache_bytes=…)"),
        (after(5.0, 19.0, remote=RemoteStats(waits=5, cache_misses=9)), 8, "Later epochs come from the cache"),
        (after(5.0, 19.0, remote=RemoteStats()), 8, "reading is the bottleneck"),
        (Stats(10**6, 1, 1, 10.0, 5.0, 1.0, 3, threads=2, prefetch=8), 8, "only 5 µs per batch"),
        (Stats(10**5, 1, 1, 10.0, 5.0, 1.0, 3, threads=2, prefetch=8), 8, "only 50 µs per batch"),
        (Stats(10**5, 1, 1, 10.0, 5.0, 19.0, 3, threads=2, prefetch=8), 8, "reading is the bottleneck"),
        (Stats(0, 0, 0, 10.0, 10.0, 0.0, 0, threads=2, prefetch=8), 8, "no batch was delivered for 10.0 s"),
    ],
)
def test_rules(stats, cores, words):
    first, *_ = diagnose(NOTHING, stats, cores=cores)
    assert words in first


def test_oddities_are_told_even_where_nothing_waits():
    remote = RemoteStats(retries=1, cache_damaged=2, cache_is_full=True)
    first, *others = diagnose(NOTHING, after(0.0, 1.0, remote=remote))
    assert "Nothing to gain" in first
    assert [others[0][:9], others[1][23:39], others[2][:9]] == ["1 request", "2 damaged blocks", "The cache"]


def test_only_the_interval_counts():
    """A slow start an hour ago is no bottleneck now."""
    before = Stats(100, 3200, 10**7, 3600.0, 900.0, 7000.0, 0, RemoteStats(retries=8), threads=2, prefetch=8)
    now = Stats(200, 6400, 2 * 10**7, 3610.0, 900.0, 7001.0, 8, RemoteStats(retries=8), threads=2, prefetch=8)
    assert diagnose(before, now) == ["Nothing to gain: the loop waits 0.00% of the time."]
    assert "has taken no batch for 10 s" in diagnose(now, Stats(200, 1, 1, 3620.0, 900.0, 7001.0, 8))[0]


numbers = st.integers(0, 10**9)
floats = st.floats(0, 1e6)
some_stats = st.builds(
    Stats,
    batches=numbers,
    samples=numbers,
    bytes=numbers,
    wall_seconds=floats,
    wait_seconds=floats,
    read_seconds=floats,
    queued=numbers,
    remote=st.none() | st.builds(RemoteStats, requests=numbers, waits=numbers, bytes_fetched=numbers),
    items=numbers,
    collate_seconds=floats,
    encode_seconds=st.none() | floats,
    threads=st.integers(0, 64),
    prefetch=st.integers(0, 64),
)


@given(some_stats, some_stats)
def test_any_two_looks_give_rates_within_bounds_and_a_sentence(before, now):
    """A loader may have been made anew in between, or sent elsewhere: counters may step back."""
    rates = Rates.between(before, now)
    for share in (rates.wait_fraction, rates.busy, rates.collate_share, rates.encode_busy or 0):
        assert 0 <= share <= 1
    assert rates.seconds >= 0
    assert rates.batches >= 0
    assert rates.bytes_per_second >= 0
    sentences = diagnose(before, now)
    assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in sentences)
    assert all(sentence.endswith((".", "?")) for sentence in sentences)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """400,000 tokens."""
    path = tmp_path_factory.mktemp("observe") / "store"
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.arange(400_000) % 60_000})
    return path


@pytest.fixture
def clock(monkeypatch):
    """In place of the real one: shares of time follow from what a test says that things take."""
    clock = Clock()
    for module in ("delivery", "reading"):
        monkeypatch.setattr(f"tokenfeed.loader.{module}.time", clock.module("perf_counter"))
    monkeypatch.setattr("tokenfeed.text.streaming.making.time", clock.module("perf_counter"))
    yield clock
    clock.stop()


def observe(loader, steps, compute=lambda: None):
    """The diagnosis of so many steps after the first."""
    with contextlib.closing(loader):
        next(loader)
        before = loader.stats()
        for _ in range(steps):
            compute()
            next(loader)
        return diagnose(before, loader.stats(), cores=4)[0]


def slow_down(monkeypatch, owner, method, clock):
    """Let each call of a method take 10 ms."""
    right = getattr(owner, method)

    def slow(*arguments, **options):
        clock.work(0.01)
        return right(*arguments, **options)

    monkeypatch.setattr(owner, method, slow)


def test_a_loop_that_computes_waits_for_nothing(store, clock):
    loader = tokenfeed.Loader(tokenfeed.open(store).windows(512), 8, rank=0, world_size=1)

    def compute():
        while not loader.stats().queued:
            time.sleep(0.001)
        clock.advance(0.02)

    assert "Nothing to gain: the loop waits 0.00%" in observe(loader, 30, compute)


def test_reading_is_the_bottleneck_of_a_loop_that_does_nothing(store, clock, monkeypatch):
    windows = tokenfeed.open(store).windows(512)
    slow_down(monkeypatch, type(windows), "load", clock)
    loader = tokenfeed.Loader(windows, 8, threads=1, rank=0, world_size=1)
    assert "waits 100% of the time: reading is the bottleneck; 1 thread is busy" in observe(loader, 60)


def test_a_slow_collate_is_found(store, clock):
    def collate(batch):
        clock.work(0.01)
        return batch.inputs.sum()

    windows = tokenfeed.open(store).windows(512)
    loader = tokenfeed.Loader(windows, 8, collate=collate, threads=1, rank=0, world_size=1)
    assert "waits 100% of the time: collate is the bottleneck; it takes 100%" in observe(loader, 80)


def test_no_prefetch(store, clock, monkeypatch):
    windows = tokenfeed.open(store).windows(512)
    slow_down(monkeypatch, type(windows), "load", clock)
    assert "prefetch is 0" in observe(tokenfeed.Loader(windows, 8, prefetch=0, rank=0, world_size=1), 10)


def test_a_loop_that_is_stuck_counts_as_waiting(store, clock):
    """Before the batch has come, and not only then."""
    go_on = threading.Event()
    windows = tokenfeed.open(store).windows(512)
    loader = tokenfeed.Loader(windows, 8, collate=lambda _: go_on.wait(), prefetch=1, rank=0, world_size=1)
    thread = threading.Thread(target=loader.fetch)
    thread.start()
    while not is_blocked(thread):
        time.sleep(0.001)
    clock.advance(0.5)
    before = loader.stats()
    clock.advance(0.3)
    now = loader.stats()
    go_on.set()
    thread.join()
    assert now.wait_seconds - before.wait_seconds == now.wall_seconds - before.wall_seconds == pytest.approx(0.3)
    assert "no batch was delivered" in diagnose(before, now)[0]
    loader.close()


def test_a_slow_server_is_found(store, monkeypatch):
    """By the reads that had to wait for it: the first one must, as the server takes half a second."""
    with s3_server() as server, faulty_proxy(server.url) as proxy:
        server.put(store, under="store")
        server.use(monkeypatch, proxy.url)
        windows = tokenfeed.open("s3://bucket/store").windows(512)
        proxy.latency = 0.5
        with tokenfeed.Loader(windows, 8, prefetch=2, rank=0, world_size=1) as loader:
            next(loader)
            stats = loader.stats()
    assert stats.remote.waits > 0
    told = diagnose(NOTHING, replace(stats, wall_seconds=10.0, wait_seconds=9.0))
    assert "the server is the bottleneck" in told[0]


def test_slow_tokenising_is_found(tmp_path, clock, monkeypatch):
    tokenizer = tokenfeed.Tokenizer.train(["somewordsandothers" * 99], vocab_size=270, engine="tiktoken")
    letters = np.frombuffer(b"somewrdanthe", np.uint8)
    drawn = np.random.default_rng(0).choice(letters, (2000, 200))
    lines = "".join(json.dumps({"text": row.tobytes().decode()}) + "\n" for row in drawn)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(lines)
    slow_down(monkeypatch, type(tokenizer), "encode_read", clock)
    feed = tokenfeed.stream(
        str(tmp_path / "*.jsonl"),
        tokenizer,
        batch_size=16,
        length=512,
        buffer_size=64,
        refill_size=32,
        threads=1,
        rank=0,
        world_size=1,
    )
    assert "tokenising is the bottleneck; 1 thread is busy" in observe(feed, 60)
    assert feed.stats().encode_seconds > 0
    assert feed.stats().items == 61 * 16 * 512


def test_items_of_documents_are_their_lengths(store_path, plain):
    lengths = [len(document.tokens) for document in plain.documents]
    loader = tokenfeed.Loader(tokenfeed.open(store_path).documents(), 7, epochs=1, rank=0, world_size=1)
    for _ in loader:
        pass
    assert loader.stats().items == sum(lengths)
    loader.close()
