"""What the page shows of the order is what the kernels and the plan do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import plan_over
from tokenfeed.errors import ArgumentError
from tokenfeed.kernels import permutation as kernels
from tokenfeed.plan.permutation import Permutation
from tokenfeed.ui.messages import Query
from tokenfeed.ui.order import scatter, show_rounds, show_steps, walk
from tokenfeed.ui.subject import Subject

ANYTHING = Subject("store", "anything")
SIZES = st.one_of(st.integers(1, 300), st.integers(4000, 4200), st.integers(1, 2**62 - 1))


@st.composite
def walks(draw):
    n = draw(SIZES)
    order = Permutation(n, seed=draw(st.integers(0, 2**63 - 1)), epoch=draw(st.integers(0, 2**40)))
    return order, draw(st.integers(0, n - 1))


@given(walks())
def test_a_walk_ends_where_the_permutation_says(drawn):
    order, position = drawn
    a, bits, passes = walk(order, position)
    places = [[place for _, place in rounds] for rounds in passes]
    assert places[-1][-1] == order[position]
    assert all(each[-1] >= order.n for each in places[:-1])
    assert all(0 <= place < a << bits for each in places for place in each)
    assert all(len(rounds) == kernels.num_rounds(order.n) for rounds in passes)


@given(walks())
def test_every_round_moves_one_half_by_its_shift(drawn):
    order, position = drawn
    told = show_rounds(
        ANYTHING,
        Query({name: str(getattr(order, name)) for name in ("n", "seed", "epoch")} | {"position": str(position)}),
    )
    a, bits = int(told["a"]), told["bits"]
    before = told["start"]
    for number, each in enumerate(one for rounds in told["passes"] for one in rounds):
        moved, kept = ("left", "right") if number % 2 == 0 else ("right", "left")
        assert each["moves"] == moved
        assert each[kept] == before[kept]
        size = a if moved == "left" else 1 << bits
        assert int(each[moved] or "0", 2) == (int(before[moved] or "0", 2) + int(each["shift"])) % size
        assert int(each["left"] + each["right"], 2) == int(each["place"])
        before = each


def test_rounds_as_they_are_told():
    told = show_rounds(ANYTHING, Query({"n": "10", "seed": "5", "position": "7"}))
    assert told["value"] == str(Permutation(10, seed=5)[7])
    assert (told["a"], told["bits"], told["places"]) == ("3", 2, "12")
    assert told["start"] == {"left": "01", "right": "11"}
    last = told["passes"][-1][-1]
    assert int(last["left"] + last["right"], 2) == int(told["value"])


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
    with pytest.raises(ArgumentError, match="position"):
        show_rounds(ANYTHING, Query({"n": "10", "position": "10"}))
