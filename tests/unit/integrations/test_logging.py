"""What is logged of a loader: rates since the last call, shares and epochs of the run, losses by source."""

import sys

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, DependencyError
from tokenfeed.integrations.logging import log, measure, tensorboard


@pytest.fixture
def loader(tmp_path):
    for name, count in (("web", 100), ("code", 10)):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "uint16"}, sync=False) as writer:
            writer.append({"tokens": np.arange(count * 8 + 1)})
    views = {name: tokenfeed.open(tmp_path / name).windows(8) for name in ("web", "code")}
    mixture = tokenfeed.mix({"web": (views["web"], 0.75), "code": (views["code"], 0.25)})
    return tokenfeed.Loader(mixture, 10, rank=0, world_size=2)


def test_numbers(loader):
    for _ in range(4):
        next(loader)
    values = measure(loader, losses={"web": 2.5})
    assert values["data/samples"] == 80
    assert values["data/share/web"] == values["data/target_share/web"] == 0.75
    assert values["data/epochs/code"] == 2.0
    assert values["data/loss/web"] == 2.5
    assert 0 <= values["data/wait_share"] <= 1
    assert values["data/tokens_per_second"] > 0
    assert measure(loader)["data/tokens_per_second"] == 0, "nothing was delivered since"


def test_one_source_has_no_name(loader, tmp_path):
    alone = tokenfeed.Loader(tokenfeed.open(tmp_path / "code").windows(8), 5, rank=0, world_size=1)
    next(alone)
    values = measure(alone, losses={"": 1.0}, prefix="")
    assert values["epochs"] == 0.5
    assert values["loss"] == 1.0
    assert not any("share/" in name for name in values)


def test_any_function_is_a_writer(loader):
    next(loader)
    seen = []
    values = log(loader, lambda numbers, step: seen.append((numbers, step)), 7)
    assert seen == [(values, 7)]
    with pytest.raises(ArgumentError, match="expected a run of W&B, the module mlflow, a SummaryWriter"):
        log(loader, 5, 1)
    with pytest.raises(ArgumentError, match="expected a Loader, a stream"):
        log("loader", print, 1)


def test_what_tensorboard_needs(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(DependencyError, match="pip install tensorboard"):
        tensorboard(tmp_path)
