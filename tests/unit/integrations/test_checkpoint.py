"""Loaders for a place, and their states in checkpoints that one process writes."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError

pytest.importorskip("torch")

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tokenfeed.integrations.checkpoint import AllRanks, make_loader


@pytest.fixture
def feed_of(tmp_path):
    texts = [f"Document {number} speaks of {number} things." for number in range(200)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "text.parquet", row_group_size=20)
    tokenizer = tokenfeed.Tokenizer.train(texts, vocab_size=300)
    return lambda **place: tokenfeed.stream(
        tmp_path / "text.parquet", tokenizer, batch_size=2, length=16, val=None, **place
    )


def test_a_stream_goes_on(feed_of):
    feed = make_loader(feed_of, 2, {"rank": 0, "world_size": 1})
    next(feed)
    state = AllRanks(feed).state_dict()
    expected = next(feed).tokens.tolist()
    again = feed_of(rank=0, world_size=1)
    AllRanks(again).load_state_dict(state)
    assert next(again).tokens.tolist() == expected


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Held(dcp.FileSystemWriter):
    """Writes nothing before it is let go."""

    go = threading.Event()

    def write_data(self, *arguments):
        assert self.go.wait(60)
        return super().write_data(*arguments)


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("default")
def test_saved_in_the_background(feed_of, tmp_path):
    """A loader that was changed and a stream, by dcp.async_save: the state is that of the call, though training goes on
    before it is written."""
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.arange(2_000)})

    def make():
        loader = tokenfeed.Loader(tokenfeed.open(tmp_path / "store").windows(16), 4, rank=0, world_size=1)
        return loader, feed_of(rank=0, world_size=1)

    loader, feed = make()
    loader.amend(max_epochs=9)
    next(loader), next(feed)
    state = {"loader": loader, "feed": AllRanks(feed)}
    saving = dcp.async_save(state, storage_writer=Held(tmp_path / "checkpoint"))
    assert not saving.done()
    expected = [[next(each).tokens.tolist() for _ in range(3)] for each in (loader, feed)]
    Held.go.set()
    saving.result()
    again, fed = make()
    dcp.load({"loader": again, "feed": AllRanks(fed)}, checkpoint_id=tmp_path / "checkpoint")
    assert [[next(each).tokens.tolist() for _ in range(3)] for each in (again, fed)] == expected
    assert again.plan == loader.plan


def test_what_is_refused(feed_of):
    with pytest.raises(ArgumentError, match="call init_process_group first"):
        AllRanks(feed_of(rank=1, world_size=2)).state_dict()
    with pytest.raises(ArgumentError, match="as it was told"):
        make_loader(lambda **_: feed_of(rank=0, world_size=1), 2, {"rank": 1, "world_size": 2})
    with pytest.raises(ArgumentError, match="expected a view such as"):
        make_loader(feed_of(rank=0, world_size=1), 2, {"rank": 0, "world_size": 1})
