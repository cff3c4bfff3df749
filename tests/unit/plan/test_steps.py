"""Steps of a run: which samples each takes, against a loop that takes one step after the other."""

from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.plan.steps import count_steps, rows_of


@given(st.integers(1, 20), st.integers(-30, 200))
def test_steps_are_counted_in_closed_form(width, num_samples):
    delivered = steps = 0
    while delivered < num_samples:
        delivered, steps = delivered + width, steps + 1
    assert count_steps(num_samples, width) == steps


def test_rows_of_a_rank():
    assert rows_of(100, 3, 1, 4).tolist() == [101, 105, 109]
