"""Schedules against their plain twin: a loop over all samples, with tables made by the theorem's rule in fractions."""

import json
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples
from tokenfeed.kernels.mixture import build_table
from tokenfeed.plan.rounding import normalise, rationalise
from tokenfeed.plan.schedule import Schedule, Stage

NAMES = "abcdefgh"


def plain_table(counts, rates, phases, most=1 << 20):
    """Tijdeman's rule as it is: of the draws that may come, the one that must come first."""
    n, period, size = len(counts), sum(rates), sum(counts)
    if n == 1:
        return [0] * min(size, most)
    slack = Fraction(0) if any(phases) else Fraction(1, 2 * n - 2)
    drawn, put, table = [0] * n, [(0, i) for i in range(n)], []
    for t in range(1, min(size, most) + 1):
        left = [i for i in range(n) if drawn[i] < counts[i]]
        release = {i: min(ceil(period * (drawn[i] + slack - phases[i]) / rates[i]), size) for i in left}
        able = [i for i in left if release[i] <= t]
        latest = {i: floor(period * (drawn[i] + 1 - slack - phases[i]) / rates[i]) for i in able}
        chosen = min(able, key=lambda i: (latest[i], i)) if able else max(left, key=lambda i: (-release[i], put[i]))
        table.append(chosen)
        drawn[chosen] += 1
        put[chosen] = (t, chosen)
    return table


def table_of(counts, rates=None, phases=None, places=None):
    table = np.empty(places or sum(counts), np.int32)
    rates = counts if rates is None else rates
    build_table(np.array(counts), np.array(rates), np.array(phases or [0] * len(counts)), table)
    return table


def walk(schedule, count):
    """The (source, number) of the first `count` samples, in plain Python."""
    seen = [0] * len(schedule.names)
    found = []
    for segment in schedule._segments:
        stop = min(segment.stop, count)
        if segment.start >= stop:
            break
        active = segment.active
        phases = [Fraction((owed + 2**11) // 2**12, 2**20) for owed in segment.carry[active].tolist()]
        counts, rates = segment.counts[active].tolist(), segment.rates[active].tolist()
        table = plain_table(counts, rates, phases, stop - segment.start)
        for k in range(segment.start, stop):
            source = int(active[table[(k - segment.start) % segment.size]])
            found.append((source, seen[source]))
            seen[source] += 1
    return found


def pieces(schedule):
    """(samples, exact normalised weights) of what a schedule without changes was asked for."""
    for stage in schedule.chapters[0].stages:
        given = [Fraction(stage.weights[name]) for name in schedule.names]
        yield stage.samples, [weight / sum(given) for weight in given]


@st.composite
def stage_lists(draw, names=NAMES, whole=False):
    names = names[: draw(st.integers(1, len(names)))]
    weight = st.integers(0, 12) | st.sampled_from([1, 1, 40])
    if not whole:
        weight = weight | st.floats(0, 5, allow_subnormal=False) | st.sampled_from([1e-6, 1 / 3])
    stages = []
    for _ in range(draw(st.integers(1, 5))):
        weights = draw(st.lists(weight, min_size=len(names), max_size=len(names)).filter(any))
        least = sum(weights) if whole else 1
        samples = draw(st.integers(least, least + 100))
        stages.append(Stage(dict(zip(names, weights, strict=True)), samples))
    return stages, list(names)


@st.composite
def schedules(draw):
    stages, names = draw(stage_lists())
    if draw(st.booleans()):
        stages.append(Stage({name: number + 1 for number, name in enumerate(names)}))
    schedule = Schedule(stages, names)
    at = 0
    for number in range(draw(st.integers(0, 2))):
        at = draw(st.integers(at, min(at + 300, schedule.total or 500)))
        new = dict.fromkeys(schedule.names, 1) | {
            f"new {number}": draw(st.integers(0, 3)),
            "a": draw(st.sampled_from([1, 0.5, 1e-5])),
        }
        if at and draw(st.booleans()):
            schedule = schedule.then(at, Stage(new, draw(st.integers(1, 100))), {**new, "a": 0.25})
        else:
            schedule = schedule.then(at, new)
    return schedule


def reach(schedule, most=700):
    return min(schedule.total or most, most)


@given(st.lists(st.integers(1, 25) | st.sampled_from([1, 1, 150]), min_size=1, max_size=8))
def test_tables_are_those_of_the_rule_and_keep_its_bound(counts):
    table = table_of(counts)
    assert table.tolist() == plain_table(counts, counts, [0] * len(counts))
    slack = max(2 * len(counts) - 2, 1)
    steps = np.arange(1, table.size + 1)
    for i, count in enumerate(counts):
        off = np.abs(count * steps - np.cumsum(table == i) * table.size)
        assert (off * slack <= (slack - 1) * table.size).all() or len(counts) == 1


@given(st.data(), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_tables_of_sources_that_are_owed_are_those_of_the_rule(data, rates):
    phases = [data.draw(st.integers(-(2**21), 2**21)) for _ in rates]
    counts = [data.draw(st.integers(0, rate)) for rate in rates]
    if any(counts):
        found = table_of(counts, rates, phases).tolist()
        assert found == plain_table(counts, rates, [Fraction(phase, 2**20) for phase in phases])
        places = data.draw(st.integers(1, len(found)))
        assert table_of(counts, rates, phases, places).tolist() == found[:places]


@given(st.lists(st.floats(0, 1e6) | st.integers(0, 9), min_size=1, max_size=30).filter(any), st.integers(30, 2**20))
def test_counts_are_the_weights_rounded(weights, longest):
    (counts,) = rationalise(normalise(weights, weights)[None], longest)
    period = counts.sum()
    assert counts.sum() == period <= longest
    exact = [Fraction(weight) * period / sum(map(Fraction, weights)) for weight in weights]
    assert all((count > 0) == (weight > 0) for count, weight in zip(counts.tolist(), weights, strict=True))
    lifted = sum(1 - due for due in exact if 0 < due < 1)
    for count, due in zip(counts.tolist(), exact, strict=True):
        assert count - due < 1 + Fraction(1, 10**6)
        assert due - count < 2 + lifted


@given(schedules())
def test_locate_is_the_plain_walk(schedule):
    count = reach(schedule, 400)
    expected = walk(schedule, count)
    sources, numbers = schedule.locate(np.arange(count))
    assert list(zip(sources.tolist(), numbers.tolist(), strict=True)) == expected
    some = np.random.default_rng(0).integers(0, count, 50)
    for all_, few in zip((sources, numbers), schedule.locate(some), strict=True):
        np.testing.assert_array_equal(few, all_[some])


@given(schedules())
def test_find_is_the_inverse_and_numbers_have_no_gap(schedule):
    count = reach(schedule)
    sources, numbers = schedule.locate(np.arange(count))
    for source in range(len(schedule.names)):
        places = np.flatnonzero(sources == source)
        np.testing.assert_array_equal(numbers[places], np.arange(places.size))
        np.testing.assert_array_equal(schedule.find(source, np.arange(places.size)), places)
        after = schedule.find(source, np.arange(places.size, places.size + 3))
        assert ((after == -1) | (after >= count)).all()
        if schedule.total == count:
            assert (after == -1).all()


def deviations(schedule, count):
    """max |realised − target| after every sample, with targets in fractions from the rates of all segments so far."""
    sources, _ = schedule.locate(np.arange(count))
    realised = np.zeros(len(schedule.names), np.int64)
    target = [Fraction(0)] * len(schedule.names)
    for segment in schedule._segments:
        rates = [Fraction(rate, segment.period) for rate in segment.rates.tolist()]
        rates += [Fraction(0)] * (len(target) - len(rates))  # of sources that came later
        for k in range(segment.start, min(segment.stop, count)):
            realised[sources[k]] += 1
            target = [each + rate for each, rate in zip(target, rates, strict=True)]
            yield float(max(abs(each - x) for each, x in zip(target, realised.tolist(), strict=True)))


@given(schedules())
def test_counts_and_targets_are_those_of_the_whole_run(schedule):
    """Within one of the cumulative target at every prefix, but for what no rule can avoid that does not look ahead."""
    count = reach(schedule, 250)
    sources, _ = schedule.locate(np.arange(count))
    realised = np.zeros(len(schedule.names), np.int64)
    largest = max(deviations(schedule, count), default=0)
    assert largest <= (1 if len(schedule._segments) == 1 else 2)
    for k in range(count + 1):
        np.testing.assert_array_equal(schedule.counts(k), realised)
        assert (np.abs(schedule.targets(k) - realised) <= largest + 1e-5).all()
        if k < count:
            realised[sources[k]] += 1


@given(stage_lists(whole=True))
def test_counts_stay_near_the_weights_asked_for(given_):
    """In fractions, over all stages."""
    schedule = Schedule(*given_)
    sources, _ = schedule.locate(np.arange(schedule.total))
    drawn = np.eye(len(schedule.names), dtype=np.int64)[sources].cumsum(axis=0).tolist()
    due, start = [Fraction(0)] * len(schedule.names), 0
    for samples, weights in pieces(schedule):
        for step in range(1, samples + 1):
            wanted = [before + weight * step for before, weight in zip(due, weights, strict=True)]
            off = max(abs(w - x) for w, x in zip(wanted, drawn[start + step - 1], strict=True))
            assert off < 2
        due, start = wanted, start + samples


@pytest.mark.parametrize("num_sources", [3, 10])
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 5.0]), st.sampled_from([1, 10, 37]))
@settings(max_examples=examples(10))
def test_many_stages_do_not_drift(num_sources, seed, evenness, length):
    """200 stages of 10 samples drifted by 21."""
    rng = np.random.default_rng(seed)
    names = [str(i) for i in range(num_sources)]
    draws = rng.dirichlet(np.full(num_sources, evenness), 60) + 1e-4
    stages = [Stage(dict(zip(names, draw.tolist(), strict=True)), length) for draw in draws]
    schedule = Schedule(stages, names)
    assert max(deviations(schedule, schedule.total)) <= 1.5
    asked = sum(length * draw / draw.sum() for draw in draws)
    assert np.abs(schedule.counts(schedule.total) - asked).max() < 1
    changed = Schedule(stages[:1], names)
    for number, stage in enumerate(stages[1:], 1):  # the same, appended one by one
        changed = changed.then(number * length, stage)
    np.testing.assert_array_equal(changed.locate(np.arange(schedule.total)), schedule.locate(np.arange(schedule.total)))
    assert changed.digest(schedule.total) == schedule.digest(schedule.total)


def test_two_hundred_stages_stay_within_one_sample():
    rng = np.random.default_rng(0)
    names = [str(i) for i in range(10)]
    stages = [Stage(dict(zip(names, draw.tolist(), strict=True)), 10) for draw in rng.dirichlet(np.ones(10), 200)]
    assert max(deviations(Schedule(stages, names), 2000)) <= 1


def test_small_weights_are_not_lifted_by_every_stage():
    """100 samples were drawn where 1.5 are due."""
    weights = {"rare": 1e-5, "less": 2e-5, "web": 1 - 3e-5}
    schedule = Schedule([Stage(weights, 1000)] * 100 + [Stage(weights)], list(weights))
    assert schedule.counts(100_000).tolist() == [1, 2, 99_997]
    assert max(np.abs(schedule.counts(k) - schedule.targets(k)).max() for k in range(0, 100_000, 97)) <= 1
    assert schedule.rounding < 1e-12


@given(schedules(), st.data())
def test_a_change_leaves_what_was_before_and_every_source_goes_on(schedule, data):
    last = schedule.chapters[-1].at
    at = data.draw(st.integers(last, min(last + 400, schedule.total or 1000)))
    weights = {name: data.draw(st.integers(0, 5)) for name in (*schedule.names, "newest")} | {"newest": 1}
    changed = schedule.then(at, weights)
    before, after = np.arange(at), np.arange(at, at + 100)
    np.testing.assert_array_equal(changed.locate(before), schedule.locate(before))
    assert changed.digest(at) == schedule.digest(at)
    sources, numbers = changed.locate(after)
    base = np.append(schedule.counts(at), 0)
    owed = np.append(schedule.targets(at), 0) - base
    total = sum(weights.values())
    for source, weight in enumerate(weights[name] for name in changed.names):
        own = numbers[sources == source]
        np.testing.assert_array_equal(own, base[source] + np.arange(own.size))
        assert abs(own.size - Fraction(100 * weight, total) - (owed[source] if weight else 0)) < 2


@given(schedules(), schedules(), st.integers(0, 300))
def test_equal_digests_mean_equal_samples(one, other, k):
    k = min(k, reach(one), reach(other))
    if one.digest(k) == other.digest(k):
        mine, theirs = one.locate(np.arange(k)), other.locate(np.arange(k))
        assert [one.names[i] for i in mine[0]] == [other.names[i] for i in theirs[0]]
        np.testing.assert_array_equal(mine[1], theirs[1])
    assert Schedule.from_json(one.to_json()).digest(k) == one.digest(k)


@given(schedules(), st.integers(1, 300))
def test_digests_tell_another_past(schedule, k):
    k = min(k, reach(schedule))
    if len(schedule.chapters) == 1:
        renamed = [name.upper() for name in schedule.names]
        stages = [
            Stage(dict(zip(renamed, each.weights.values(), strict=True)), each.samples)
            for each in schedule.chapters[0].stages
        ]
        assert Schedule(stages, renamed).digest(k) != schedule.digest(k)
        assert schedule.then(k - 1, {**dict.fromkeys(schedule.names, 0), "z": 1}).digest(k) != schedule.digest(k)


@given(schedules())
def test_schedules_survive_being_saved(schedule):
    """And one that was made change by change is the one that is made at once."""
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert again == schedule
    count = reach(schedule)
    np.testing.assert_array_equal(again.locate(np.arange(count)), schedule.locate(np.arange(count)))
    assert [again.digest(k) for k in range(0, count, 7)] == [schedule.digest(k) for k in range(0, count, 7)]
    assert again.total == schedule.total


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1), st.integers(500, 1000), st.sampled_from([0.05, 1.0, 100.0]))
def test_hundreds_of_sources(seed, num_sources, evenness):
    rng = np.random.default_rng(seed)
    names = [str(i) for i in range(num_sources)]
    draws = [np.maximum(rng.dirichlet(np.full(num_sources, evenness)), 1e-12) for _ in range(3)]
    first, second, third = (dict(zip(names, draw.tolist(), strict=True)) for draw in draws)
    stages = [Stage(first, 5000), Stage(second, 3000), Stage(third)]
    schedule = Schedule(stages, names).then(9000, {**first, "new": 0.5})
    samples = np.arange(12_000)
    sources, numbers = schedule.locate(samples)
    seen = np.zeros(len(schedule.names), np.int64)
    for k in samples.tolist():
        if k % 97 == 0:
            np.testing.assert_array_equal(schedule.counts(k), seen)
            assert (np.abs(schedule.targets(k) - seen) <= 1 + 1e-5).all()
        assert numbers[k] == seen[sources[k]]
        seen[sources[k]] += 1
    for source in range(0, num_sources + 1, 50):
        own = numbers[sources == source]
        np.testing.assert_array_equal(schedule.find(source, own), np.flatnonzero(sources == source))
