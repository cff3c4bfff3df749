"""`Permutation`: a random order that takes no memory and no time to make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, overload

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, SampleIndexError, whole
from tokenfeed.kernels import permutation as kernels
from tokenfeed.types import Ints

__all__ = ["Permutation"]

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
            object.__setattr__(self, name, whole(f"{name} of a permutation", getattr(self, name), least))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, position: int) -> int:
        """What stands at one position."""
        if not _is_whole(position):
            raise ArgumentError(f"position is {position!r}; it must be a whole number")
        return self._one("position", int(position), False)

    @overload
    def __call__(self, positions: int) -> int: ...
    @overload
    def __call__(self, positions: Numbers) -> Ints: ...
    def __call__(self, positions: int | Numbers) -> int | Ints:
        """What stands at the positions, in an array of their shape; for an int, an int."""
        return self._apply("position", positions, False)

    @overload
    def inverse(self, values: int) -> int: ...
    @overload
    def inverse(self, values: Numbers) -> Ints: ...
    def inverse(self, values: int | Numbers) -> int | Ints:
        """The positions at which the values stand, in an array of their shape; for an int, an int."""
        return self._apply("value", values, True)

    def _apply(self, what: str, numbers: int | Numbers, inverse: bool) -> int | Ints:
        if _is_whole(numbers):
            return self._one(what, int(numbers), inverse)
        given = np.asarray(numbers)
        empty = given.size == 0 and not isinstance(numbers, np.ndarray)  # NumPy makes floats of []
        if given.dtype.kind not in "iu" and not empty:
            raise ArgumentError(f"{what}s must be whole numbers, not {given.dtype}")
        out = np.array(given, np.int64, order="C")  # a uint64 beyond int64 becomes negative, and is refused as such
        flat = out.reshape(-1)
        bad = kernels.permute(flat, self.n, self.seed, self.epoch, inverse, flat)
        if bad >= 0:
            raise self._outside(what, given.reshape(-1)[bad])
        return out

    def _one(self, what: str, number: int, inverse: bool) -> int:
        if not 0 <= number < self.n:
            raise self._outside(what, number)
        out = np.array([number], np.int64)
        kernels.permute(out, self.n, self.seed, self.epoch, inverse, out)
        return int(out[0])

    def _outside(self, what: str, number: Any) -> SampleIndexError:
        return SampleIndexError(f"{what} {number} is outside the permutation, which is of [0, {self.n})")


def _is_whole(value: Any) -> TypeGuard[int | np.integer[Any]]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
