"""Item k of the example's dataset is sample k of the run, as Megatron's sampler asks for it."""

import argparse
import pickle
import sys
import types
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import tokenfeed

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[3] / "examples" / "megatron/provider.py"
LENGTH = 8


@pytest.fixture
def example(monkeypatch):
    spec = spec_from_file_location("provider", EXAMPLE)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "provider", module)  # where pickle looks for its class
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    spec.loader.exec_module(module)
    return module


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
def test_every_rank_reads_its_part_of_the_run(example, store, num_workers):
    """Through an epoch's end, from a checkpoint of two ranks on three."""
    view = store.windows(LENGTH)
    sources = {"a": (view, 0.75), "b": (view, 0.25)}
    dataset = example.Samples(sources, 120, seed=5)
    order = next(tokenfeed.Loader(tokenfeed.mix(sources), 120, seed=5, rank=0, world_size=1))
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
    assert pickle.loads(pickle.dumps(dataset))[3]["tokens"].tolist() == order.inputs[3].tolist()


def test_masks(example, store):
    store.pack(LENGTH)
    view = store.packed(LENGTH)
    dataset = example.Samples({"a": (view, 1)}, 9)
    batch = next(tokenfeed.Loader(tokenfeed.mix({"a": (view, 1)}), 9, rank=0, world_size=1))
    assert not batch.loss_mask.all()
    for sample in (7, 2, 3):
        assert dataset[sample]["loss_mask"].tolist() == batch.loss_mask[sample].tolist()


def test_the_provider(example, store, monkeypatch):
    """As pretrain_gpt.py calls it; files are those of this store's folder, not Megatron's."""
    arguments = argparse.Namespace(seq_length=LENGTH, seed=3)
    training = types.SimpleNamespace(get_args=lambda: arguments)
    monkeypatch.setitem(sys.modules, "megatron", types.SimpleNamespace(training=training))
    monkeypatch.setitem(sys.modules, "megatron.training", training)
    monkeypatch.setattr(tokenfeed, "open", lambda name: store)
    train, valid, test = example.train_valid_test_datasets_provider([50, 7, 0])
    assert (len(train), len(valid), test) == (50, 7, None)
    assert train.plan.seed == 3
    assert {source.name for source in train.plan.sources} == {"web", "code"}
