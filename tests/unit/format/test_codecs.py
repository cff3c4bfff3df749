"""Codecs: round trips, unknown names, and no pickle anywhere."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError
from tokenfeed.format.codecs import SHIPPED, find_codec, resolve_codec

TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@given(value=TREES)
def test_trees_round_trip(name, value):
    assert SHIPPED[name].decode(memoryview(SHIPPED[name].encode(value))) == value


@given(st.text(), st.binary())
def test_text_and_bytes_round_trip(text, data):
    assert SHIPPED["utf8"].decode(memoryview(SHIPPED["utf8"].encode(text))) == text
    assert SHIPPED["bytes"].decode(memoryview(SHIPPED["bytes"].encode(data))) == data


@pytest.mark.parametrize(
    "array", [np.asfortranarray(np.arange(6).reshape(2, 3)), np.float32(7), np.zeros((0, 2), "u1"), np.array(["é"])]
)
def test_arrays_round_trip(array):
    decoded = SHIPPED["numpy"].decode(memoryview(SHIPPED["numpy"].encode(array)))
    np.testing.assert_array_equal(decoded, array)
    assert decoded.dtype == np.asarray(array).dtype


def test_pickle_is_never_loaded():
    with pytest.raises(ValueError):
        SHIPPED["numpy"].encode(np.array([object()]))
    with pytest.raises(ValueError):
        SHIPPED["numpy"].decode(memoryview(pickle.dumps([1, 2])))


def test_unknown_codec_yields_bytes():
    codec = find_codec("of-somebody", [])
    assert codec.name == "of-somebody"
    assert codec.decode(memoryview(b"abc")) == b"abc"
    with pytest.raises(ArgumentError, match="of-somebody"):
        codec.encode(b"abc")


def test_own_codecs_come_first():
    class Own:
        name = "json"

        def encode(self, value):
            return b""

        def decode(self, data):
            return "own"

    assert find_codec("json", [Own()]).decode(memoryview(b"")) == "own"
    assert resolve_codec(Own(), what="x").name == "json"
    with pytest.raises(ArgumentError, match="there is no codec"):
        resolve_codec("pickle", what="x")
    with pytest.raises(ArgumentError, match="a codec needs"):
        resolve_codec(object(), what="x")
