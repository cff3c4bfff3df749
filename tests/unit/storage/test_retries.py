"""Limits and pauses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.retries import Patience


def test_the_environment_changes_the_limits(monkeypatch):
    monkeypatch.delenv("TOKENFEED_TIMEOUT", raising=False)
    assert Patience.from_environment() == Patience() == Patience(120.0, 10.0, 30.0)
    monkeypatch.setenv("TOKENFEED_TIMEOUT", "8")
    assert Patience.from_environment() == Patience(8.0, 2.0, 2.0)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_nonsense_in_the_environment(monkeypatch, text):
    monkeypatch.setenv("TOKENFEED_TIMEOUT", text)
    with pytest.raises(ArgumentError, match="TOKENFEED_TIMEOUT"):
        Patience.from_environment()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_as_an_argument(seconds):
    with pytest.raises(ArgumentError, match="timeout is"):
        Patience.of(seconds)
    assert Patience.of(400.0) == Patience(400.0, 10.0, 30.0)


@given(st.integers(1, 2000), st.floats(0, 3))
def test_pauses_grow_and_are_bounded(tries, at_least):
    patience = Patience(first_pause=0.1, longest_pause=10.0)
    longest = max(at_least, min(10.0, 0.1 * 2 ** min(tries - 1, 10)))
    assert longest / 2 <= patience.pause(tries, at_least=at_least) <= longest


def test_pauses_leave_the_random_numbers_of_the_training_script_alone():
    before = random.getstate()
    Patience().pause(3)
    assert random.getstate() == before
