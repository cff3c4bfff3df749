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
    "rationalise_all",
    "scale",
    "scale_all",
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
    """Weights of which one is positive, as shares that add up to 1."""
    given = np.where(weights > 0, np.maximum(weights / weights.max(), 1e-300), 0.0)
    return np.asarray(given / math.fsum(given), np.float64)


def scale_all(weights: Floats) -> Floats:
    """`scale` of every row."""
    given = np.where(weights > 0, np.maximum(weights / weights.max(axis=1, initial=0)[:, None], 1e-300), 0.0)
    sums = np.array([math.fsum(row) for row in given.tolist()])
    return np.asarray(given / sums[:, None], np.float64)


def _number(weight: Any) -> float:
    try:
        return math.nan if isinstance(weight, (str, bool)) else float(weight)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def rationalise(shares: Floats, longest: int = LONGEST_PERIOD) -> tuple[Ints, int]:
    """(counts, period): normalised weights as whole counts of a period.

    The smallest period that holds every weight to 1e-12 of itself. If none up to `longest` does, that one, where every
    source that is drawn gets a place and the rest is divided by largest remainder (of equal ones, the first).

        0.7, 0.3, 0:  (7, 3, 0), 10        3.14159, 1, 1 up to 100:  (61, 20, 19), 100
    """
    period = 1
    for share in np.sort(shares[shares > 0])[:-1].tolist():  # the largest is what these leave of 1: at most as hard
        denominator = _denominator(share)
        period = math.lcm(period, denominator) if denominator else longest + 1
        if period > longest:
            break
    else:
        return np.rint(shares * period).astype(np.int64), period
    drawn = shares > 0
    if np.count_nonzero(drawn) > longest:
        raise ArgumentError(f"{np.count_nonzero(drawn):,} sources are too many: a period has {longest:,} places")
    lifted = np.where(drawn, np.maximum(shares, 1 / longest), 0.0)
    wanted = lifted * (longest / math.fsum(lifted))
    counts = np.maximum(np.floor(wanted), drawn).astype(np.int64)
    missing = longest - int(counts.sum())
    if missing >= 0:
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    else:
        counts[np.argsort(-counts, kind="stable")[:-missing]] -= 1
    return counts, longest


def rationalise_all(given: Floats) -> Ints:
    """The counts of `rationalise`, a row for each: most weights that were measured fit no period, and go together."""
    found = np.zeros(given.shape, np.int64)
    least = np.where(given > 0, given, 2.0).min(axis=1).tolist()
    is_long = np.array([share < 1 and _denominator(share) == 0 for share in least]) & ((given > 0).sum(axis=1) > 1)
    for row in np.flatnonzero(~is_long):
        found[row] = rationalise(given[row])[0]
    rows = np.flatnonzero(is_long)
    drawn = given[rows] > 0
    lifted = np.where(drawn, np.maximum(given[rows], 1 / LONGEST_PERIOD), 0.0)
    wanted = lifted * (LONGEST_PERIOD / np.array([math.fsum(each) for each in lifted.tolist()]))[:, None]
    counts = np.maximum(np.floor(wanted), drawn).astype(np.int64)
    missing = LONGEST_PERIOD - counts.sum(axis=1)
    order = np.argsort(np.argsort(counts - wanted, axis=1, kind="stable"), axis=1, kind="stable")
    found[rows] = counts + (order < missing[:, None])
    for row in rows[missing < 0]:
        found[row] = rationalise(given[row])[0]
    return found


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
