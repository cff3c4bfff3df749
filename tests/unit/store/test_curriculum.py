"""Samples from easy to hard: sorted by a key, in buckets, each in a random order of its own."""

import json
import pickle

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, MissingError, PlanMismatchError

COUNT = 60


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    options = {"columns": {"tokens": "uint16"}, "spans": {"documents": "json"}, "sync": False}
    with tokenfeed.Writer(tmp_path / "store", **options) as writer:
        for number, length in enumerate(rng.permutation(COUNT).tolist()):
            writer.append({"tokens": np.full(length + 1, number)}, documents={"score": -length / 7, "id": number})
    return tokenfeed.open(tmp_path / "store")


def lengths_in_order(view, epochs=1, **options):
    loader = tokenfeed.Loader(view, 1, epochs=epochs, prefetch=0, **options)
    return np.array([int(batch.lengths[0]) for batch in loader]).reshape(epochs, -1)


@pytest.mark.parametrize("buckets", [1, 4, 7, COUNT])
@pytest.mark.parametrize("rising", [True, False])
def test_an_epoch_goes_from_bucket_to_bucket(store, buckets, rising):
    view = tokenfeed.curriculum(store.documents(), "length", buckets=buckets, rising=rising)
    first, second = lengths_in_order(view, epochs=2)
    size = -(-COUNT // buckets)
    wanted = np.arange(1, COUNT + 1) if rising else np.arange(COUNT, 0, -1)
    for epoch in (first, second):
        for start in range(0, COUNT, size):
            assert sorted(epoch[start : start + size]) == sorted(wanted[start : start + size])
    assert (first == second).all() == (size == 1)
    assert (lengths_in_order(view, shuffle=False)[0] == wanted).all()


def test_keys_of_all_kinds_are_one_order(store, tmp_path):
    documents = store.documents()
    keys = documents.lengths(np.arange(COUNT))
    np.save(tmp_path / "keys.npy", keys)
    views = [
        tokenfeed.curriculum(documents, "length"),
        tokenfeed.curriculum(documents, "payload.score", rising=False),
        tokenfeed.curriculum(documents, keys.astype(np.float32)),
        tokenfeed.curriculum(documents, tmp_path / "keys.npy"),
    ]
    orders = [lengths_in_order(view).tolist() for view in views]
    assert orders == [orders[0]] * 4
    assert len({view.spec.digest for view in views}) == 1
    sorted_already = tokenfeed.curriculum(documents, np.arange(COUNT))
    assert sorted_already.read([3, 9]).tokens.tobytes() == documents.read([3, 9]).tokens.tobytes()


def test_later_epochs_may_be_shuffled_with_everything(store):
    view = tokenfeed.curriculum(store.documents(), "length", buckets=6, epochs=1)
    first, second = lengths_in_order(view, epochs=2)
    assert all(sorted(first[start : start + 10]) == list(range(start + 1, start + 11)) for start in range(0, COUNT, 10))
    assert sorted(second) == list(range(1, COUNT + 1))
    assert max(second[:10]) > 20


def test_within_a_mixture_with_skips_and_resume(store, tmp_path):
    view = tokenfeed.curriculum(store.documents(), "length", buckets=5)
    mixed = tokenfeed.mix({"hard": (view, 3), "plain": (store.documents(), 1)})
    plan = tokenfeed.Plan.of(mixed).amend(20, skip=tokenfeed.Skip(indices=[55, 56], source="hard"))
    sources, epochs, indices = plan.locate(np.arange(200))
    own = indices[(sources == 0) & (epochs == 0)]
    assert sorted(own) == sorted(set(range(COUNT)) - {55, 56})
    buckets = own // 12
    assert (np.diff(buckets) >= 0).all()
    for epoch in range(2):
        found = plan.find_all(np.arange(COUNT), epoch, source="hard")
        for index, k in enumerate(found.tolist()):
            rows = np.flatnonzero((sources == 0) & (epochs == epoch) & (indices == index)).tolist()
            assert rows == ([k] if 0 <= k < 200 else [])
    loader = tokenfeed.Loader(plan, 4, run=tmp_path / "run.jsonl")
    seen = [next(loader).tokens for _ in range(12)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) <= 300
    after = next(loader).samples.tolist(), next(loader).lengths.tolist()
    loader.close()
    again = tokenfeed.Loader(tokenfeed.Run(tmp_path / "run.jsonl").plan(), 4)
    again.load_state_dict(state)
    assert (next(again).samples.tolist(), next(again).lengths.tolist()) == after
    assert len(seen) == 12
    copy = pickle.loads(pickle.dumps(view))
    assert copy.spec == view.spec
    assert copy.read([0, 59]).lengths.tolist() == [1, COUNT]


def test_other_orders_are_other_runs(store):
    documents = store.documents()
    state = tokenfeed.Loader(tokenfeed.curriculum(documents, "length"), 4).plan.state(8)
    for other in (
        documents,
        tokenfeed.curriculum(documents, "length", buckets=3),
        tokenfeed.curriculum(documents, "length", rising=False),
        tokenfeed.curriculum(documents, "length", epochs=1),
    ):
        with pytest.raises(PlanMismatchError, match="different view"):
            tokenfeed.Loader(other, 4).load_state_dict(state)


def test_what_cannot_be_sorted(store, tmp_path):
    documents, windows = store.documents(), store.windows(8)
    nan = np.arange(COUNT, dtype=float)
    nan[7] = np.nan
    np.save(tmp_path / "short.npy", nan[:5])
    for view, key, told in (
        (documents, "payload.grade", r"document 0 has no field 'grade' to be sorted by.*score, id"),
        (windows, "payload.score", "only documents have one payload each"),
        (documents, nan, "the key of sample 7 is nan"),
        (documents, nan[:5], r"shape \(5,\); expected one number for each of 60 samples"),
        (documents, np.array(["a"] * COUNT), "expected one number for each"),
        (documents, "size", "expected 'length', 'payload.' and a field"),
        (documents, tmp_path / "short.npy", "expected one number for each of 60"),
        (store, "length", "a curriculum is of a view"),
    ):
        with pytest.raises(ArgumentError, match=told):
            tokenfeed.curriculum(view, key)
    with pytest.raises(MissingError, match=r"gone\.npy"):
        tokenfeed.curriculum(documents, "gone.npy")
    for options in ({"buckets": 0}, {"buckets": COUNT + 1}, {"epochs": 0}, {"buckets": 1.5}):
        with pytest.raises(ArgumentError, match=r"buckets|epochs"):
            tokenfeed.curriculum(documents, "length", **options)
    view = tokenfeed.curriculum(documents, "length")
    with pytest.raises(ArgumentError, match="is a curriculum, an order of the samples that there were"):
        tokenfeed.Plan.of(view).amend(5, grown=view)
    with pytest.raises(ArgumentError, match="an array in memory, which is not kept"):
        pickle.loads(pickle.dumps(tokenfeed.curriculum(documents, np.arange(COUNT)[::-1])))
