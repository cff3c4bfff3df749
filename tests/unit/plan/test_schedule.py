"""Schedules by example: rounding, bad input, reports, digests, and numbers near the limits."""

import json
import pickle

import numpy as np
import pytest

from tiers import slow
from tokenfeed.errors import ArgumentError, SampleIndexError, StateError
from tokenfeed.kernels.mixture import build_table
from tokenfeed.plan import segments
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.rounding import normalise, rationalise
from tokenfeed.plan.schedule import END, Change, Schedule, Stage
from tokenfeed.store.spec import WindowsSpec


def largest_deviation(counts):
    """max over prefixes and sources of |counts[i]·t/P − occurrences|, as (numerator, P)."""
    counts = np.array(counts, np.int64)
    period = int(counts.sum())
    table = np.empty(period, np.int32)
    build_table(counts, counts, np.zeros_like(counts), table)
    assert (np.bincount(table, minlength=counts.size) == counts).all()
    worst, steps = 0, np.arange(1, period + 1)
    for i, count in enumerate(counts.tolist()):
        worst = max(worst, int(np.abs(count * steps - np.cumsum(table == i) * period).max()))
    return worst, period


ADVERSARIAL = {
    "one": [7],
    "two": [1, 1],
    "a millionth": [999_999, 1],
    "millionths": [999_990, *[1] * 10],
    "equal": [1] * 200,
    "equal and one more": [3] * 99 + [4],
    "dominant": [5000, *range(1, 40)],
    "primes": [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 997],
    "powers": [2**i for i in range(17)],
    "many": [1 + (i * i) % 90 for i in range(300)],
    "greedy fails": [1, 1, 1, 1, 1, 1, 6, 6, 18],
}


@pytest.mark.parametrize("counts", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
def test_tables_keep_the_bound_of_the_theorem(counts):
    worst, period = largest_deviation(counts)
    slack = 2 * len(counts) - 2
    assert worst * slack <= (slack - 1) * period if slack else worst == 0


def test_a_thousand_sources_and_the_longest_period():
    rng = np.random.default_rng(0)
    counts = 1 + rng.multinomial((1 << 20) - 1000, rng.dirichlet(np.full(1000, 0.3)))
    table = np.empty(1 << 20, np.int32)
    build_table(counts, counts, np.zeros_like(counts), table)
    for i in [*range(20), int(counts.argmax())]:
        steps = np.arange(1, table.size + 1)
        assert (np.abs(counts[i] * steps - np.cumsum(table == i) * table.size) * 1998 <= 1997 * table.size).all()


@pytest.mark.parametrize(
    ("counts", "rates", "phases"),
    [
        ([], [], []),
        ([0, 5], [0, 5], [0, 0]),
        ([2, 2], [2, 2], [0, 0]),
        ([9, 9], [2, 2], [0, 0]),
        ([-1, 6], [3, 2], [0, 0]),
        ([3, 2], [2, 2], [0, 0]),
        ([3, 2], [2**20, 1], [0, 0]),
        ([3, 2], [3, 2], [2**31, 0]),
    ],
)
def test_tables_of_other_counts_are_refused(counts, rates, phases):
    with pytest.raises(ValueError):
        build_table(*(np.array(each, np.int64) for each in (counts, rates, phases)), np.empty(5, np.int32))


@pytest.mark.parametrize(
    ("weights", "length", "counts"),
    [
        ([0.7, 0.3], None, [7, 3]),
        ([7, 3], 10, [7, 3]),
        ([0.7, 0.3], 9, [6, 3]),
        ([1, 1, 1], None, [1, 1, 1]),
        ([1 / 3, 2 / 3, 0], None, [1, 2, 0]),
        ([0.1] * 10, None, [1] * 10),
        ([1e-6, 1 - 1e-6], None, [1, 999_999]),
        ([1e300, 3e300], None, [1, 3]),
        ([5e-324, 5e-324], None, [1, 1]),
        ([1e-9, 1, 2], None, [1, 349_525, 699_050]),
        ([1e-320, 1], 50, [1, 49]),
        ([1e-9, 1e-9, 0.02, 1], 100, [1, 1, 2, 96]),
        ([2**0.5, 1], 1000, [586, 414]),
        ([0, 4], None, [0, 1]),
        ([1] * 5, 5, [1] * 5),
    ],
)
def test_weights_become_counts(weights, length, counts):
    (found,) = rationalise(normalise(weights, weights)[None], length or 1 << 20)
    period = found.sum()
    assert found.tolist() == counts
    assert period == sum(counts)


def test_a_thousand_weights_become_counts():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(1000, 0.1)).tolist()
    (counts,) = rationalise(normalise(weights, weights)[None])
    period = counts.sum()
    assert period == 1 << 20 == counts.sum()
    assert counts.min() == 1
    large = np.array(weights) > 1e-3
    np.testing.assert_allclose(counts[large] / period, np.array(weights)[large], rtol=2e-3)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "no source is drawn"),
        ({"a": 0, "b": 0.0}, "no source is drawn"),
        ({"a": 1, "b": -1}, "the weight of 'b' is -1"),
        ({"a": float("nan")}, "the weight of 'a' is nan"),
        ({"a": 1, "b": float("inf")}, "the weight of 'b' is inf"),
        ({"a": "1"}, "the weight of 'a' is '1'"),
        ({"a": None}, "the weight of 'a' is None"),
        ([0.5, 0.5], "dict of source name to weight"),
    ],
)
def test_bad_weights(weights, words):
    with pytest.raises(ArgumentError, match=words):
        Stage(weights)


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, 2**63])
def test_bad_lengths(samples):
    with pytest.raises(ArgumentError, match="positive whole number"):
        Stage({"a": 1}, samples)


def test_bad_schedules():
    a, ab = {"a": 1}, {"a": 1, "b": 1}
    for stages, names, words in [
        ([], ["a"], "no stages"),
        ([Stage(a)], [], "the sources are nothing"),
        ([Stage(a)], ["a", "a"], "need names"),
        ([Stage(ab)], ["a"], "draws from 'b'; the sources are 'a'"),
        ([Stage(a), Stage(a, 5)], ["a"], "stage 0 has no end"),
        ([Stage(a, 2**62), Stage(a, 2**62)], ["a"], "the most is"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            Schedule(stages, names)


def test_bad_changes():
    schedule = Schedule([Stage({"a": 1, "b": 2}, 100)], ["a", "b"])
    assert schedule.then(50, {"a": 1}).counts(60).tolist() == [27, 33]
    with pytest.raises(ArgumentError, match="end at 100"):
        schedule.then(101, {"a": 1, "b": 1})
    with pytest.raises(ArgumentError, match="whole number"):
        schedule.then(-1, {"a": 1, "b": 1})
    with pytest.raises(ArgumentError, match="no stages"):
        schedule.then(50)
    changed = schedule.then(50, {"a": 1, "b": 1})
    with pytest.raises(ArgumentError, match="from 50 on"):
        changed.then(49, {"a": 1, "b": 1})
    assert changed.then(50, {"a": 1, "b": 3}).counts(58).tolist() == [17 + 2, 33 + 6]


def test_samples_outside_the_schedule():
    schedule = Schedule([Stage({"a": 1, "b": 2}, 100)], ["a", "b"])
    for samples in ([-1], [0, 100]):
        with pytest.raises(SampleIndexError, match="outside the schedule"):
            schedule.locate(np.array(samples))
    with pytest.raises(SampleIndexError):
        schedule.counts(101)
    with pytest.raises(ArgumentError, match="negative"):
        schedule.counts(-1)
    with pytest.raises(ArgumentError, match="no source 2"):
        schedule.find(2, np.array([0]))
    assert [each.size for each in schedule.locate(np.empty(0, np.int64))] == [0, 0]
    assert schedule.find(0, np.array([-1, 32, 33, 34, 2**62])).tolist()[0] == -1
    assert (schedule.find(0, np.array([-1, 33, 34, 2**62])) == -1).all()
    assert schedule.counts(0).tolist() == [0, 0]
    assert schedule.counts(100).tolist() == [33, 67]


def test_the_example_of_the_module():
    stages = [Stage({"web": 0.7, "code": 0.3}, 25), Stage({"web": 0.5, "code": 0.5})]
    schedule = Schedule(stages, ["web", "code"])
    sources, numbers = schedule.locate(np.arange(27))
    assert "".join("wc"[i] for i in sources) == "wcwwwcwwcw" * 2 + "wcwww" + "cw"
    assert (sources[17], numbers[17]) == (0, 12)
    assert [segment.bases.tolist() for segment in schedule._segments] == [[0, 0], [14, 6], [18, 7]]


def test_numbers_near_the_limit():
    """k up to 2**62 and beyond; nothing overflows, in either direction."""
    schedule = Schedule([Stage({"a": 1, "b": 2}, 7), Stage({"a": 1, "b": 1e-6 * (1 << 20)})], ["a", "b"])
    samples = np.array([2**62 - 1, 2**62, 2**62 + 1, END - 2, END - 1])
    sources, numbers = schedule.locate(samples)
    for k, source, number in zip(samples.tolist(), sources.tolist(), numbers.tolist(), strict=True):
        assert schedule.find(source, np.array([number])).tolist() == [k]
        assert schedule.counts(k)[source] == number
        assert schedule.counts(k).sum() == k
        assert abs(schedule.targets(k)[source] - number) <= 2**12  # a float has 53 bits
    rare = Schedule([Stage({"a": 999_999, "b": 1})], ["a", "b"])
    assert rare.find(1, np.array([2**62, 2**63 - 1])).tolist() == [-1, -1]
    last = int(rare.counts(END)[1]) - 1
    found = rare.find(1, np.array([last, last + 1]))
    assert END - 1_000_000 <= found[0] < END
    assert found[1] == -1


def test_a_source_that_is_drawn_no_more():
    schedule = Schedule([Stage({"a": 1, "b": 1}, 10), Stage({"a": 1, "b": 0})], ["a", "b"])
    assert (schedule.find(1, np.array([4, 5])) == [schedule.find(1, np.array([4]))[0], -1]).all()
    assert schedule.find(0, np.array([5, 2**61])).tolist() == [10, 2**61 + 5]


def test_many_stages_cost_little_until_they_are_reached(monkeypatch):
    tables = segments.Tables()
    monkeypatch.setattr(segments, "_TABLES", tables)
    names = [f"source {i}" for i in range(1000)]
    rng = np.random.default_rng(0)
    given = [dict(zip(names, rng.random(1000).tolist(), strict=True)) for _ in range(100)]
    schedule = Schedule([*(Stage(weights, 10**10) for weights in given), Stage(given[0])], names)
    assert len(tables) == 0
    schedule.locate(np.array([0, 2**62]))
    assert len(tables) == 2
    schedule.locate(np.arange(10**9, 10**12, 10**11))
    assert len(tables) == 6


def test_what_was_rounded_is_told():
    assert Schedule([Stage({"a": 1, "b": 3}, 5), Stage({"a": 0.7, "b": 0.3})], ["a", "b"]).rounding < 1e-15
    assert 1e-8 < Schedule([Stage({"a": 2**0.5, "b": 1})], ["a", "b"]).rounding < 2**-20


def test_digests():
    """Equal for what agrees so far, whatever comes later; different for any other past."""
    ab = {"a": 1, "b": 1}
    base = Schedule([Stage(ab)], ["a", "b"])
    assert base.digest(0) == Schedule([Stage({"x": 1})], ["x"]).digest(0)
    assert len(base.digest(10)) == 16
    assert base.digest(10) == Schedule([Stage(ab, 10), Stage({"a": 1, "b": 5})], ["a", "b"]).digest(10)
    assert base.digest(10) == Schedule([Stage({"a": 3, "b": 3})], ["a", "b"]).digest(10)
    assert base.digest(10) == base.then(10, {"a": 1, "b": 1, "c": 1}).digest(10)
    assert base.digest(10) != base.then(9, {"a": 1, "b": 1, "c": 1}).digest(10)
    assert base.digest(10) != Schedule([Stage(ab, 8), Stage({"a": 1, "b": 5})], ["a", "b"]).digest(10)
    assert base.digest(10) != Schedule([Stage({"a": 1, "x": 1})], ["a", "x"]).digest(10)
    assert base.digest(10) != Schedule([Stage(ab)], ["b", "a"]).digest(10)
    assert base.digest(10) == Schedule([Stage({"x": 0, **ab})], ["x", "a", "b"]).digest(10)
    longer = base.then(10, {"a": 1, "b": 2}).then(20, {"a": 1, "b": 7})
    assert longer.digest(20) == base.then(10, {"a": 1, "b": 2}).digest(20)
    assert longer.digest(21) != base.then(10, {"a": 1, "b": 2}).digest(21)
    assert [longer.digest(k) for k in range(30)] == [Schedule.from_json(longer.to_json()).digest(k) for k in range(30)]


def test_what_is_computed_does_not_change():
    """Frozen: a checkpoint means these."""
    stages = [Stage({"a": 0.5, "b": 0.3, "c": 0.2}, 33), Stage({"a": 0.1, "b": 3**0.5, "c": 1}, 40)]
    schedule = Schedule([*stages, Stage({"a": 1, "b": 2, "c": 0.1})], ["a", "b", "c"]).then(
        90, {"a": 1, "b": 2, "c": 3}
    )
    drawn = "".join("abc"[i] for i in schedule.locate(np.arange(102))[0])
    assert drawn == (
        "abacabacababacabacababacabacababcbbcbcbbcbbcbabcbbcbcbbcbbcbbcbcbbcbcbbcabbabbabbabbabbabacbcbcacbcbca"
    )
    assert schedule.digest(102) == "852b473af996dcf1"


def test_json_is_compact_and_complete():
    schedule = Schedule([Stage({"b": 1, "a": 2}, 5), Stage({"a": 1, "b": 0}, 9)], ["a", "b"])
    schedule = schedule.then(7, {"c": 1, "a": 1, "b": np.float32(2), "d": 0})
    value = json.loads(json.dumps(schedule.to_json()))
    assert value == {
        "names": ["a", "b"],
        "chapters": [
            [0, [[{"b": 1.0, "a": 2.0}, 5, False], [{"a": 1.0, "b": 0.0}, 9, False]]],
            [7, [[{"c": 1.0, "a": 1.0, "b": 2.0, "d": 0.0}, None, False]]],
        ],
    }
    again = Schedule.from_json(value)
    assert again == schedule == pickle.loads(pickle.dumps(schedule))
    assert again.names == ("a", "b", "c", "d")
    assert hash(again) == hash(schedule)
    assert again != Schedule(schedule.chapters[0].stages, ["a", "b"])
    assert again.chapters[1] == Change(7, (Stage({"a": 1, "b": 2, "c": 1, "d": 0}),))
    assert repr(again) == "Schedule(4 sources, 3 stages, no end, 1 change)"


@pytest.mark.parametrize(
    "value",
    [
        *(None, {}, [], {"names": [], "chapters": []}),
        {"names": ["a"], "chapters": [[0, [[[1, 2], None]]]]},
        {"names": ["a"], "chapters": [[0, [[{"a": 1}, 9, True], [{"a": 1}, None, False]]]]},
    ],
)
def test_json_that_describes_no_schedule(value):
    with pytest.raises(StateError, match="schedule"):
        Schedule.from_json(value)


@pytest.mark.parametrize("shortest", [1, *slow(0, 40)])
def test_many_changes_together_are_each_after_the_other(shortest):
    """What is computed in one call for all is what `then` computes for each; also where places repeat a period."""
    rng = np.random.default_rng(shortest)
    names = ["a", "b", "c"]
    base = Schedule([Stage({"a": 1, "b": 1, "c": 1}, 30), Stage({"a": 2, "b": 1, "c": 1})], names)
    changes, at = [], 37
    for number in range(60):
        weights = rng.random(3) if number % 3 else rng.integers(0, 4, 3) + np.eye(3, dtype=np.int64)[number // 3 % 3]
        changes.append(Change(at, (Stage(dict(zip(names, map(float, weights), strict=True))),)))
        at += shortest + int(rng.integers(0, 50))
    one_by_one = base
    for change in changes:
        one_by_one = one_by_one.then(change.at, *change.stages)
    together = base.follow(changes)
    samples = rng.permutation(at + 300)
    for mine, theirs in zip(together.locate(samples), one_by_one.locate(samples), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [together.digest(k) for k in range(0, at, 11)] == [one_by_one.digest(k) for k in range(0, at, 11)]
    for source in range(3):
        numbers = np.arange(at // 2)
        np.testing.assert_array_equal(together.find(source, numbers), one_by_one.find(source, numbers))
    later = together.then(changes[-1].at, {"c": 1})
    assert (later.locate(np.arange(changes[-1].at, at + 99))[0] == 2).all()


def test_counts_that_are_kept_change_nothing():
    """Plans with many changes keep what sources had at each, and do not deliver the run again to find it."""
    names, rng = ["a", "b", "c"], np.random.default_rng(0)
    sources = [PlanSource(name, 500, name, WindowsSpec(length=8)) for name in names]
    plan = Plan(sources)
    for number in range(80):
        plan = plan.amend(13 * number + 5, weights=dict(zip(names, rng.random(3).tolist(), strict=True)))
    value = json.loads(json.dumps(plan.to_json()))
    told = [each.pop("counts") for each in value["amendments"]]
    assert all(sum(counts) == each["at"] for counts, each in zip(told, value["amendments"], strict=True))
    samples = np.arange(1200)
    for given in (value, plan.to_json()):
        again = Plan.from_json(given)
        assert again == plan
        np.testing.assert_array_equal(again.locate(samples), plan.locate(samples))
        assert again.state(1100) == plan.state(1100)
    for wrong in ([1], [10**12] * 3, [0] * 9, [told[40][0] + 500, told[40][1] - 500, told[40][2]], [-1, 2, 3]):
        damaged = plan.to_json()
        damaged["amendments"][40]["counts"] = wrong
        with pytest.raises(StateError):
            Plan.from_json(damaged)
