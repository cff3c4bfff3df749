"""Schedules against their plain twin: a loop over all samples, with tables made by the theorem's rule in fractions."""

import json
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfeed.kernels.mixture import build_table
from tokenfeed.plan.schedule import RAMP_STEPS, Schedule, Stage, rationalise

NAMES = "abcdefgh"


def plain_table(counts, size):
    """The first places of a period: of those that may be drawn, who must be drawn first. Tijdeman's rule as it is."""
    period, least = sum(counts), Fraction(1, max(2 * len(counts) - 2, 1))
    drawn, table = [0] * len(counts), []
    for t in range(1, min(period, size) + 1):
        due = {i: Fraction(count * t, period) - drawn[i] for i, count in enumerate(counts)}
        able = [i for i in due if due[i] >= least or len(counts) == 1]
        latest = {i: t + (1 - least - due[i]) * period / counts[i] for i in able}
        table.append(min(able, key=lambda i: (latest[i] // 1, i)))
        drawn[table[-1]] += 1
    return table


def walk(schedule, count):
    """The (source, number) of the first `count` samples, in plain Python."""
    seen = [0] * len(schedule.names)
    found = []
    for segment in schedule._segments:
        stop = min(segment.stop, count)
        table = plain_table(segment.counts.tolist(), stop - segment.start)
        for k in range(segment.start, stop):
            source = int(segment.active[table[(k - segment.start) % segment.period]])
            found.append((source, seen[source]))
            seen[source] += 1
    return found


def pieces(schedule):
    """(samples, exact normalised weights) of what a schedule without changes was asked for, ramps in their steps."""
    before = None
    for stage in schedule.chapters[0].stages:
        given = [Fraction(stage.weights[name]) for name in schedule.names]
        asked = [weight / sum(given) for weight in given]
        steps = min(RAMP_STEPS, stage.samples) if stage.ramp else 1
        for step in range(steps):
            way = Fraction(2 * step + 1, 2 * steps) if stage.ramp else 1
            weights = [a * (1 - way) + b * way for a, b in zip(before or asked, asked, strict=True)]
            yield stage.samples * (step + 1) // steps - stage.samples * step // steps, weights
        before = asked


@st.composite
def stage_lists(draw, names=NAMES, whole=False):
    names = names[: draw(st.integers(1, len(names)))]
    weight = st.integers(0, 12) | st.sampled_from([1, 1, 40])
    if not whole:
        weight = weight | st.floats(0, 5, allow_subnormal=False) | st.sampled_from([1e-6, 1 / 3])
    stages = []
    for _ in range(draw(st.integers(1, 5))):
        weights = draw(st.lists(weight, min_size=len(names), max_size=len(names)).filter(any))
        ramp = bool(stages) and draw(st.booleans())
        least = 1 if ramp else sum(weights) if whole else len(names)
        samples = draw(st.integers(least, least + 100))
        stages.append(Stage(dict(zip(names, weights, strict=True)), samples, ramp))
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
            schedule = schedule.then(at, Stage(new, draw(st.integers(1, 100)), ramp=True), new)
        else:
            schedule = schedule.then(at, new)
    return schedule


def reach(schedule, most=700):
    return min(schedule.total or most, most)


@given(st.lists(st.integers(1, 25) | st.sampled_from([1, 1, 150]), min_size=1, max_size=8))
def test_tables_are_those_of_the_rule_and_keep_its_bound(counts):
    table = np.empty(sum(counts), np.int32)
    build_table(np.array(counts), table)
    assert table.tolist() == plain_table(counts, sum(counts))
    slack = max(2 * len(counts) - 2, 1)
    steps = np.arange(1, table.size + 1)
    for i, count in enumerate(counts):
        off = np.abs(count * steps - np.cumsum(table == i) * table.size)
        assert (off * slack <= (slack - 1) * table.size).all() or len(counts) == 1


@given(st.lists(st.floats(0, 1e6) | st.integers(0, 9), min_size=1, max_size=30).filter(any), st.integers(30, 2**21))
def test_counts_are_the_weights_rounded(weights, length):
    counts, period = rationalise(weights, length)
    assert counts.sum() == period <= min(length, 2**20)
    exact = [Fraction(weight) * period / sum(map(Fraction, weights)) for weight in weights]
    assert all((count > 0) == (weight > 0) for count, weight in zip(counts.tolist(), weights, strict=True))
    lifted = sum(1 - due for due in exact if 0 < due < 1)
    for count, due in zip(counts.tolist(), exact, strict=True):
        assert count - due < 1 + Fraction(1, 10**6)
        assert due - count < 1 + lifted


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


@given(schedules())
def test_counts_are_within_one_of_targets_at_every_prefix(schedule):
    count = reach(schedule, 250)
    sources, _ = schedule.locate(np.arange(count))
    realised = np.zeros(len(schedule.names), np.int64)
    for k in range(count + 1):
        np.testing.assert_array_equal(schedule.counts(k), realised)
        assert (np.abs(schedule.targets(k) - realised) < 1).all()
        if k < count:
            realised[sources[k]] += 1


@given(stage_lists(whole=True))
def test_counts_stay_near_the_weights_asked_for(given_):
    """In fractions, over all stages, ramps and tails. At the end of a stage hardly ever off by 1."""
    schedule = Schedule(*given_)
    sources, _ = schedule.locate(np.arange(schedule.total))
    drawn = np.eye(len(schedule.names), dtype=np.int64)[sources].cumsum(axis=0).tolist()
    due, start = [Fraction(0)] * len(schedule.names), 0
    for samples, weights in pieces(schedule):
        for step in range(1, samples + 1):
            wanted = [before + weight * step for before, weight in zip(due, weights, strict=True)]
            off = max(abs(w - x) for w, x in zip(wanted, drawn[start + step - 1], strict=True))
            assert off < (2.5 if step < samples else 1.5)
        due, start = wanted, start + samples


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
    total = sum(weights.values())
    for source, weight in enumerate(weights[name] for name in changed.names):
        own = numbers[sources == source]
        np.testing.assert_array_equal(own, base[source] + np.arange(own.size))
        assert abs(own.size - Fraction(100 * weight, total)) < 1


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
            Stage(dict(zip(renamed, each.weights.values(), strict=True)), each.samples, each.ramp)
            for each in schedule.chapters[0].stages
        ]
        assert Schedule(stages, renamed).digest(k) != schedule.digest(k)
        assert schedule.then(k - 1, {**dict.fromkeys(schedule.names, 0), "z": 1}).digest(k) != schedule.digest(k)


@given(schedules())
def test_schedules_survive_being_saved(schedule):
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1), st.integers(500, 1000), st.sampled_from([0.05, 1.0, 100.0]))
def test_hundreds_of_sources(seed, num_sources, evenness):
    rng = np.random.default_rng(seed)
    names = [str(i) for i in range(num_sources)]
    draws = [np.maximum(rng.dirichlet(np.full(num_sources, evenness)), 1e-12) for _ in range(3)]
    first, second, third = (dict(zip(names, draw.tolist(), strict=True)) for draw in draws)
    stages = [Stage(first, 5000), Stage(second, 3000, ramp=True), Stage(third)]
    schedule = Schedule(stages, names).then(9000, {**first, "new": 0.5})
    samples = np.arange(12_000)
    sources, numbers = schedule.locate(samples)
    seen = np.zeros(len(schedule.names), np.int64)
    for k in samples.tolist():
        if k % 97 == 0:
            np.testing.assert_array_equal(schedule.counts(k), seen)
            assert (np.abs(schedule.targets(k) - seen) < 1).all()
        assert numbers[k] == seen[sources[k]]
        seen[sources[k]] += 1
    for source in range(0, num_sources + 1, 50):
        own = numbers[sources == source]
        np.testing.assert_array_equal(schedule.find(source, own), np.flatnonzero(sources == source))
