"""Shares of sources: exact both ways, within the promised distance of their targets, and never changed afterwards."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples, pick
from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.plan.shares import END, Shares, Stage

WHILE_WEIGHTS_HOLD, AFTER_CHANGES = 2, 6
"""How far a source may be from its target, in samples: what the docs promise."""

NAMES = [f"s{number}" for number in range(300)]


def draw_weights(rng, size):
    kinds = [
        np.ones(size),
        rng.random(size),
        rng.pareto(1, size),
        rng.random(size) ** 20,
        rng.integers(1, (1 << 62) // size, size),
    ]
    is_drawn = rng.permutation(size) < max(size * rng.choice([0.6, 1]), 1)
    return dict(zip(NAMES, np.where(is_drawn, kinds[rng.integers(len(kinds))], 0).tolist(), strict=False))


def draw_history(rng):
    """(sources at the beginning, changes) of a run: weights that change now and then, sources that come and go."""
    sizes = np.sort(rng.integers(1, 1 + int(40 ** rng.random() * 7), 1 + int(60 ** rng.random())))
    start, changes = 0, []
    for number, size in enumerate(sizes.tolist()):
        changes.append((start, draw_weights(rng, size)))
        start += int(rng.integers(1, rng.choice([4, 40, 400]))) if number else 1500
    return int(sizes[0]), changes


def plan_shares(size, changes):
    shares = Shares([Stage(changes[0][1])], NAMES[:size])
    for at, weights in changes[1:]:
        shares = shares.then(at, weights)
    return shares


def targets_of(changes, stop, names):
    """What is due to every source before each sample: exact where weights change, and from there a straight line."""
    due = dict.fromkeys(names, Fraction(0))
    rows = []
    ends = [at for at, _ in changes[1:]] + [stop]
    for (at, weights), end in zip(changes, ends, strict=True):
        total = sum(map(Fraction, weights.values()))
        shares = {name: Fraction(weights.get(name, 0)) / total for name in names}
        rows.append(
            [float(each) for each in due.values()] + np.outer(np.arange(end - at), list(map(float, shares.values())))
        )
        due = {name: due[name] + (end - at) * shares[name] for name in names}
    return np.concatenate(rows)


@pytest.mark.parametrize("seed", range(pick(8, 40)))
def test_histories(seed):
    rng = np.random.default_rng(seed)
    for _ in range(pick(6, 50)):
        size, changes = draw_history(rng)
        shares = plan_shares(size, changes)
        stop = changes[-1][0] + 200
        far = stop + (2 ** rng.uniform(0, 61.9, 50)).astype(np.int64)
        samples = np.concatenate([np.arange(stop), far[far < END]])
        sources, numbers = shares.at(samples)
        drawn = sources[:stop]
        for source in range(len(shares.names)):
            own = numbers[:stop][drawn == source]
            np.testing.assert_array_equal(own, np.arange(own.size), err_msg="a number is left out, or comes twice")
            chosen = sources == source
            np.testing.assert_array_equal(shares.place(source, numbers[chosen]), samples[chosen])
        had = np.cumsum(np.eye(len(shares.names), dtype=int)[drawn], axis=0) - np.eye(len(shares.names))[drawn]
        at = int(rng.integers(stop))
        assert shares.counts(at).tolist() == had[at].tolist()
        first = changes[1][0] if len(changes) > 1 else stop
        cut = int(rng.integers(1, len(changes) + 1))
        before = changes[cut][0] if cut < len(changes) else stop
        earlier = plan_shares(size, changes[:cut])
        assert np.array_equal(earlier.at(np.arange(before)), (drawn[:before], numbers[:before])), "the past changed"
        targets = targets_of(changes, stop, shares.names)
        distances = np.abs(had - targets).max(axis=1)
        assert distances[:first].max() <= WHILE_WEIGHTS_HOLD
        assert distances.max() <= AFTER_CHANGES
        np.testing.assert_allclose(shares.targets(at), targets[at], atol=1e-3)


def test_far_samples_are_exact():
    """By whole numbers of any size, one level at a time."""
    weights = [3, 5, 7, 11, (1 << 45) + 1]
    shares = Shares([Stage(dict(zip("abcde", weights, strict=True)))], "abcde")
    (tree,) = shares._trees
    for k in [*range(50), (1 << 61) + 12_345, END - 1]:
        m, vertex = k, tree.root
        while vertex < 0:
            left_weight, weight, phase, left, right, _ = tree.nodes[~vertex]
            now, then = (min(max((each * left_weight + phase) // weight, 0), each) for each in (m, m + 1))
            m, vertex = (now, left) if then > now else (m - now, right)
        assert [each.tolist() for each in shares.at(np.array([k]))] == [[vertex], [m]]
        assert shares.counts(k)[vertex] == m


@pytest.mark.parametrize("sizes", [[500_000_003, 41_000_017], [1, 10**12], [7] * 100, [*range(1, 60)]])
def test_sizes_as_weights_end_together(sizes):
    shares = Shares([Stage(dict(zip(NAMES, sizes, strict=False)))], NAMES[: len(sizes)])
    assert shares.counts(sum(sizes)).tolist() == sizes
    for source, size in enumerate(sizes):
        assert 0 <= shares.place(source, np.array([size - 1]))[0] < sum(sizes) <= shares.place(source, np.array([size]))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), min_size=1, max_size=6), st.booleans())
@settings(max_examples=examples(60))
def test_stages_have_their_lengths(stages, is_endless):
    """Stages with lengths are the same as changes at their ends; the run ends with the last one that has a length."""
    given = [Stage({"a": weight, "b": 1}, length) for weight, length in stages]
    if is_endless:
        given[-1] = Stage(given[-1].weights)
    shares = Shares(given, ["a", "b"])
    starts = list(itertools.accumulate((length for _, length in stages), initial=0))
    one_by_one = Shares([Stage(given[0].weights)], ["a", "b"])
    for at, stage in list(zip(starts, given, strict=False))[1:]:
        one_by_one = one_by_one.then(at, stage.weights)
    samples = np.arange(starts[-1])
    assert np.array_equal(shares.at(samples), one_by_one.at(samples))
    assert shares.total == (None if is_endless else starts[-1])
    assert shares.stages() == list(zip(starts, given, strict=False))
    if not is_endless:
        with pytest.raises(SampleIndexError, match="ends after"):
            shares.at(np.array([starts[-1]]))
        assert shares.place(1, np.array([10**9])).tolist() == [-1]
    assert Shares.from_json(shares.to_json()) == shares


def test_a_change_where_a_stage_begins_replaces_it():
    shares = Shares([Stage({"a": 1, "b": 1}, 10), Stage({"a": 1, "b": 0})], ["a", "b"]).then(10, {"a": 0, "b": 1})
    assert shares.at(np.arange(10, 40))[0].tolist() == [1] * 30
    again = shares.then(10, {"a": 1, "b": 0})
    assert again.at(np.arange(10, 40))[0].tolist() == [0] * 30
    with pytest.raises(ArgumentError, match="where the change before it begins"):
        shares.then(9, {"a": 1, "b": 1})


def test_a_digest_covers_the_past_alone():
    shares = Shares([Stage({"a": 3, "b": 1})], ["a", "b"])
    later = shares.then(100, {"a": 1, "b": 1, "c": 2})
    assert shares.past(100)[0] == later.past(100)[0] != later.past(101)[0]
    assert shares.past(101)[0] == shares.past(100)[0]
    assert [each.tolist() for each in (later.past(100)[1], later.past(101)[1])] == [[True, True, False], [True] * 3]
    assert (later.past(50)[2], later.past(101)[2]) == (100, END)
    assert Shares([Stage({"a": 6, "b": 2})], ["a", "b"]).past(9)[0] == shares.past(9)[0], "the same proportions"
    assert Shares([Stage({"x": 3, "b": 1})], ["x", "b"]).past(9)[0] != shares.past(9)[0], "another source"
    back = later.then(100, {"a": 3, "b": 1})
    assert back.past(120)[0] != shares.past(120)[0]
    assert (back.at(np.arange(100, 200))[0] == shares.at(np.arange(100, 200))[0]).all()
