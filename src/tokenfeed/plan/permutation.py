"""`Permutation`: a random order of n things that takes no memory and no time to make."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.kernels import permutation as kernels
from tokenfeed.types import Ints

__all__ = ["Permutation", "whole"]

_LIMIT = 1 << 63

Numbers = Sequence[Any] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A keyed bijection on [0, n), for 1 <= n < 2**63; other seeds and other epochs give unrelated ones.

    Nothing is built or kept, so making one costs 2 µs at any n. An array costs about 15 ns an index (40 ns where n is
    below 4096) and 2 µs a call, without the GIL. The order is the same on every machine and in every version.

    >>> p = Permutation(7, seed=1)
    >>> p([0, 1, 2, 3, 4, 5, 6])
    array([6, 5, 1, 0, 4, 2, 3])
    >>> p[1], p.inverse(5)
    (5, 1)
    """

    n: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("seed", 0), ("epoch", 0)):
            number = whole(f"{name} of a permutation", getattr(self, name))
            if not least <= number < _LIMIT:
                raise ArgumentError(f"{name} of a permutation is {number}; it must be in [{least}, 2**63)")
            object.__setattr__(self, name, number)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, position: int) -> int:
        """What stands at one position."""
        return self._one(whole("position of a permutation", position), back=False)

    @overload
    def __call__(self, positions: int) -> int: ...
    @overload
    def __call__(self, positions: Numbers) -> Ints: ...
    def __call__(self, positions: int | Numbers) -> int | Ints:
        """What stands at the positions, in an array of their shape; for an int, an int."""
        return self._apply(positions, back=False)

    @overload
    def inverse(self, values: int) -> int: ...
    @overload
    def inverse(self, values: Numbers) -> Ints: ...
    def inverse(self, values: int | Numbers) -> int | Ints:
        """The positions at which the values stand, in an array of their shape; for an int, an int."""
        return self._apply(values, back=True)

    def _permute(self, numbers: Ints, back: bool) -> int:
        """In place, from positions to values or `back`; −1, or the first row outside [0, n)."""
        return int(kernels.permute(numbers, self.n, self.seed, self.epoch, back, numbers))

    def _apply(self, numbers: int | Numbers, *, back: bool) -> int | Ints:
        if isinstance(numbers, (int, np.integer)) and not isinstance(numbers, bool):
            return self._one(int(numbers), back=back)
        given = np.asarray(numbers)
        empty = given.size == 0 and not isinstance(numbers, np.ndarray)  # NumPy makes floats of []
        if given.dtype.kind not in "iu" and not empty:
            raise ArgumentError(f"{_what(back)}s must be whole numbers, not {given.dtype}")
        out = np.array(given, np.int64, order="C")  # a uint64 beyond int64 becomes negative, and is refused as such
        flat = out.reshape(-1)
        bad = self._permute(flat, back)
        if bad >= 0:
            raise self._outside(given.reshape(-1)[bad], back)
        return out

    def _one(self, number: int, *, back: bool) -> int:
        if not 0 <= number < self.n:
            raise self._outside(number, back)
        out = np.array([number], np.int64)
        self._permute(out, back)
        return int(out[0])

    def _outside(self, number: Any, back: bool) -> SampleIndexError:
        return SampleIndexError(f"{_what(back)} {number} is outside the permutation, which is of [0, {self.n})")


def _what(back: bool) -> str:
    return "value" if back else "position"


def whole(name: str, number: Any) -> int:
    """The number as an int, if it is a whole one."""
    if not isinstance(number, (bool, np.bool_)):
        try:
            return operator.index(number)
        except TypeError:
            pass
    raise ArgumentError(f"{name} must be a whole number, not {number!r}")
