"""Steering by loss: means by source, a policy, and a replay from the run file without the model."""

import math

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError

torch = pytest.importorskip("torch")
from tokenfeed.torch import LossBySource, OnlineMixing, to_device  # noqa: E402


@pytest.fixture
def mixture(tmp_path):
    sources = {}
    for number, name in enumerate(("web", "code", "math")):
        with tokenfeed.Writer(tmp_path / name, columns={"tokens": "uint16"}, sync=False) as writer:
            writer.append({"tokens": np.arange(400) + 1000 * number})
        sources[name] = (tokenfeed.open(tmp_path / name).windows(4, extra=1), 1)
    return tokenfeed.mix(sources)


@pytest.mark.parametrize("by_row", [True, False])
def test_means_by_source(mixture, by_row):
    losses, expected = LossBySource(), {}
    with tokenfeed.Loader(mixture, 5, rank=0, world_size=1) as loader:
        for _, batch in zip(range(4), to_device(loader, "cpu"), strict=False):
            loss = batch.targets.double() / 100
            losses.add(loss.mean(1) if by_row else loss, batch)
            for row, source in enumerate(batch.sources):
                expected.setdefault(batch.source_names[source], []).append(float(loss[row].mean()))
    assert losses.take() == pytest.approx({name: np.mean(each) for name, each in expected.items()}, rel=1e-5)
    with pytest.raises(ArgumentError, match="no batch was added"):
        losses.take()
    with pytest.raises(ArgumentError, match="expected one for each of 5 rows"):
        losses.add(torch.zeros(4), batch)


@pytest.mark.parametrize("flat", [True, False])
def test_flat_batches(tmp_path, flat):
    """Documents of different lengths, among them one without a pair; masked targets do not count."""
    sources = {}
    for number, name in enumerate(("web", "code")):
        columns = {"tokens": "uint16", "learn": "bool"}
        with tokenfeed.Writer(tmp_path / name, columns=columns, spans={"documents": None}, sync=False) as writer:
            for length in (5, 1, 3, 9, 2):
                writer.append({"tokens": np.arange(length) + 1000 * number, "learn": np.arange(length) % 3 > 0})
        sources[name] = (tokenfeed.open(tmp_path / name).documents(loss_mask="learn"), 1)
    found, expected = LossBySource(), LossBySource()
    with tokenfeed.Loader(tokenfeed.mix(sources), 7, rank=0, world_size=1) as loader:
        for _, batch in zip(range(3), to_device(loader, "cpu", flat=flat), strict=False):
            found.add(batch.flat.targets.double(), batch)
            expected.add(torch.from_numpy(batch.host.targets.astype(np.float64)), batch.host)
    assert found.take() == pytest.approx(expected.take(), rel=1e-5)


def test_the_policy_is_that_of_the_paper():
    policy = OnlineMixing(["a", "b"], smoothing=0.5)
    assert policy.weights == {"a": 0.5, "b": 0.5}
    first = policy.update({"a": 2.0, "b": 1.0})  # R = (2, 1); e = 1/2: half of each, whatever R is
    assert first == pytest.approx({"a": 0.5, "b": 0.5})
    for _ in range(3):
        last = policy.update({"a": 2.0, "b": 1.0})
    explore, before = (math.sqrt(math.log(2) / (2 * t)) for t in (4, 3))
    rewards = [policy.state_dict()["rewards"][name] for name in "ab"]
    share = 1 / (1 + math.exp(before * (rewards[1] - rewards[0])))
    assert last["a"] == pytest.approx((1 - 2 * explore) * share + explore)
    assert last["a"] > 0.5
    again = OnlineMixing(["a", "b"], smoothing=0.5)
    again.load_state_dict(policy.state_dict())
    assert again.update({"b": 3.0}) == policy.update({"b": 3.0})
    with pytest.raises(ArgumentError, match="expected finite ones of a, b"):
        policy.update({"c": 1.0})


def test_a_steered_run_is_replayed_without_the_model_on_other_ranks(mixture, tmp_path):
    policy, losses, steered = OnlineMixing(["web", "code", "math"], smoothing=0.2), LossBySource(), []
    loader = tokenfeed.Loader(mixture, 6, rank=0, world_size=1, run=tmp_path / "run.jsonl")
    for step, batch in zip(range(30), to_device(loader, "cpu"), strict=False):
        steered += batch.inputs.tolist()
        losses.add(batch.targets.float().log(), batch)
        if step % 5 == 4:
            loader.amend(weights=policy.update(losses.take()))
    loader.close()
    run = tokenfeed.Run(tmp_path / "run.jsonl")
    assert len(run.plan().amendments) == 5  # the last was made after the last batch
    ranks = [tokenfeed.Loader(run.plan(), 2, rank=rank, world_size=3) for rank in range(3)]
    replayed = []
    for _ in range(30):
        batches = [next(rank) for rank in ranks]
        rows = sorted((k, row) for each in batches for k, row in zip(each.samples, each.inputs.tolist(), strict=True))
        replayed += [row for _, row in rows]
    assert replayed == steered
    counts = [entry.samples for entry in run.plan().ledger(180)]
    assert counts != [60, 60, 60]
