"""Steps of a batch size that changes, against a loop that takes one step after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.steps import BatchSizes, Stretch, rows_of

RAMPS = st.builds(
    lambda first, later: {0: first, **later},
    st.integers(1, 5),
    st.dictionaries(st.integers(1, 60), st.integers(1, 5), max_size=4),
)


def test_a_change_within_a_step_waits_for_its_end():
    assert BatchSizes({0: 2, 7: 3}).stretches(0, 2) == [Stretch(0, 0, 2), Stretch(2, 8, 3)]
    assert BatchSizes({0: 2, 5: 3, 6: 4}).stretches(0, 2) == [Stretch(0, 0, 2), Stretch(2, 8, 4)]


@given(RAMPS, st.integers(0, 70), st.integers(1, 4))
def test_stretches_are_the_steps_one_by_one(ramp, start, world_size):
    sizes = BatchSizes(ramp)
    stretches = sizes.stretches(start, world_size)
    delivered = start
    for step in range(40):
        begin, samples, size = [each for each in stretches if each.step <= step][-1]
        assert delivered == samples + (step - begin) * size * world_size == sizes.after(start, step, world_size)
        assert size == sizes.at(delivered)
        assert sizes.steps_between(start, delivered, world_size) == step
        assert sizes.steps_between(start, delivered + 1, world_size) == step + 1
        delivered += size * world_size


def test_rows_and_what_is_refused():
    assert rows_of(100, 3, 1, 4).tolist() == [101, 105, 109]
    for bad in (0, {}, {1: 2}, {0: 0}, {0: True}, 1.5):
        with pytest.raises(ArgumentError, match="batch_size"):
            BatchSizes(bad)
    assert BatchSizes({0: 2, 30: 4}).after(31, -3, 2) == 31 - 3 * 4 * 2  # a run file may begin after some steps
