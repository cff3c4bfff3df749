"""What attacks have found, each as the smallest case."""

import numpy as np
import pytest

import tokenfeed
from attacks import lies, plans
from tokenfeed.cli.console import _SECRET
from tokenfeed.errors import CorruptionError, TooLargeError
from tokenfeed.store.packed import PackRecord
from tokenfeed.store.verify import verify


@pytest.fixture
def store_path(tmp_path):
    lies.write_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("bits", [21, 22])
def test_lengths_that_wrap_around_are_too_large(tmp_path, bits):
    """2**42 items, so often that their number would be -(2**63), or 0."""
    path = tmp_path / "store"
    with tokenfeed.Writer(path, columns={"tokens": "u1"}, spans={"documents": None}, name="part") as writer:
        for _ in range(4):
            writer.append({"tokens": np.zeros(64, np.uint8)}, documents=None)
    (shard,) = path.glob("part-*")
    lies.make_vast(path, shard, 1 << 42)
    with pytest.raises(TooLargeError, match="read fewer"):
        tokenfeed.open(path).documents().read(np.full(1 << bits, 3))


def test_a_span_that_begins_before_its_shard_is_refused(store_path):
    arrays = lies.load_table(store_path / "part-00001", "bare")
    arrays["S"][0] = -5
    lies.write_table(store_path / "part-00001", "bare", arrays)
    lies.reseal(store_path, "part-00001")
    store = tokenfeed.open(store_path)
    first = store.shards[0].num_items
    with pytest.raises(CorruptionError):
        store.spans["bare"].find(np.array([first - 1]), np.array([0, 4]))


@pytest.mark.parametrize("lie", ["a piece comes twice", "a piece is shorter", "a row has no piece", "rows fall"])
def test_verify_finds_plans_that_repeat_or_leave_out_items(store_path, lie):
    plan = tokenfeed.open(store_path).pack(lies.LENGTH).folder
    assert verify(store_path).ok
    arrays = {"R": np.load(plan / "rows.npy"), "Q": np.load(plan / "pieces.npy")}
    plans.PLAN_LIES[lie](arrays)
    plans.write_plan(plan, PackRecord.load(plan), arrays)
    (problem,) = verify(store_path).problems
    assert "repeat items" in problem or "do not bear its mark" in problem


@pytest.mark.parametrize("text", ["?" * 200_000, "://" * 70_000, "?a" * 100_000, "seed='" * 30_000])
def test_messages_of_any_length_are_cleaned_at_once(text):
    """A pattern that begins again at every letter would take hours for these."""
    assert _SECRET.sub("", text) == text
