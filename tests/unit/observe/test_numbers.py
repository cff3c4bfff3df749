"""What a loader does as a dictionary: its counters; and rates since the last call, shares and epochs of the run."""

from dataclasses import fields

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe import measure, to_dict
from tokenfeed.observe import numbers as module
from tokenfeed.storage.remote import RemoteStats


def test_every_counter_is_told():
    told = {*module._NAMES.values(), *module._REMOTE_NAMES.values()}
    assert {field.name for kind in (Stats, RemoteStats) for field in fields(kind)} - told == {"remote"}


def test_values():
    stats = Stats(3, 96, 1024, 10.0, 2.5, 4.0, 2, RemoteStats(requests=7, cache_is_full=True), items=960, threads=2)
    told = to_dict(stats)
    assert told["tokenfeed/wait_ratio"] == 0.25
    assert told["tokenfeed/items"] == 960
    assert told["tokenfeed/remote_requests"] == 7
    assert told["tokenfeed/cache_full"] == 1
    assert "tokenfeed/encode_seconds" not in told
    assert all(type(value) is float for value in told.values())
    assert to_dict(stats, "")["read_bytes"] == 1024


def test_nothing_of_servers_where_there_are_none():
    assert not [name for name in to_dict(Stats(0, 0, 0, 0.0, 0.0, 0.0, 0)) if "remote" in name or "cache" in name]


@pytest.fixture
def loader(tmp_path):
    for name, count in (("web", 100), ("code", 10)):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "uint16"}, sync=False) as writer:
            writer.append({"tokens": np.arange(count * 8 + 1)})
    views = {name: tokenfeed.open(tmp_path / name).windows(8) for name in ("web", "code")}
    mixture = tokenfeed.mix({"web": (views["web"], 0.75), "code": (views["code"], 0.25)})
    return tokenfeed.Loader(mixture, 10, rank=0, world_size=2)


def test_rates_and_shares(loader):
    for _ in range(4):
        next(loader)
    values = measure(loader)
    assert values["data/samples"] == 80
    assert values["data/share/web"] == values["data/target_share/web"] == 0.75
    assert values["data/epochs/code"] == 2.0
    assert 0 <= values["data/wait_share"] <= 1
    assert values["data/tokens_per_second"] > 0
    assert measure(loader)["data/tokens_per_second"] == 0, "nothing was delivered since"
    with pytest.raises(ArgumentError, match="expected a Loader, a stream"):
        measure("loader")


def test_one_source_has_no_name(loader, tmp_path):
    alone = tokenfeed.Loader(tokenfeed.open(tmp_path / "code").windows(8), 5, rank=0, world_size=1)
    next(alone)
    values = measure(alone, prefix="")
    assert values["epochs"] == 0.5
    assert not any("share/" in name for name in values)
