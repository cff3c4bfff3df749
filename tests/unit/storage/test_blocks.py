"""How much is fetched of remote files for what is read, with the settings that follow from the data and with others."""

import contextlib
import itertools

import numpy as np
import pytest

import tokenfeed
from tiers import pick, slow
from tokenfeed.storage import blocks

numbers = itertools.count()


def make(windows, per_shard, *, length=2048):
    """A store of so many windows, in shards of so many."""
    url = f"memory://blocks-unit-{next(numbers)}/store"
    tokens = np.arange(windows * length + 1, dtype=np.uint32).astype(np.uint16)
    columns = {"tokens": "uint16"}
    with tokenfeed.Writer(url, columns=columns, shard_bytes=2 * per_shard * length, name="s") as writer:
        for start in range(0, tokens.size, per_shard * length):
            writer.append({"tokens": tokens[start : start + per_shard * length]})
    return url


def read_epoch(url, length=2048, *, batch_size=16, shuffle=True, world_size=1, **options):
    view = tokenfeed.open(url, remote=tokenfeed.Remote(**options) if options else None).windows(length)
    how = {"epochs": 1, "shuffle": shuffle, "rank": 0, "world_size": world_size, "prefetch": 4}
    with contextlib.closing(tokenfeed.Loader(view, batch_size, **how)) as loader:
        for batch in loader:
            assert (np.diff(batch.inputs.astype(np.int64)) % 65536 == 1).all()
        return loader.stats()


SLOW = [pytest.param(*shape, marks=pytest.mark.slow) for shape in ((2048, 4), (512, 1024))]


@pytest.mark.parametrize(("length", "per_shard"), [(2048, 256), (256, 7), *SLOW])
def test_a_pure_order_fetches_little_more_than_it_uses(length, per_shard):
    items = pick(min(2**20, 1024 * length), 2**20)
    url = make(items // length, per_shard, length=length)
    stats = read_epoch(url, length, memory_bytes=items)
    used = items // length * (length + 1) * 2
    assert stats.remote.bytes_used == used
    assert stats.remote.bytes_fetched <= 1.2 * used
    assert stats.warnings == ()


@pytest.mark.parametrize("per_shard", [2, *slow(512)])
def test_an_order_with_locality_takes_its_settings_from_the_data(per_shard, monkeypatch):
    monkeypatch.setattr(blocks, "MEMORY_BYTES", 1 << 16)
    stats = read_epoch(make(1024, per_shard), shuffle=tokenfeed.plan.Local(32, 8)).remote
    assert stats.bytes_fetched <= 1.2 * stats.bytes_used
    assert stats.requests <= 0.6 * 1024
    assert 2 * 8 * 32 * 4096 <= stats.bytes_held < 1024 * 4096


def test_slots_count_what_they_hold():
    """Shards of 8 KiB in blocks of 64: the memory for 2 tiles is enough, although each shard is but part of a block."""
    settings = {"block_bytes": 1 << 16, "memory_bytes": 4 * 4 * 32 * 4098}
    stats = read_epoch(make(pick(640, 1024), 2), shuffle=tokenfeed.plan.Local(32, 8), **settings).remote
    assert stats.bytes_fetched <= 1.2 * stats.bytes_used


def test_each_of_several_ranks_fetches_its_own_samples():
    stats = read_epoch(make(512, 128), shuffle=tokenfeed.plan.Local(32, 8), world_size=4).remote
    assert stats.bytes_fetched <= 1.2 * stats.bytes_used


def test_waste_is_told():
    stats = read_epoch(make(256, 64), batch_size=1, block_bytes=1 << 16, memory_bytes=1 << 19)
    assert stats.remote.bytes_fetched > 2 * stats.remote.bytes_used
    (warning,) = stats.warnings
    assert "bytes were fetched for each byte used" in warning
    assert "block_bytes" in warning


def test_a_call_may_miss_more_than_can_be_noted(monkeypatch):
    monkeypatch.setattr(blocks, "_LOG_SIZE", 16)
    view = tokenfeed.open(make(64, 16), remote=tokenfeed.Remote(memory_bytes=0)).windows(2048)
    tokens = view.read(np.arange(64)).inputs.reshape(-1)
    assert (tokens == np.arange(64 * 2048, dtype=np.uint32).astype(np.uint16)).all()
