"""Stages, changes, digests and JSON of shares, and what is refused. The property tests hold what they draw."""

import json
import pickle

import numpy as np
import pytest

from tokenfeed.errors import ArgumentError, SampleIndexError, StateError
from tokenfeed.plan.shares import END, Change, Shares, Stage

AB = {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "no source is drawn"),
        ({"a": 0, "b": 0.0}, "no source is drawn: the weights of 'a', 'b' are 0"),
        *(({"b": 1, "a": bad}, "the weight of 'a' is") for bad in (-1, float("nan"), float("inf"), "1", None, True)),
        ({"a": 10**400}, "the weight of 'a' is"),
        ([0.5, 0.5], "dict of source name to weight"),
    ],
)
def test_bad_weights(weights, words):
    with pytest.raises(ArgumentError, match=words):
        Stage(weights)


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, 2**62])
def test_bad_lengths(samples):
    with pytest.raises(ArgumentError, match="positive whole number"):
        Stage({"a": 1}, samples)


@pytest.mark.parametrize(
    ("stages", "names", "words"),
    [
        ([], ["a"], "no stages"),
        ([Stage({"a": 1})], [], "the sources are nothing"),
        ([Stage({"a": 1})], ["a", "a"], "need names"),
        ([Stage(AB)], ["a"], "draws from 'b'; the sources are 'a'"),
        ([Stage({"a": 1}), Stage({"a": 1}, 5)], ["a"], "stage 0 has no end"),
        ([Stage({"a": 1}, 2**61), Stage({"a": 1}, 2**61)], ["a"], "the most is"),
    ],
)
def test_bad_stages(stages, names, words):
    with pytest.raises(ArgumentError, match=words):
        Shares(stages, names)


def test_bad_changes():
    shares = Shares([Stage({"a": 1, "b": 2}, 100)], ["a", "b"])
    assert shares.then(50, {"a": 1}).counts(60).tolist() == [27, 33]
    for at, stages, words in [
        (101, [AB], "end at 100"),
        (-1, [AB], "whole number"),
        (50, [], "no stages"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            shares.then(at, *stages)
    changed = shares.then(50, AB)
    with pytest.raises(ArgumentError, match="from 50 on"):
        changed.then(49, AB)
    assert changed.then(50, {"a": 1, "b": 3}).counts(58).tolist() == [17 + 2, 33 + 6]


def test_samples_outside():
    shares = Shares([Stage({"a": 1, "b": 2}, 100)], ["a", "b"])
    for samples in ([-1], [0, 100], [2**63 - 1]):
        with pytest.raises(SampleIndexError, match="outside the shares"):
            shares.at(np.array(samples))
    with pytest.raises(SampleIndexError):
        shares.counts(101)
    with pytest.raises(ArgumentError, match="negative"):
        shares.counts(-1)
    assert [each.size for each in shares.at(np.empty(0, np.int64))] == [0, 0]
    assert (shares.place(0, np.array([-1, 33, 34, 2**62])) == -1).all()
    assert (shares.counts(0).tolist(), shares.counts(100).tolist()) == ([0, 0], [33, 67])


def test_the_example_of_the_module():
    shares = Shares([Stage({"web": 3, "code": 1}, 2), Stage({"web": 1, "code": 1})], ["web", "code"])
    assert [shares.names[source] for source in shares.at(np.arange(6))[0]] == [
        "web",
        "web",
        "code",
        "web",
        "code",
        "web",
    ]
    assert [float(shares.targets(k)[0]) for k in range(7)] == [0, 0.75, 1.5, 2, 2.5, 3, 3.5]
    assert [int(shares.counts(k)[0]) for k in range(7)] == [0, 1, 2, 2, 3, 3, 4]


def test_numbers_near_the_limit():
    shares = Shares([Stage({"a": 1, "b": 2}, 7), Stage({"a": 1, "b": 1e-6 * (1 << 20)})], ["a", "b"])
    samples = np.array([2**61 - 1, 2**61, END - 2, END - 1])
    sources, numbers = shares.at(samples)
    for k, source, number in zip(samples.tolist(), sources.tolist(), numbers.tolist(), strict=True):
        assert shares.place(source, np.array([number])).tolist() == [k]
        assert shares.counts(k)[source] == number
        assert shares.counts(k).sum() == k
    rare = Shares([Stage({"a": 999_999, "b": 1})], ["a", "b"])
    assert rare.place(1, np.array([2**62, 2**63 - 1])).tolist() == [-1, -1]
    last = int(rare.counts(END)[1]) - 1
    found = rare.place(1, np.array([last, last + 1]))
    assert END - 1_000_000 <= found[0] < END
    assert found[1] == -1


def test_a_source_that_is_drawn_no_more():
    shares = Shares([Stage(AB, 10), Stage({"a": 1, "b": 0})], ["a", "b"])
    assert shares.place(1, np.array([4, 5])).tolist()[1] == -1
    assert shares.place(0, np.array([5, 2**61])).tolist() == [10, 2**61 + 5]
    assert shares.drawn_from(11) == ["a"]
    assert shares.drawn_from(10) == ["a", "b"]


def test_small_weights_are_not_lifted_by_every_stage():
    weights = {"rare": 1e-5, "less": 2e-5, "web": 1 - 3e-5}
    shares = Shares([Stage(weights, 1000)] * 100 + [Stage(weights)], list(weights))
    assert shares.counts(100_000).sum() == 100_000
    assert max(np.abs(shares.counts(k) - shares.targets(k)).max() for k in range(0, 100_000, 97)) <= 2


def test_digests():
    """Equal for what agrees so far, whatever comes later; different for any other past."""
    base = Shares([Stage(AB)], ["a", "b"])
    assert base.digest(0) == Shares([Stage({"x": 1})], ["x"]).digest(0)
    assert len(base.digest(10)) == 16
    assert base.digest(10) == Shares([Stage(AB, 10), Stage({"a": 1, "b": 5})], ["a", "b"]).digest(10)
    assert base.digest(10) == base.then(10, {"a": 1, "b": 1, "c": 1}).digest(10)
    assert base.digest(10) != base.then(9, {"a": 1, "b": 1, "c": 1}).digest(10)
    assert base.digest(10) != Shares([Stage(AB, 8), Stage({"a": 1, "b": 5})], ["a", "b"]).digest(10)
    assert base.digest(10) != Shares([Stage(AB)], ["b", "a"]).digest(10)
    assert base.digest(10) == Shares([Stage({"x": 0, **AB})], ["x", "a", "b"]).digest(10)
    longer = base.then(10, {"a": 1, "b": 2}).then(20, {"a": 1, "b": 7})
    assert longer.digest(20) == base.then(10, {"a": 1, "b": 2}).digest(20) != longer.digest(21)
    assert [longer.digest(k) for k in range(30)] == [Shares.from_json(longer.to_json()).digest(k) for k in range(30)]


def test_what_is_computed_does_not_change():
    """Frozen: a checkpoint means these."""
    stages = [Stage({"a": 0.5, "b": 0.3, "c": 0.2}, 33), Stage({"a": 0.1, "b": 3**0.5, "c": 1}, 40)]
    shares = Shares([*stages, Stage({"a": 1, "b": 2, "c": 0.1})], ["a", "b", "c"]).then(90, {"a": 1, "b": 2, "c": 3})
    drawn = "".join("abc"[i] for i in shares.at(np.arange(102))[0])
    assert drawn == (
        "abacabacababacabacababacabacababacbcbbcbbcbbcbcbbcbbcbbcbbcbacbcbbcbbcbbcbabbabbbabbabbabbcacbcbcacbcb"
    )
    assert shares.digest(102) == "59d672fa59f5ae9b"


def test_json_is_compact_and_complete():
    shares = Shares([Stage({"b": 1, "a": 2}, 5), Stage({"a": 1, "b": 0}, 9)], ["a", "b"])
    shares = shares.then(7, {"c": 1, "a": 1, "b": np.float32(2), "d": 0})
    value = json.loads(json.dumps(shares.to_json()))
    assert value == {
        "names": ["a", "b"],
        "changes": [
            [0, [[{"b": 1.0, "a": 2.0}, 5], [{"a": 1.0, "b": 0.0}, 9]]],
            [7, [[{"c": 1.0, "a": 1.0, "b": 2.0, "d": 0.0}, None]]],
        ],
    }
    again = Shares.from_json(value)
    assert again == shares == pickle.loads(pickle.dumps(shares))
    assert again.names == ("a", "b", "c", "d")
    assert hash(again) == hash(shares)
    assert again != Shares(shares.changes[0].stages, ["a", "b"])
    assert again.changes[1] == Change(7, (Stage({"a": 1, "b": 2, "c": 1, "d": 0}),))
    assert repr(again) == "Shares(4 sources, 3 stages, no end, 1 change)"


@pytest.mark.parametrize(
    "value",
    [*(None, {}, [], {"names": [], "changes": []}), {"names": ["a"], "changes": [[0, [[[1, 2], None]]]]}],
)
def test_json_that_describes_no_shares(value):
    with pytest.raises(StateError, match="shares"):
        Shares.from_json(value)
