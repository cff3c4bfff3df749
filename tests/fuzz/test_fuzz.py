"""Damaged inputs of every kind, some of each: `make fuzz` tries them for longer."""

import os

import pytest

from fuzz.harness import fuzz
from fuzz.targets import TARGETS

INPUTS = int(os.environ.get("FUZZ_INPUTS", 25))
HALVES = [list(TARGETS)[0::2], list(TARGETS)[1::2]]


@pytest.mark.slow  # the fast tier tries some of each in tests/attacks
@pytest.mark.parametrize("names", HALVES, ids=["even", "odd"])
def test_every_input_is_read_right_or_refused(names):
    figures = fuzz(names, inputs=INPUTS)
    assert [finding for each in figures.values() for finding in each.findings] == []
    assert {name: each.inputs for name, each in figures.items()} == dict.fromkeys(names, INPUTS)
    # Damage that is always noticed at once, or never, tries little.
    assert sum(each.read for each in figures.values()) > 0
    assert sum(each.errors.total() for each in figures.values()) > 0


PLANTED = {
    "crash": "the process ended with -11",
    "allocate": "MemoryError",
    "lie": "wrong data",
    "open": "opened '/etc/hostname'",
    "wait": "Timeout",
    "raise": "JSONDecodeError",
}


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path):
    """Input 3 of each does what no input may do: it is found, named and kept, and those after it are tried."""
    figures = fuzz(list(PLANTED), inputs=6, keep=tmp_path, module="fuzz.planted")
    for name, told in PLANTED.items():
        (finding,) = figures[name].findings
        assert finding.startswith(f"{name} 3: ")
        assert told in finding
        assert figures[name].inputs == 6
        assert (tmp_path / f"{name}-3").exists() == (name not in ("crash", "wait"))
