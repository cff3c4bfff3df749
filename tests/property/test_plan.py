"""Plans against their plain twin: a loop that walks through the shuffled stream and leaves out what is skipped."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import plan_over, source
from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.plan.permutation import Locality, LocalPermutation, Permutation
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.schedule import Schedule, Stage
from tokenfeed.plan.skips import Skip
from tokenfeed.store.spec import PackedSpec, ViewSpec


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

    skipped = {number for skip in skips if skip.samples for number in range(*skip.samples)}
    numbers = [number for number in range(count + len(skipped) + 400) if number not in skipped]
    removals = [(numbers[skip.at], set(skip.indices)) for skip in skips if not skip.samples]
    del numbers[count:]
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
    skips = []
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, 150))
        if draw(st.booleans()):
            skips.append(Skip(samples=(at, at + draw(st.integers(1, 50)))))
        elif num_samples > 1:
            indices = draw(st.sets(st.integers(0, num_samples - 1), min_size=1, max_size=num_samples // 2))
            skips.append(Skip(indices=tuple(indices), at=at))
    local = st.builds(Locality, st.integers(1, 12), st.integers(1, 6))
    seed, shuffle = draw(st.integers(0, 2**63 - 1)), draw(st.one_of(st.booleans(), local))
    try:
        return plan_over(num_samples, seed=seed, shuffle=shuffle, skips=skips)
    except ArgumentError as error:
        assert "all" in str(error)
        return plan_over(num_samples, seed=seed, shuffle=shuffle)


@given(plans(), st.integers(1, 200))
def test_locate_is_the_plain_walk(plan, count):
    expected = walk(plan.sources[0].num_samples, plan.seed, plan.shuffle, plan.skips, count)
    sources, epochs, indices = plan.locate(np.arange(count))
    assert not sources.any()
    assert list(zip(epochs.tolist(), indices.tolist(), strict=True)) == expected
    assert [(trace.epoch, trace.index) for trace in plan.trace([count - 1, 0])] == [expected[-1], expected[0]]


def test_all_skipped_ranges_count_in_the_run_as_it_was():
    """The second counted in what the first left over."""
    skips = [Skip(samples=(10, 15)), Skip(samples=(50, 60)), Skip(samples=(58, 62)), Skip(indices=(7,), at=45)]
    plan = plan_over(100, shuffle=False, skips=skips)
    expected = [*range(10), *range(15, 50), *range(62, 100), *range(7), *range(8, 100)]
    assert plan.locate(np.arange(len(expected)))[2].tolist() == expected
    assert plan == plan_over(100, shuffle=False, skips=skips)
    backwards = plan_over(100, shuffle=False, skips=skips[::-1])
    assert backwards.accept(plan.state(60)) == 60
    assert [int(plan.without_skips(k)) for k in (9, 10, 44, 45)] == [9, 15, 49, 62]


@given(plans(), st.integers(1, 3))
def test_find_is_the_inverse_of_locate(plan, num_epochs):
    count = plan.count(num_epochs)
    _, epochs, indices = plan.locate(np.arange(count + 5))
    assert (epochs[:count] < num_epochs).all()
    assert (epochs[count:] >= num_epochs).all()
    for index in range(plan.sources[0].num_samples):
        expected = np.flatnonzero((indices == index) & (epochs < num_epochs)).tolist()
        assert sorted(plan.find(index, epochs=range(num_epochs)).tolist()) == expected
    for epoch in range(num_epochs):
        found = plan.find_all(np.arange(plan.sources[0].num_samples), epoch)
        expected = [np.flatnonzero((indices == index) & (epochs == epoch)) for index in range(found.size)]
        assert found.tolist() == [int(each[0]) if each.size else -1 for each in expected]


@given(plans(), plans(), st.integers(0, 120))
def test_a_state_is_accepted_if_the_first_samples_are_the_same(one, other, delivered):
    """Never accepted where they differ; accepted wherever skips were only added later."""
    state = json.loads(json.dumps(one.state(delivered)))
    assert one.accept(state) == delivered
    try:
        accepted = other.accept(state) == delivered
    except PlanMismatchError:
        accepted = False
    if accepted and one.sources == other.sources:
        samples = np.arange(delivered)
        for mine, theirs in zip(one.locate(samples), other.locate(samples), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@given(plans(), st.integers(0, 120), st.integers(1, 30))
def test_skips_added_later_are_accepted_and_change_nothing_before(plan, delivered, length):
    start = int(plan.without_skips(delivered))
    skips = [*plan.skips, Skip(samples=(start, start + length))]
    more = Plan(plan.sources, plan.schedule, seed=plan.seed, shuffle=plan.shuffle, skips=skips)
    earlier = set(plan.skips) - set(plan.early_skips(delivered))
    if not earlier:
        assert more.accept(plan.state(delivered)) == delivered
        np.testing.assert_array_equal(more.locate(np.arange(delivered)), plan.locate(np.arange(delivered)))
        later = np.arange(delivered, delivered + 20)
        np.testing.assert_array_equal(more.locate(later), plan.locate(later + length))


@given(plans())
def test_plans_survive_being_saved(plan):
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@st.composite
def mixtures(draw):
    """Plans over several sources with stages, a change, groups, limits and skips of all kinds."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sources = []
    for name in names:
        group = draw(st.sampled_from([1, 1, 3]))
        count = group * draw(st.integers(1, 9))
        sources.append(source(name, count, group=group, max_epochs=draw(st.sampled_from([None, None, 40]))))
    weights = st.fixed_dictionaries({name: st.integers(1, 5) for name in names})
    stages = [Stage(draw(weights), draw(st.integers(3, 40))) for _ in range(draw(st.integers(0, 2)))]
    schedule = Schedule([*stages, Stage(draw(weights), draw(st.sampled_from([None, None, 300])))], names)
    if draw(st.booleans()):
        schedule = schedule.then(draw(st.integers(0, 30)), draw(weights))
    skips, earliest = [], 0
    for _ in range(draw(st.integers(0, 3))):
        earliest += draw(st.integers(0, 30))
        if draw(st.booleans()):
            skips.append(Skip(samples=(earliest, earliest + draw(st.integers(1, 20)))))
        else:
            chosen = draw(st.sampled_from(sources))
            skips.append(Skip(indices=(draw(st.integers(0, chosen.num_samples - 1)),), at=earliest, source=chosen.name))
    options = {"seed": draw(st.integers(0, 9)), "shuffle": draw(st.sampled_from([True, False, Locality(3, 2)]))}
    try:
        return Plan(sources, schedule, skips=skips, **options)
    except ArgumentError as error:
        assert "would be skipped" in str(error) or "order in which" in str(error)
        return Plan(sources, schedule, **options)


@given(st.one_of(plans(), mixtures()))
def test_the_inverse_of_any_plan_is_what_a_search_finds(plan):
    end = 250 if plan.end is None else min(plan.end, 250)
    sources, epochs, indices = plan.locate(np.arange(end))
    for number, each in enumerate(plan.sources):
        for epoch in range(int(epochs.max(initial=0)) + 1):
            found = plan.find_all(np.arange(each.num_samples), epoch, source=each.name)
            for index in range(each.num_samples):
                here = (sources == number) & (epochs == epoch) & (indices == index)
                assert np.flatnonzero(here).tolist() == [k for k in [found[index]] if 0 <= k < end]


@given(st.one_of(plans(), mixtures()), st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_parts_are_remembered_only_as_long_as_they_hold(plan, numbers):
    """`state` remembers the parts of the last k; a plan that was asked nothing before says the same."""
    last = 200 if plan.schedule.total is None else plan.schedule.total - sum(b - a for a, b in _ranges(plan))
    for number in numbers:
        number = min(number, max(0, last))
        assert plan.state(number) == Plan.from_json(plan.to_json()).state(number)


def _ranges(plan):
    return [skip.samples for skip in plan.skips if skip.samples is not None]


@given(mixtures())
def test_mixtures_survive_being_saved(plan):
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.end == plan.end


def test_one_view_is_a_mixture_of_one_source():
    """The source without a name has the seed of the run; a named one has its own, and else the same rules."""
    plan = plan_over(1000, seed=5)
    order = [Permutation(1000, 5, epoch) for epoch in range(3)]
    sources, epochs, indices = plan.locate(np.arange(3000))
    assert sources.tolist() == [0] * 3000
    assert epochs.tolist() == [k // 1000 for k in range(3000)]
    assert indices.tolist() == [order[k // 1000][k % 1000] for k in range(3000)]
    assert plan.starts.tolist() == [0, 1000]
    assert plan.end is None
    assert plan.count(2) == 2000
    assert [each.source for each in plan.trace([0, 7])] == ["", ""]
    (entry,) = plan.ledger(1500)
    assert (entry.source, entry.samples, entry.epochs) == ("", 1500, 1.5)
    named = Plan([source("web", 1000)], seed=5)
    assert not np.array_equal(named.locate(np.arange(1000))[2], indices[:1000])
    limited = Plan([source("", 1000, max_epochs=2)], seed=5)
    assert limited.end == limited.count(9) == 2000
    assert limited.accept(plan.state(7)) == 7
    with pytest.raises(ArgumentError, match="the run ends with sample 1,999"):
        limited.trace([2000])


@pytest.mark.parametrize("skip", [Skip(indices=(3,), source="web"), Skip(documents=(3,), source="web", mask=True)])
def test_a_skip_that_names_a_source_is_refused_over_one_view(skip):
    """It was ignored."""
    with pytest.raises(ArgumentError, match="one view, without a name; leave it out"):
        plan_over(10, skips=[skip])


def test_skips_name_a_source_that_there_is():
    two = [source("web", 10), source("code", 10)]
    with pytest.raises(ArgumentError, match=r"of which source.*web, code"):
        Plan(two, skips=[Skip(indices=(3,))])
    with pytest.raises(ArgumentError, match="no source 'law'; there are web, code"):
        Plan(two, skips=[Skip(indices=(3,), source="law")])
    with pytest.raises(ArgumentError, match="stands alone"):
        Skip(samples=(3, 5), source="web")
    assert 3 not in Plan([source("web", 10)], skips=[Skip(indices=(3,))]).locate(np.arange(50))[2]


def test_epochs_of_several_sources():
    with pytest.raises(ArgumentError, match="epochs of their own"):
        Plan([source("web", 10), source("code", 10)]).count(1)


def test_states_of_other_kinds_and_versions():
    plan = plan_over(10)
    with pytest.raises(StateError, match=r"kind 'stream', made by tokenfeed.stream; a Loader takes .* kind 'run'"):
        plan.accept({**plan.state(3), "kind": "stream"})
    for damage in ({"version": 1}, {"kind": None}, {"samples": "3"}, {"samples": -1}, {"plan": None}):
        with pytest.raises(StateError, match=r"version|kind|damaged"):
            plan.accept({**plan.state(3), **damage})
    with pytest.raises(StateError, match="takes one state, not a list of"):
        plan.accept([])


def test_windows_of_other_lengths_over_the_same_groups_in_a_mixture():
    """Only the plan over one source can go on with another length; samples of a mixture are counted by its schedule."""

    def mixed(length, *names):
        view = {"kind": "windows", "length": length, "group": 64}
        return Plan(
            [PlanSource(name, 64 * 10 // length, f"data of {name}", ViewSpec.from_json(view)) for name in names]
        )

    assert mixed(16, "a").accept(mixed(8, "a").state(32)) == 16
    with pytest.raises(PlanMismatchError, match="view"):
        mixed(16, "a", "b").accept(mixed(8, "a", "b").state(32))
    one, two = mixed(8, "a"), Plan(mixed(8, "a", "b").sources, mixed(8, "a").schedule.then(32, {"a": 1, "b": 1}))
    for number in (0, 1, 31, 32):
        assert two.accept(one.state(number)) == number
    with pytest.raises(PlanMismatchError, match="mixture"):
        two.accept(one.state(33))


def test_rows_packed_by_another_algorithm():
    one, other = (Plan([PlanSource("", 9, "d", PackedSpec(8, algorithm=number))]) for number in (1, 2))
    with pytest.raises(PlanMismatchError, match="by algorithm 1"):
        other.accept(one.state(3))


def test_all_states_have_the_same_words():
    two = [source("web", 10), source("code", 12, group=2)]
    plans = [plan_over(10), plan_over(12, group=3), Plan(two), Plan(two, shuffle=Locality(3, 2))]
    words = [list(plan.state(number)["plan"]) for plan in plans for number in (0, 1, 50)]
    assert words == [["data", "view", "mixture", "seed", "skips", "locality", "group"]] * 12
    assert {tuple(plan.state(3)) for plan in plans} == {("kind", "version", "samples", "plan")}


@pytest.mark.parametrize("delivered", [0, 1, 2**62 - 1])
@pytest.mark.parametrize(
    "view",
    [
        {"kind": "windows", "length": 2**20, "extra": 12345, "group": 2**40},
        {"kind": "documents", "table": "a" * 200},
    ],
)
@pytest.mark.parametrize("names", [("",), ("web", "code")])
def test_a_state_is_small(delivered, view, names):
    skips = [Skip(samples=(5, 9)), Skip(indices=tuple(range(1000)), at=7, source=names[0])]
    sources = [PlanSource(name, 2**40, "0123456789abcdef", ViewSpec.from_json(view)) for name in names]
    plan = Plan(sources, seed=2**63 - 1, skips=skips, shuffle=Locality(2**31 - 1, 2**31 - 1))
    assert len(json.dumps(plan.state(delivered))) <= 300
