"""Plans without amendments, and what states say of them; `test_amendments.py` has those with."""

import json

import numpy as np
import pytest

from plans import plan_over, source
from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.plan.orders import Local
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.store.spec import PackedSpec, ViewSpec


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
    assert limited.accept(plan.state(7)) == (limited, 7)
    with pytest.raises(ArgumentError, match="the run ends with sample 1,999"):
        limited.trace([2000])


def test_a_mask_names_a_source_that_there_is():
    two = Plan([source("web", 10), source("code", 10)])
    with pytest.raises(ArgumentError, match=r"of which source.*'web', 'code'"):
        two.amend(0, mask=[3])
    with pytest.raises(ArgumentError, match="no source 'law'; there are web, code"):
        two.amend(0, mask={"law": [3]})
    with pytest.raises(ArgumentError, match="one view, without a name; leave it out"):
        plan_over(10).amend(0, mask={"web": [3]})


def test_epochs_of_several_sources():
    with pytest.raises(ArgumentError, match="epochs of their own"):
        Plan([source("web", 10), source("code", 10)]).count(1)


def test_states_of_other_kinds_and_versions():
    plan = plan_over(10)
    with pytest.raises(StateError, match=r"kind 'stream', made by tokenfeed.stream; a Loader takes .* kind 'run'"):
        plan.accept({**plan.state(3), "kind": "stream"})
    damages = [{"version": 1}, {"kind": None}, {"samples": "3"}, {"samples": -1}, {"plan": None}, {"changes": None}]
    for damage in [*damages, {"changes": [{"at": 3}]}, {"changes": ["{"]}, {"changes": ['{"at": -1}']}]:
        with pytest.raises(StateError, match=r"version|kind|damaged|no amendment"):
            plan.accept({**plan.state(3), **damage})
    assert plan.accept([plan.state(3)] * 4) == (plan, 3)
    with pytest.raises(StateError, match=r"ranks 0 and 2 differ: .*amended their runs differently"):
        plan.accept([plan.state(3), plan.state(3), plan.amend(2, mask=[1]).state(3)])
    with pytest.raises(StateError, match="a list of no states"):
        plan.accept([])


def test_rows_packed_by_another_algorithm():
    one, other = (Plan([PlanSource("", 9, "d", PackedSpec(8, algorithm=number))]) for number in (1, 2))
    with pytest.raises(PlanMismatchError, match=r"view .packed\(8\) by algorithm 1., this plan has .* 2"):
        other.accept(one.state(3))


def test_all_states_have_the_same_words():
    two = [source("web", 10), source("code", 12)]
    plans = [plan_over(10), plan_over(12, shuffle=False), Plan(two), Plan(two, shuffle=Local(3, 2))]
    words = [list(plan.state(number)["plan"]) for plan in plans for number in (0, 1, 50)]
    assert words == [["data", "view", "mixture", "seed", "order", "amendments"]] * 12
    assert {tuple(plan.state(3)) for plan in plans} == {("kind", "version", "samples", "plan", "changes")}


@pytest.mark.parametrize("delivered", [0, 1, 2**62 - 1])
@pytest.mark.parametrize(
    "view",
    [
        {"kind": "windows", "length": 2**40, "extra": 12345},
        {"kind": "documents", "table": "a" * 200},
    ],
)
@pytest.mark.parametrize("names", [("",), ("web", "code")])
def test_a_state_is_small(delivered, view, names):
    sources = [PlanSource(name, 2**40, "0123456789abcdef", ViewSpec.from_json(view)) for name in names]
    plan = Plan(sources, seed=2**63 - 1, shuffle=Local(2**31 - 1, 2**31 - 1))
    plan = plan.amend(7, mask={names[0]: range(20)})
    assert len(json.dumps({**plan.state(delivered), "changes": []})) <= 300
