"""Plans against their plain twin: a loop that walks through the shuffled stream and leaves out what is skipped."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError, PlanMismatchError
from tokenfeed.plan.locality import Locality, LocalPermutation
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Skip


def walk(num_samples, seed, shuffle, skips, count):
    """The first `count` (epoch, index) of a run, in plain Python."""
    orders = {}

    def at(position):
        epoch, place = divmod(position, num_samples)
        if not shuffle:
            return epoch, place
        if epoch not in orders:
            order = Permutation(num_samples, seed, epoch)
            if isinstance(shuffle, Locality):
                order = LocalPermutation(num_samples, seed, epoch, shuffle)
            orders[epoch] = order(np.arange(num_samples)).tolist()
        return epoch, orders[epoch][place]

    ranges, removals = [], []
    for skip in skips:
        if skip.samples:
            ranges.append(skip.samples)
        else:
            start = skip.at
            for a, b in reversed(ranges):
                start += (b - a) * (start >= a)
            removals.append((start, set(skip.indices)))
    numbers = []
    for k in range(count):
        for a, b in reversed(ranges):
            k += (b - a) * (k >= a)
        numbers.append(k)
    delivered, position = [], 0
    while len(delivered) <= (numbers[-1] if numbers else 0):
        gone = set().union(*(indices for start, indices in removals if start <= len(delivered)))
        if at(position)[1] not in gone:
            delivered.append(at(position))
        position += 1
    return [delivered[number] for number in numbers]


@st.composite
def plans(draw):
    num_samples = draw(st.integers(1, 40))
    skips, earliest = [], 0
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(earliest, earliest + 60))
        earliest = at
        if draw(st.booleans()):
            skips.append(Skip(samples=(at, at + draw(st.integers(1, 50)))))
        elif num_samples > 1:
            indices = draw(st.sets(st.integers(0, num_samples - 1), min_size=1, max_size=num_samples // 2))
            skips.append(Skip(indices=tuple(indices), at=at))
    local = st.builds(Locality, st.integers(1, 12), st.integers(1, 6))
    seed, shuffle = draw(st.integers(0, 2**63 - 1)), draw(st.one_of(st.booleans(), local))
    try:
        return Plan(num_samples, data="d", view="v", seed=seed, shuffle=shuffle, skips=skips)
    except ArgumentError as error:
        assert "all" in str(error)
        return Plan(num_samples, data="d", view="v", seed=seed, shuffle=shuffle)


@given(plans(), st.integers(1, 200))
def test_locate_is_the_plain_walk(plan, count):
    expected = walk(plan.num_samples, plan.seed, plan.shuffle, plan.skips, count)
    epochs, indices = plan.locate(np.arange(count))
    assert list(zip(epochs.tolist(), indices.tolist(), strict=True)) == expected
    assert [(trace.epoch, trace.index) for trace in plan.trace([count - 1, 0])] == [expected[-1], expected[0]]


@given(plans(), st.integers(1, 3))
def test_find_is_the_inverse_of_locate(plan, num_epochs):
    count = plan.count(num_epochs)
    epochs, indices = plan.locate(np.arange(count + 5))
    assert (epochs[:count] < num_epochs).all()
    assert (epochs[count:] >= num_epochs).all()
    for index in range(plan.num_samples):
        expected = np.flatnonzero((indices == index) & (epochs < num_epochs)).tolist()
        assert sorted(plan.find(index, epochs=range(num_epochs)).tolist()) == expected


@given(plans(), plans(), st.integers(0, 120))
def test_a_state_is_accepted_if_the_first_samples_are_the_same(one, other, delivered):
    """Never accepted where they differ; accepted wherever skips were only added later."""
    state = json.loads(json.dumps(one.state(delivered)))
    assert one.accept(state) == delivered
    try:
        accepted = other.accept(state) == delivered
    except PlanMismatchError:
        accepted = False
    if accepted and one.num_samples == other.num_samples:
        samples = np.arange(delivered)
        for mine, theirs in zip(one.locate(samples), other.locate(samples), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@given(plans(), st.integers(0, 120), st.integers(1, 30))
def test_skips_added_later_are_accepted_and_change_nothing_before(plan, delivered, length):
    more = Plan(
        plan.num_samples,
        data="d",
        view="v",
        seed=plan.seed,
        shuffle=plan.shuffle,
        skips=[*plan.skips, Skip(samples=(delivered, delivered + length))],
    )
    earlier = [skip for skip in plan.skips if skip.begins >= delivered]
    if not earlier:
        assert more.accept(plan.state(delivered)) == delivered
        np.testing.assert_array_equal(more.locate(np.arange(delivered)), plan.locate(np.arange(delivered)))
        later = np.arange(delivered, delivered + 20)
        np.testing.assert_array_equal(more.locate(later), plan.locate(later + length))


@given(plans())
def test_plans_survive_being_saved(plan):
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("delivered", [0, 2**40])
def test_a_state_is_small(delivered):
    skips = [Skip(samples=(5, 9)), Skip(indices=tuple(range(1000)), at=7)]
    plan = Plan(10**9, data="0123456789abcdef", view="windows(1048576, extra=1)", seed=2**63 - 1, skips=skips)
    assert len(json.dumps(plan.state(delivered))) <= 300
