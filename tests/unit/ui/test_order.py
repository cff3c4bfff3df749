"""What the page shows of the order is what the kernels and the plan do."""

import numpy as np
import pytest

from plans import plan_over
from tokenfeed.errors import ArgumentError
from tokenfeed.plan.permutation import Permutation
from tokenfeed.ui.messages import Query
from tokenfeed.ui.order import _measure, scatter, show_steps
from tokenfeed.ui.subject import Subject

ANYTHING = Subject("store", "anything")


@pytest.mark.parametrize("n", [1, 2, 1000, 4096, 4097, 10**12])
def test_a_scatter_is_of_the_permutation(n):
    told = scatter(ANYTHING, Query({"n": str(n), "seed": "3", "epoch": "2"}))
    positions = np.arange(0, n, told["step"])
    assert told["values"] == Permutation(n, seed=3, epoch=2)(positions).tolist()
    assert len(told["values"]) <= 4096


def test_steps_are_those_of_the_plan_whatever_the_ranks():
    def delivered(**options):
        told = show_steps(ANYTHING, Query({name: str(value) for name, value in options.items()}))
        rows = [tuple(row) for step in told["steps"] for rank in step["ranks"] for row in rank]
        return sorted(rows)

    plan = plan_over(50, seed=9)
    for options in ({"world_size": 4, "batch_size": 3, "steps": 4}, {"world_size": 2, "batch_size": 2, "steps": 12}):
        rows = delivered(n=50, seed=9, resume=30, **options)
        expected = [(each.sample, each.epoch, each.index) for each in plan.trace(range(30, 78))]
        assert rows == expected


def test_what_cannot_be_meant_is_refused():
    for wrong in ({"n": "0"}, {"n": str(2**62)}, {"n": "ten"}, {"seed": "-1"}, {"n": "9" * 30}, {"n": "١"}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            scatter(ANYTHING, Query(wrong))


@pytest.mark.parametrize("n", [1000, 4096, 100_003, 10**12])
def test_an_order_is_measured_to_be_random(n):
    told = scatter(ANYTHING, Query({"n": str(n), "seed": "3"}))["measured"]
    assert len(told) == 4
    assert all(abs(one["deviation"]) < 5 for one in told), told


def test_an_order_that_is_none_is_measured_too():
    sorted_ = {one["name"]: abs(one["deviation"]) for one in _measure(np.arange(4096.0), 4096)}
    assert sum(value > 10 for value in sorted_.values()) == 3  # odd and even alternate evenly
    evens = {
        one["name"]: abs(one["deviation"]) for one in _measure(2.0 * np.random.default_rng(0).permutation(2048), 4096)
    }
    assert evens["odd and even values alternate"] > 10
    assert _measure(np.arange(9.0), 9) == []
