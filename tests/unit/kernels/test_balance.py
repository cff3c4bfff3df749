"""Dealing to bins: the kernel against its plain twin."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dealing import assign
from tokenfeed.kernels.balance import deal


@given(
    costs=st.lists(st.integers(0, 40), max_size=18),
    num_alone=st.integers(0, 2),
    num_bins=st.integers(1, 5),
    spare=st.sampled_from([0, 1, 100]),
    rounds=st.sampled_from([0, 1, 20]),
)
def test_bins_are_those_of_the_plain_twin(costs, num_alone, num_bins, spare, rounds):
    num_alone = min(num_alone, num_bins - 1, len(costs))
    rest = sorted(costs[num_alone:], reverse=True)
    costs = costs[:num_alone] + rest
    alone = [place < num_alone for place in range(len(costs))]
    most_rows = max(1, -(-len(rest) // (num_bins - num_alone))) + spare
    bins, loads = np.full(len(costs), -1), np.full(num_bins, -1)
    deal(np.array(costs, np.int64), np.array(alone, np.bool_), bins, loads, most_rows, rounds)
    np.testing.assert_array_equal(loads, np.bincount(bins, costs, minlength=num_bins))
    expected = assign(costs, alone, num_bins, most_rows, rounds)
    wanted = np.bincount(expected, costs, minlength=num_bins)
    assert loads.max() == wanted.max()  # of several moves that are equally good, any may be taken
    if rounds == 0:
        assert bins.tolist() == expected
    for held in range(num_alone):
        assert np.count_nonzero(bins == bins[held]) == 1
    assert np.bincount(bins, minlength=1).max(initial=0) <= most_rows
