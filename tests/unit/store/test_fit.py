"""What fits a column and what does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import FitError
from tokenfeed.format.manifest import Column
from tokenfeed.store.writer import fit

INTEGERS = [np.dtype(name) for name in ("u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8")]
FLOATS = [np.dtype(name) for name in ("<f2", "<f4", "<f8", "<c8", "<c16", "longdouble")]
EDGES = st.tuples(st.integers(0, 64), st.integers(-3, 3)).map(lambda drawn: 2 ** drawn[0] + drawn[1])


def holds(dtype, value):
    """Whether a dtype has this whole number, by Python's numbers alone."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    limits, odd = np.finfo(dtype), value // (value & -value or 1)  # without the zeros at its end
    return odd.bit_length() <= limits.nmant + 1 and abs(value) <= int(limits.max)


@pytest.mark.parametrize("column_dtype", INTEGERS + FLOATS, ids=str)
@given(st.lists(EDGES | EDGES.map(lambda value: -value) | st.integers(-(2**63), 2**64), min_size=1, max_size=9))
def test_integers_keep_their_value_or_raise(column_dtype, values):
    for dtype in INTEGERS:
        for value in (value for value in values if holds(dtype, value)):
            array = np.array([1, value], dtype)
            if holds(column_dtype, value):
                fitted = fit(array, Column(column_dtype), "x")
                assert [int(one) for one in fitted.real] == [1, value]
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
        (np.array([(2**53 + 1,)], [("a", "<i8")]), [("a", "<f8")]),
        ([(2**53 + 1, 1)], [("a", "<f8"), ("b", "u1")]),
        ([(1.5, 1)], [("a", "u1"), ("b", "u1")]),
        ([(300, 1)], [("a", "u1"), ("b", "u1")]),
        ([(300, 1), (1, 2, 3)], [("a", "u1"), ("b", "u1")]),
        ([(([1, -1], 1),)], [("a", [("b", "u1", (2,)), ("c", "u1")])]),
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
