"""The short form of every class of attack, and what holds for the table of them: `make attacks` tries all."""

from attacks.classes import CLASSES
from fuzz.harness import fuzz
from fuzz.targets import TARGETS
from tiers import pick

SHORT = {
    **dict.fromkeys(CLASSES, 4),
    **dict.fromkeys(("vast-documents", "server-answers", "weights", "stream-state"), 1),
    "page": pick(12, 50),
    "span-lies": 12,
    "plan-lies": 28,
    "manifests": 60,
    "files": 24,
    "combined": 12,
    "parquet": 22,
}
"""Cases of the short form, by class."""
FAST = ("page", "span-lies", "plan-lies", "manifests", "files", "parquet", "loader-state")
"""Classes that the fast tier tries: each takes a process."""


def test_the_full_form_has_twelve_thousand_cases():
    assert sum(each.num_cases for each in CLASSES.values()) >= 12_000
    assert TARGETS.keys() <= CLASSES.keys()


def test_no_wrong_data_no_crash_no_other_error():
    counts = {
        name: min(CLASSES[name].num_cases, count * pick(1, 4))
        for name, count in SHORT.items()
        if name in pick(FAST, CLASSES)
    }
    figures = fuzz(list(counts), inputs=counts, module="attacks.classes")
    assert [finding for each in figures.values() for finding in each.findings] == []
    assert {name: each.inputs for name, each in figures.items()} == counts
    print(f"{sum(counts.values())} cases of {len(counts)} classes of attack: nothing wrong")
