"""Weights become whole counts: of a period, and of what is due and owed at the end of a stage.

Everything is exact in integers, or a sequence of correctly rounded IEEE operations, so all machines come to the same
counts. These results must never change: a checkpoint holds a number of samples, and relies on these counts.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.types import Floats, Ints

__all__ = [
    "LONGEST_PERIOD",
    "ONE",
    "apportion",
    "due",
    "normalise",
    "rationalise",
    "scale",
    "some",
]

LONGEST_PERIOD = 1 << 20
ONE = 1 << 32
"""One sample, in the units in which rounding is carried."""


def normalise(weights: Sequence[Any], names: Sequence[Any]) -> Floats:
    """Weights that add up to 1; `names` are what an error calls them."""
    given = np.array([_number(weight) for weight in weights], np.float64)
    if not (given >= 0).all() or not given.max(initial=0) < math.inf:
        wrong = int(np.flatnonzero(~((given >= 0) & (given < math.inf)))[0])
        raise ArgumentError(
            f"the weight of {names[wrong]!r} is {weights[wrong]!r}; it must be a finite number, 0 or more"
        )
    if not given.any():
        raise ArgumentError(f"no source is drawn: the weights are {some(weights)}; one at least must be above 0")
    return scale(given)


def scale(weights: Floats) -> Floats:
    """Weights, or rows of them, of which one is positive, as shares that add up to 1."""
    given = np.where(weights > 0, np.maximum(weights / weights.max(axis=-1, keepdims=True), 1e-300), 0.0)
    sums = [math.fsum(row) for row in given.reshape(-1, given.shape[-1]).tolist()]
    return np.asarray(given / np.array(sums).reshape(*given.shape[:-1], 1), np.float64)


def _number(weight: Any) -> float:
    try:
        return math.nan if isinstance(weight, (str, bool)) else float(weight)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def rationalise(given: Floats, longest: int = LONGEST_PERIOD) -> Ints:
    """Normalised weights, a row for each mixture, as whole counts of a period.

    The smallest period that holds every weight to 1e-12 of itself. If none up to `longest` does, that one, where every
    source that is drawn gets a place and the rest is divided by largest remainder (of equal ones, the first).

        0.7, 0.3, 0:  7, 3, 0 of 10        3.14159, 1, 1 up to 100:  61, 20, 19 of 100
    """
    periods = np.array([_period(row, longest) for row in np.sort(given, axis=1).tolist()], np.int64)
    found = np.rint(given * periods[:, None]).astype(np.int64)
    rows = np.flatnonzero(periods == 0)  # most weights that were measured fit no period
    drawn = given[rows] > 0
    if (drawn.sum(axis=1) > longest).any():
        raise ArgumentError(f"{drawn.sum(axis=1).max():,} sources are too many: a period has {longest:,} places")
    lifted = np.where(drawn, np.maximum(given[rows], 1 / longest), 0.0)
    wanted = lifted * (longest / np.array([math.fsum(each) for each in lifted.tolist()]).reshape(-1, 1))
    counts = np.maximum(np.floor(wanted), drawn).astype(np.int64)
    missing = longest - counts.sum(axis=1)
    order = np.argsort(np.argsort(counts - wanted, axis=1, kind="stable"), axis=1, kind="stable")
    found[rows] = counts + (order < missing[:, None])
    for row in np.flatnonzero(missing < 0).tolist():
        found[rows[row], np.argsort(-counts[row], kind="stable")[: -missing[row]]] -= 1
    return found


def _period(shares: list[float], longest: int) -> int:
    """The smallest period for shares in ascending order; 0 if none is up to `longest`."""
    period = 1
    for share in shares[:-1]:  # the largest is what these leave of 1: at most as hard
        if share > 0:
            denominator = _denominator(share)
            period = math.lcm(period, denominator)
            if not 0 < period <= longest:
                return 0
    return period


@lru_cache(1 << 14)
def _denominator(share: float) -> int:
    """The smallest q <= 2**20 for which share · q is whole to 1e-12 of itself, by continued fractions; 0 for none."""
    top, bottom = share.as_integer_ratio()
    a, b = top, bottom
    above, above_before, below, below_before = 1, 0, 0, 1
    while b:
        digit = a // b
        a, b = b, a - digit * b
        above, above_before = digit * above + above_before, above
        below, below_before = digit * below + below_before, below
        if below > LONGEST_PERIOD:
            return 0
        if abs(top * below - above * bottom) * 10**12 <= top * below:
            return below
    return 0


def due(rates: Ints, period: int, places: int) -> Ints:
    """What is due to sources after less than a period, in 2**-32 of a sample; in all, exactly `places` samples."""
    whole, rest = np.divmod(rates * places, period)
    owed: Ints = whole * ONE + rest * ONE // period
    owed[np.argmax(rates)] += places * ONE - owed.sum()
    return owed


def apportion(owed: Ints, size: int) -> Ints:
    """Whole places for what is owed in 2**-32 of a place: place after place to whom most is owed, the first of equals.

    3.5, 1.5, −0.2, 0.2 in 5 places:  4, 1, 0, 0
    """
    counts: Ints = np.maximum(owed // ONE, 0)
    while missing := size - int(counts.sum()):
        left = owed - counts * ONE
        if missing > 0:
            counts[np.argsort(-left, kind="stable")[:missing]] += 1
        else:  # sources that are far ahead cannot give back, so some who are owed a place must wait
            given = np.flatnonzero(counts)
            counts[given[np.argsort(left[given], kind="stable")[:-missing]]] -= 1
    return counts


def some(items: Sequence[Any], tell: Callable[[Any], str] = repr) -> str:
    """`'a', 'b', 'c' and 997 more`; `nothing`."""
    told = ", ".join(map(tell, items[:5]))
    return f"{told} and {len(items) - 5} more" if len(items) > 5 else told or "nothing"
