"""Batches as tensors, on the CPU: the same code path as on a GPU, less the streams."""

import time

import numpy as np
import pytest
import torch

import tokenfeed
import tokenfeed.torch
from plain import PlainStore
from tokenfeed.errors import ArgumentError


@pytest.fixture
def windows(store_path):
    return tokenfeed.open(store_path).windows(64, columns=["frame"])


def test_a_device_that_is_not_there(windows):
    loader = tokenfeed.Loader(windows, 4)
    with pytest.raises(ArgumentError, match=r'there is no device cuda:99: torch \S+ finds \d+ CUDA device.* Use "cpu"'):
        tokenfeed.torch.to_device(loader, "cuda:99")
    with pytest.raises(ArgumentError, match="device is 'gpu'; expected one of torch"):
        tokenfeed.torch.to_device(loader, "gpu")


def test_columns_are_wide_enough(windows):
    plain, moved = (tokenfeed.Loader(windows, 4) for _ in range(2))
    for batch, expected in zip(tokenfeed.torch.to_device(moved, "cpu"), plain, strict=False):
        np.testing.assert_array_equal(batch.column("frame").numpy(), expected.column("frame"))
        assert batch.column("tokens").dtype == torch.int32
        assert batch.column("frame").dtype == torch.uint8
        if batch.epoch == 1:
            break
    with pytest.raises(ArgumentError, match="not read"):
        batch.column("nothing")


@pytest.mark.parametrize("stored", ["u1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_integer_keeps_its_value(tmp_path, stored, dtype):
    limits = np.iinfo(stored)
    wide = torch.iinfo(dtype)
    values = [value for value in (0, 1, limits.max, limits.min, limits.max // 2 + 1) if wide.min <= value <= wide.max]
    with tokenfeed.Writer(tmp_path, columns={"tokens": stored}) as writer:
        writer.append({"tokens": values})
    loader = tokenfeed.Loader(tokenfeed.open(tmp_path).windows(len(values), extra=0), 1)
    batch = next(tokenfeed.torch.to_device(loader, "cpu", dtypes={"inputs": dtype, "tokens": dtype}))
    assert batch.inputs.tolist() == batch.column("tokens").tolist() == [values]
    with pytest.raises(ArgumentError, match="targets"):
        _ = batch.targets


def test_the_state_is_what_was_delivered_not_what_is_on_its_way(windows):
    loader = tokenfeed.Loader(windows, 3)
    feed = tokenfeed.torch.to_device(loader, "cpu")
    uninterrupted = [batch.samples.tolist() for batch, _ in zip(feed, range(20), strict=False)]
    for stop in (1, 5, 6):
        feed = tokenfeed.torch.to_device(tokenfeed.Loader(windows, 3), "cpu")
        for _ in range(stop):
            state = next(feed).state
        assert state == feed.state_dict() == feed.loader.state_dict()
        assert state["samples"] == 3 * stop
        resumed = tokenfeed.torch.to_device(tokenfeed.Loader(windows, 3), "cpu")
        next(resumed)
        resumed.load_state_dict(state)
        assert [next(resumed).samples.tolist() for _ in range(20 - stop)] == uninterrupted[stop:]


def test_a_state_loaded_into_the_loader_itself_counts(windows):
    loader = tokenfeed.Loader(windows, 3)
    start = loader.state_dict()
    feed = tokenfeed.torch.to_device(loader, "cpu")
    for _ in range(5):
        next(feed)
    loader.load_state_dict(start)
    assert next(feed).samples.tolist() == [0, 1, 2]


def test_nothing_is_lost_when_a_copy_fails(windows, monkeypatch):
    feed = tokenfeed.torch.to_device(tokenfeed.Loader(windows, 3), "cpu")
    delivered, failed = [], 0
    send = feed._bus.send
    calls = iter(range(1000))

    def sometimes(array):
        if next(calls) % 5 == 4:
            raise MemoryError
        return send(array)

    monkeypatch.setattr(feed._bus, "send", sometimes)
    while len(delivered) < 90:
        try:
            delivered += next(feed).samples.tolist()
        except MemoryError:
            failed += 1
    assert failed > 3
    assert delivered == list(range(90))


def test_what_collate_made_comes_along(store_path, plain: PlainStore):
    def collate(rows):
        return {"lengths": rows.lengths, "nested": [rows.offsets, "text"]}

    loader = tokenfeed.Loader(tokenfeed.open(store_path).documents(), 5, collate=collate)
    batch = next(tokenfeed.torch.to_device(loader, "cpu"))
    assert batch.data["lengths"].tolist() == [len(plain.documents[index].tokens) for index in batch.host.indices]
    assert torch.is_tensor(batch.data["nested"][0])
    assert batch.data["nested"][1] == "text"
    assert batch.column("tokens").shape == (int(batch.data["lengths"].sum()),)


def test_padded_documents_come_along(store_path):
    from tokenfeed.loader.collate import pad

    loader = tokenfeed.Loader(tokenfeed.open(store_path).documents(), 5, collate=pad(multiple_of=16))
    padded = next(tokenfeed.torch.to_device(loader, "cpu")).data
    assert padded.columns["tokens"].dtype == torch.int32
    assert padded.mask.sum(dim=1).tolist() == padded.lengths.tolist()


def test_finite_loaders_end(windows):
    feed = tokenfeed.torch.to_device(tokenfeed.Loader(windows, 5, epochs=1, shuffle=False), "cpu")
    for _ in range(2):
        seen = [sample for batch in feed for sample in batch.samples.tolist()]
        assert seen == list(range(len(windows)))


def test_counters_are_the_loaders_and_count_what_was_delivered(windows):
    loader = tokenfeed.Loader(windows, 4)
    feed = tokenfeed.torch.to_device(loader, "cpu")
    for _ in range(3):
        next(feed)
    stats = feed.stats()
    assert (stats.batches, stats.samples, stats.items) == (3, 12, 12 * 64)
    feed.close()
    assert next(feed).samples.tolist() == [12, 13, 14, 15]
    assert loader.stats().batches == 4
    feed.close()


@pytest.mark.parametrize(
    "again",
    [
        lambda loader: tokenfeed.torch.to_device(loader, "cpu"),
        lambda loader: iter(tokenfeed.torch.as_dataset(loader)),
    ],
)
def test_what_one_had_under_way_comes_to_the_next(tmp_path, again):
    """A second device loader, or a second `iter` of a dataset, lost the batch that the first had fetched."""
    with tokenfeed.Writer(tmp_path / "s", columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": np.arange(1601)})
    loader = tokenfeed.Loader(tokenfeed.open(tmp_path / "s").windows(16), 2)
    samples = []
    for _ in range(4):
        batches = again(loader)
        for _ in range(3):
            batch = next(batches)
            while not loader.stats().queued:  # so that one more is under way
                time.sleep(0.001)
            samples += (batch["samples"] if isinstance(batch, dict) else batch.samples).tolist()
    assert samples == list(range(24))
