"""Headers: read by NumPy, canonical, of a length that does not depend on the count; and hostile ones refused."""

import io
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.format.npy import build_header, check_dtype, descr_from_json, descr_to_json, parse_header

STRUCTURED = np.dtype([("token", "<u4"), ("concept", "<u2", (2,)), ("inner", [("a", "<f4"), ("b", "|u1")])])
DTYPES = [np.dtype(name) for name in ("u1", "<u2", "<i4", "<i8", "<f2", "<f4", "<c16", "?", "S5", "<M8[s]")]


@pytest.mark.parametrize("dtype", [*DTYPES, STRUCTURED], ids=str)
@pytest.mark.parametrize("shape", [(), (3, 32, 32)])
@pytest.mark.parametrize("count", [0, 1, 123])
def test_numpy_reads_it(dtype, shape, count):
    header = build_header(dtype, shape, count)
    data = np.zeros((count, *shape), dtype)
    loaded = np.load(io.BytesIO(header + data.tobytes()))
    assert loaded.dtype == dtype
    assert loaded.shape == (count, *shape)
    assert parse_header(io.BytesIO(header), "x") == (dtype, (count, *shape), len(header))


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_length_does_not_depend_on_the_count(one, other):
    headers = [build_header(STRUCTURED, (7,), count) for count in (one, other)]
    assert len(headers[0]) == len(headers[1])
    assert len(headers[0]) % 64 == 0
    assert (headers[0] == headers[1]) == (one == other)


@pytest.mark.parametrize("dtype", [*DTYPES, STRUCTURED], ids=str)
def test_dtypes_survive_json(dtype):
    import json

    assert descr_from_json(json.loads(json.dumps(descr_to_json(dtype))), what="x") == dtype


NESTED = reduce(lambda inner, _: [["a", inner]], range(900), "<u2")
WRONG = ["no such", 7, None, [], [["a"]], [1], ["<u2"], "|O", ">u2", [["a", "|O"]], {"a": 1}, NESTED]
WRONG += ["f4,(", "V99999999999", [["a", "<u2", [2**40]]], [["a", []]], "(2,)"]


@pytest.mark.parametrize("descr", WRONG, ids=range(len(WRONG)))
def test_bad_dtypes_are_refused(descr):
    with pytest.raises((FormatError, ArgumentError)):
        descr_from_json(descr, what="x")


@pytest.mark.parametrize("dtype", [object, ">u2", "V0", ("u1", (3,)), [("a", object)]])
def test_columns_have_a_fixed_size_and_are_little_endian(dtype):
    with pytest.raises(ArgumentError):
        check_dtype(np.dtype(dtype), what="x")


GOOD = build_header(np.dtype("<u2"), (), 5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPZ" + GOOD[6:],
        b"\x93NUMPY\x09\x00" + GOOD[8:],
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
        GOOD[:40],
        GOOD.replace(b"(5,)", b"(-5,"),
        GOOD.replace(b"(5,)", b"[5] "),
        GOOD.replace(b"(5,)} ", b"(5.,)}"),
        GOOD.replace(b"'<u2'", b"'zz9'"),
        GOOD.replace(b"False", b"None "),
        GOOD.replace(b"'descr'", b"'dexcr'"),
        GOOD.replace(b"{", b"("),
        b"\x93NUMPY\x01\x00" + (4000).to_bytes(2, "little") + b"(" * 4000,
    ],
)
def test_bad_headers_are_refused(data):
    with pytest.raises(FormatError, match="some file"):
        parse_header(io.BytesIO(data), "some file")
