"""Item k of the dataset is sample k of the run, as Megatron's sampler asks for it."""

import argparse
import pickle
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, SampleIndexError

torch = pytest.importorskip("torch")

from tokenfeed.integrations.megatron import Dataset  # noqa: E402

LENGTH = 8


@pytest.fixture
def store(tmp_path):
    with tokenfeed.Writer(
        tmp_path / "a", columns={"tokens": "uint16"}, spans={"documents": None}, sync=False
    ) as writer:
        for number in range(30):
            writer.append({"tokens": np.arange(100 * number, 100 * number + 11)})
    return tokenfeed.open(tmp_path / "a")


class Sequential:
    """Micro-batches as Megatron's sampler of `--dataloader-type single` makes them: a run of samples for every rank."""

    def __init__(self, consumed, total, size, rank, ranks):
        self._starts = range(consumed + rank * size, total - size + 1, size * ranks)
        self._size = size

    def __iter__(self):
        return (list(range(start, start + self._size)) for start in self._starts)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_every_rank_reads_its_part_of_the_run(store, num_workers):
    """Through an epoch's end, from a checkpoint of two ranks on three."""
    view = store.windows(LENGTH)
    data = tokenfeed.mix({"a": (view, 0.75), "b": (view, 0.25)})
    dataset = Dataset(data, 120, seed=5)
    order = next(tokenfeed.Loader(data, 120, seed=5, rank=0, world_size=1))
    seen = {}
    for consumed, stop, ranks in ((0, 48, 2), (48, 120, 3)):
        for rank in range(ranks):
            sampler = Sequential(consumed, stop, 4, rank, ranks)
            loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers)
            for samples, batch in zip(sampler, loader, strict=True):
                seen |= {sample: {n: each[row] for n, each in batch.items()} for row, sample in enumerate(samples)}
    assert sorted(seen) == list(range(120))
    for sample, row in seen.items():
        assert row["tokens"].tolist() == order.inputs[sample].tolist()
        assert row["labels"].tolist() == order.targets[sample].tolist()
        assert row["loss_mask"].tolist() == [1.0] * LENGTH
        assert row["position_ids"].tolist() == list(range(LENGTH))
        assert row["tokens"].dtype == row["position_ids"].dtype == torch.int64


def test_masks_and_documents(store):
    store.pack(LENGTH)
    view = store.packed(LENGTH)
    rows = Dataset(view, 9, separate_documents=True).__getitems__([7, 2, 3])
    batch = next(tokenfeed.Loader(view, 9, rank=0, world_size=1))
    for row, sample in zip(rows, (7, 2, 3), strict=True):
        assert row["loss_mask"].tolist() == batch.loss_mask[sample].tolist()
        assert row["position_ids"].tolist() == batch.position_ids[sample].tolist()


def test_the_example(store, tmp_path, monkeypatch):
    """As pretrain_gpt.py calls it; files are those of this store's folder, not Megatron's."""
    arguments = argparse.Namespace(seq_length=LENGTH, seed=3)
    training = types.SimpleNamespace(get_args=lambda: arguments)
    monkeypatch.setitem(sys.modules, "megatron", types.SimpleNamespace(training=training))
    monkeypatch.setitem(sys.modules, "megatron.training", training)
    monkeypatch.setattr(tokenfeed, "open", lambda name: store)
    names = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "megatron/provider.py"))
    train, valid, test = names["train_valid_test_datasets_provider"]([50, 7, 0])
    assert (len(train), len(valid), test) == (50, 7, None)
    assert train.plan.seed == 3
    assert {source.name for source in train.plan.sources} == {"web", "code"}


def test_what_is_refused(store):
    with pytest.raises(ArgumentError, match="lengths differ"):
        Dataset(store.documents(), 9)
    with pytest.raises(ArgumentError, match="the run ends after"):
        Dataset(tokenfeed.mix({"a": (store.windows(LENGTH), 1)}, max_epochs=1), 1_000)
    with pytest.raises(SampleIndexError, match="of a dataset of 9"):
        Dataset(store.windows(LENGTH), 9)[9]
    assert pickle.loads(pickle.dumps(Dataset(store.windows(LENGTH), 9)))[3].keys()
