"""Listed orders: what is refused, what is noticed, and loaders over them."""

import pickle

import numpy as np
import pytest

import tokenfeed
from plans import source
from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, PlanMismatchError
from tokenfeed.plan import Listed
from tokenfeed.plan.plan import Plan


@pytest.fixture
def path(tmp_path):
    Listed.write(tmp_path / "order.npy", [5, 0, 3, 9])
    return tmp_path / "order.npy"


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([3, 1, 3], "sample 3 is listed twice, at 0 and 2"),
        ([], "at least one"),
        ([-1], "from 0 on"),
        ([0.5], "numbers"),
    ],
)
def test_what_is_no_order_is_refused(samples, told, tmp_path):
    with pytest.raises(ArgumentError, match=told):
        Listed.write(tmp_path / "order.npy", samples)
    with pytest.raises(NotFoundError, match=r"Listed\.write"):
        Listed(tmp_path / "order.npy")
    with pytest.raises(ArgumentError, match=r"is a \.npy"):
        Listed("order.txt")


def test_a_sample_that_the_source_lacks_is_refused(path):
    with pytest.raises(ArgumentError, match="lists sample 9; the view has 9"):
        Plan([source("", 9)], shuffle=Listed(path))
    with pytest.raises(ArgumentError, match="lists samples of one source; there are 2"):
        Plan([source("a", 90), source("b", 90)], shuffle=Listed(path))


def test_damage_is_noticed(path):
    order = Listed(path)
    assert order == pickle.loads(pickle.dumps(order))
    np.save(path, np.array([5, 3, 0, 9], np.uint8))
    with pytest.raises(CorruptionError, match="its numbers, which are others"):
        Listed(path)
    Listed.write(path, [5, 0, 3, 9])
    np.save(path.with_suffix(".places.npy"), np.array([1, 2, 7, 3], np.uint8))
    with pytest.raises(CorruptionError, match="a place in its index"):
        Listed(path).place(np.array([5]))
    np.save(path.with_suffix(".places.npy"), np.array([2, 1, 0, 3], np.uint8))
    with pytest.raises(CorruptionError, match="which is of other numbers"):
        Listed(path).place(np.array([0]))


def test_a_plan_knows_its_list(path):
    plan = Plan([source("", 10)], shuffle=Listed(path))
    assert plan.locate(np.arange(6))[2].tolist() == [5, 0, 3, 9, 5, 0]
    assert plan.find_all(np.arange(10), 1).tolist() == [5, -1, -1, 6, -1, 4, -1, -1, -1, 7]
    assert plan.count(2) == 8
    again = Plan.from_json(plan.to_json())
    assert again == plan
    Listed.write(path, [5, 0, 9, 3])
    with pytest.raises(PlanMismatchError, match="another order than when the run began"):
        Plan.from_json(plan.to_json())
    with pytest.raises(PlanMismatchError, match="different order"):
        Plan([source("", 10)], shuffle=Listed(path)).accept(plan.state(3))


def test_a_list_grows_in_order(path):
    """What is added follows what is left, and in later epochs all that is listed."""
    plan = Plan([source("", 10)], shuffle=Listed(path)).amend(5, grow=source("", 2))
    assert plan.locate(np.arange(16))[2].tolist() == [5, 0, 3, 9, 5, 0, 3, 9, 10, 11, 5, 0, 3, 9, 10, 11]


def test_a_loader_reads_a_list(path, tmp_path):
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": np.arange(41)})
    loader = tokenfeed.Loader(tokenfeed.open(tmp_path / "store").windows(4), 2, shuffle=Listed(path), epochs=1)
    assert [batch.tokens[:, 0].tolist() for batch in loader] == [[20, 0], [12, 36]]


def test_what_a_listed_run_has_not_seen(path, tmp_path):
    """Samples that are not listed are not seen, however long it runs."""
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}) as writer:
        writer.append({"tokens": np.arange(41)})
    view = tokenfeed.open(tmp_path / "store").windows(4)
    loader = tokenfeed.Loader(view, 3, shuffle=Listed(path), run=tmp_path / "run.jsonl", rank=0, world_size=1)
    for seen in ([0, 12, 20], [0, 12, 20, 36], [0, 12, 20, 36], [0, 12, 20, 36], [0, 12, 20, 36]):
        next(loader)
        loader.close()  # notes how far it is
        assert sorted(view.seen(tokenfeed.Run(tmp_path / "run.jsonl"))[:].tokens[:, 0].tolist()) == seen
