"""What fits a column and what does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import FitError
from tokenfeed.format.manifest import Column
from tokenfeed.store.writer import fit

INTEGERS = [np.dtype(name) for name in ("u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8")]


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_integers_keep_their_value_or_raise(given_dtype, column_dtype, data):
    limits = np.iinfo(given_dtype)
    values = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), max_size=5))
    column = np.iinfo(column_dtype)
    array = np.array(values, given_dtype)
    if all(column.min <= value <= column.max for value in values):
        fitted = fit(array, Column(column_dtype), "x")
        assert fitted.tolist() == values
        assert fitted.dtype == column_dtype
    else:
        with pytest.raises(FitError, match=r"which holds|cannot hold"):
            fit(array, Column(column_dtype), "x")


def test_an_array_of_the_right_dtype_is_not_copied():
    array = np.arange(5, dtype="<u2")
    assert np.shares_memory(fit(array, Column(np.dtype("<u2")), "x"), array)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5], "<u2"),
        ([1.0], "<i8"),
        (["a"], "<u2"),
        ([70_000], "<u2"),
        ([-1], "<u8"),
        ([2**63], "<i8"),
        ([1e300], "<f4"),
        ([2**24 + 1], "<f4"),
        ([1j], "<f4"),
        ([None], "<u2"),
        (np.zeros(2, [("a", "<u2")]), "<u2"),
        (np.zeros(2, ">u2") + 1, "S1"),
    ],
)
def test_what_does_not_fit(values, dtype):
    with pytest.raises(FitError):
        fit(values, Column(np.dtype(dtype)), "x")


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], "<u2"),
        (range(5), "<u2"),
        ([True, False], "u1"),
        (np.array([1, 2], ">i8"), "<u2"),
        ([0.1, float("inf"), float("nan")], "<f4"),
        ([1, 2], "<f4"),
        (np.array([1, 2], "<f4"), "<f8"),
    ],
)
def test_what_fits(values, dtype):
    np.testing.assert_allclose(fit(values, Column(np.dtype(dtype)), "x"), np.asarray(values, dtype))


def test_structured_values_may_be_tuples():
    dtype = np.dtype([("token", "<u4"), ("concept", "<u2")])
    assert fit([(1, 2), (3, 4)], Column(dtype), "x").tolist() == [(1, 2), (3, 4)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 2), (2, 3, 4, 1)])
def test_shape_must_be_items_by_inner_shape(shape):
    with pytest.raises(FitError, match="expects an array of shape"):
        fit(np.zeros(shape, "u1"), Column(np.dtype("u1"), (3, 4)), "x")
