"""Two tiers of tests: what every change waits for (`make test`), and everything (`make test-all`, at night).

A test marked `slow` runs in the full tier only. Where a test takes as long as it is told to, `pick` tells it: the fast
tier tries fewer rounds, sizes and examples of the same thing. `pytest -m ""` selects the full tier.
"""

from typing import Any, TypeVar

import pytest
from hypothesis import settings

__all__ = ["examples", "pick", "select", "slow"]

T = TypeVar("T")
_FAST_SHARE = 10
_full = False


def select(*, full: bool) -> None:
    """Choose the tier; conftest.py does so before any test is imported."""
    global _full
    _full = full


def pick(fast: T, full: T) -> T:
    """One of two sizes, by tier."""
    return full if _full else fast


def slow(*values: Any) -> list[Any]:
    """Values of a parameter that only the full tier tries."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def examples(full: int) -> int:
    """How many Hypothesis examples a property tries that needs more than others: a tenth in the fast tier."""
    return pick(max(1, full // _FAST_SHARE), max(full, settings().max_examples))
