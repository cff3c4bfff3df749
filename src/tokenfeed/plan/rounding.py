"""Weights become whole counts: of a period, of a tail, and of what earlier rounding left owed.

Everything is exact in integers, or a sequence of correctly rounded IEEE operations, so all machines come to the same
counts. These results must never change: a checkpoint holds a number of samples, and relies on these counts.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.types import Floats, Ints

__all__ = ["LONGEST_PERIOD", "cut_stage", "divide", "normalise", "rationalise", "some"]

LONGEST_PERIOD = 1 << 20
_ONE = 1 << 32  # one sample, in the units in which rounding is carried


def rationalise(weights: Sequence[float], length: int | None = None) -> tuple[Ints, int]:
    """(counts, period): weights as whole counts of a period no longer than `length` and 2**20.

    The smallest period that holds every weight to 1e-12 of itself. If there is none, the longest allowed, where what is
    owed less than one place gets one and the rest is divided by largest remainder (of equal ones, the first).

    >>> rationalise([0.7, 0.3, 0.0])
    (array([7, 3, 0]), 10)
    >>> rationalise([3.14159, 1, 1], 100)
    (array([61, 20, 19]), 100)
    """
    shares = normalise(weights, range(len(weights)))
    return divide(shares, LONGEST_PERIOD if length is None else min(length, LONGEST_PERIOD))


def normalise(weights: Sequence[Any], names: Sequence[Any]) -> Floats:
    """Weights that add up to 1; `names` are what an error calls them."""
    for name, weight in zip(names, weights, strict=True):
        if isinstance(weight, (str, bool)) or not _is_weight(weight):
            raise ArgumentError(f"the weight of {name!r} is {weight!r}; it must be a finite number, 0 or more")
    given = np.array([float(weight) for weight in weights], np.float64)
    if not given.any():
        raise ArgumentError(f"no source is drawn: the weights are {some(weights)}; one at least must be above 0")
    given = np.where(given > 0, np.maximum(given / given.max(), 1e-300), 0.0)
    return np.asarray(given / math.fsum(given), np.float64)


def _is_weight(weight: Any) -> bool:
    try:
        return 0 <= float(weight) < math.inf
    except (TypeError, ValueError, OverflowError):
        return False


def divide(shares: Floats, size: int, *, lift: bool = True) -> tuple[Ints, int]:
    """`rationalise` normalised weights, to a period of at most `size`. Without `lift`, a source may get no place."""
    period = 1
    for share in np.sort(shares[shares > 0])[:-1].tolist():  # the largest is what these leave of 1: at most as hard
        denominator = _denominator(share)
        period = math.lcm(period, denominator) if denominator else size + 1
        if period > size:
            return _apportion(_owed(shares, size, lift=lift), size), size
    return np.rint(shares * period).astype(np.int64), period


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


def _owed(shares: Floats, size: int, *, lift: bool) -> Ints:
    """What sources are owed in `size` places, in 2**-32 of a place; with `lift`, at least one place."""
    drawn = shares > 0
    if lift:
        if np.count_nonzero(drawn) > size:
            raise ArgumentError(
                f"{np.count_nonzero(drawn):,} sources cannot each be drawn in {size:,} samples; "
                "make the stage longer, or give some of them weight 0"
            )
        given, low = shares, drawn & (shares * size < 1)
        while low.any() and (rest := drawn & ~low).any():
            scale = (1 - np.count_nonzero(low) / size) / math.fsum(given[rest])
            shares = np.where(low, 1 / size, given * scale)
            more = rest & (shares * size < 1)
            if not more.any():
                break
            low = low | more
    owed: Ints = np.rint(shares * size * _ONE).astype(np.int64)
    return owed


def _apportion(owed: Ints, size: int) -> Ints:
    """Whole places for what is owed in 2**-32 of a place: place after place to whom most is owed, the first of equals.

    >>> _apportion(np.array([3.5, 1.5, -0.2, 0.2]) * 2**32, 5)
    array([4, 1, 0, 0])
    """
    counts: Ints = np.maximum(owed // _ONE, 0)
    while missing := size - int(counts.sum()):
        left = owed - counts * _ONE
        if missing > 0:
            counts[np.argsort(-left, kind="stable")[:missing]] += 1
        else:  # sources that are far ahead cannot give back, so some who are owed a place must wait
            given = np.flatnonzero(counts)
            counts[given[np.argsort(left[given], kind="stable")[:-missing]]] -= 1
    return counts


def cut_stage(shares: Floats, counts: Ints, length: int, carry: Ints, *, lift: bool) -> Iterator[tuple[Ints, int]]:
    """The segments of a stage of constant weights, as (counts, samples): whole periods, and a tail where one is left.

    `carry` is what each source is owed, in 2**-32 of a sample, and is brought up to date. A stage of at most one period
    is all tail, so that it can make good what earlier stages owed.

        counts (7, 3), length 25, carry (0, 0):  (7, 3) for 20 samples; owed (3.5, 1.5), so (4, 1) for 5; carry (−½, ½)
    """
    period = int(counts.sum())
    tail = length % period if length > period else length
    if tail < length:
        yield counts, length - tail
    if tail:
        whole, rest = np.divmod(counts * tail, period)
        owed = _owed(shares, length, lift=lift) if tail == length else whole * _ONE + rest * _ONE // period
        drawn = np.flatnonzero(shares)
        places = np.zeros_like(counts)
        places[drawn] = _apportion(carry[drawn] + owed[drawn], tail)
        carry += owed - places * _ONE
        yield places, tail


def some(items: Sequence[Any]) -> str:
    """`'a', 'b', 'c' and 997 more`; `nothing`."""
    told = ", ".join(repr(item) for item in items[:5])
    return f"{told} and {len(items) - 5} more" if len(items) > 5 else told or "nothing"
