"""Nothing that is told has a path of this machine in it, and nothing is larger than a page needs."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.ui.messages import last_name, plain, without_paths

NAMES = st.text("abcXYZ019_-.", min_size=1, max_size=8).filter(lambda name: name.strip(".-") == name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/store", "store"),
        ("/home/me/store/", "store"),
        ("store", "store"),
        ("s3://bucket/a/b/", "b"),
        ("s3://bucket", "bucket"),
        ("https://me:password@host/x?signature=abc", "x"),
        ("https://me:password@host", "host"),
        ("/", "here"),
        (".", "here"),
        ("..", "here"),
    ],
)
def test_the_last_part_of_a_path(path, name):
    assert last_name(path) == name


AROUND = ["{}", "'{}'", "({})", "in {}, or", "{}: wrong", "x={}", "It is in {}."]


@given(st.lists(NAMES, min_size=2, max_size=5), st.sampled_from(AROUND))
def test_no_path_survives(parts, around):
    path = "/" + "/".join(parts)
    told = without_paths(around.format(path))
    assert told == around.format(parts[-1])


def test_errors_keep_what_is_no_path():
    text = "3 items/s at [0, 12): 'tokens' is uint16, and 1/2 of and/or were lost"
    assert without_paths(text) == text
    assert without_paths("see s3://key:secret@bucket/a/b?X-Signature=1, please") == "see b, please"
    assert without_paths("/my own/data/x y/z is wrong", ["/my own/data", "/my own"]) == "x y/z is wrong"
    assert plain("/my own/data/x", clean=True) == "x"
    assert without_paths("looked in /a/b/c, ~/d/e and ../f/g") == "looked in c, e and g"


def test_anything_becomes_json():
    value = {
        "text": "x" * 10_000,
        "bytes": b"\x00\xff" * 100,
        "array": np.arange(1000),
        "large": 2**60,
        "nan": float("nan"),
        "many": list(range(1000)),
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        3: np.uint8(7),
        "deep": [[[[[[[[[1]]]]]]]]],
    }
    told = plain(value)
    text = json.dumps(told, allow_nan=False)
    assert len(text) < 5_000
    assert told["large"] == str(2**60)
    assert told["3"] == 7
    assert told["bytes"].startswith("200 bytes: 00 ff")
    assert plain({"a": ["/home/me/x"]}, clean=True) == {"a": ["x"]}
    assert plain({"a": ["/home/me/x"]}) == {"a": ["/home/me/x"]}
