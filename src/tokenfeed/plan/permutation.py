"""`Permutation`: a random order that takes no memory and no time to make; `LocalPermutation`: one that mixes less."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, overload

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, SampleIndexError, StateError, whole
from tokenfeed.kernels import locality as local_kernels
from tokenfeed.kernels import permutation as kernels
from tokenfeed.types import Ints

__all__ = ["LocalPermutation", "Locality", "Permutation", "Shuffle", "shuffle_from_json", "shuffle_to_json"]

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

    def _permute(self, numbers: Ints, inverse: bool) -> int:
        """In place; −1, or the first row outside [0, n)."""
        return int(kernels.permute(numbers, self.n, self.seed, self.epoch, inverse, numbers))

    def _apply(self, what: str, numbers: int | Numbers, inverse: bool) -> int | Ints:
        if _is_whole(numbers):
            return self._one(what, int(numbers), inverse)
        given = np.asarray(numbers)
        empty = given.size == 0 and not isinstance(numbers, np.ndarray)  # NumPy makes floats of []
        if given.dtype.kind not in "iu" and not empty:
            raise ArgumentError(f"{what}s must be whole numbers, not {given.dtype}")
        out = np.array(given, np.int64, order="C")  # a uint64 beyond int64 becomes negative, and is refused as such
        flat = out.reshape(-1)
        bad = self._permute(flat, inverse)
        if bad >= 0:
            raise self._outside(what, given.reshape(-1)[bad])
        return out

    def _one(self, what: str, number: int, inverse: bool) -> int:
        if not 0 <= number < self.n:
            raise self._outside(what, number)
        out = np.array([number], np.int64)
        self._permute(out, inverse)
        return int(out[0])

    def _outside(self, what: str, number: Any) -> SampleIndexError:
        return SampleIndexError(f"{what} {number} is outside the permutation, which is of [0, {self.n})")


def _is_whole(value: Any) -> TypeGuard[int | np.integer[Any]]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Locality:
    """A shuffle for data that is dear to read at random: `Loader(view, 32, shuffle=Locality(block=1024, tile=64))`.

    The data is cut into blocks of `block` consecutive samples. Blocks
    come in random order, and samples are mixed across `tile` blocks and then across tiles that begin half a tile later.
    So at any time samples come from 2 · `tile` blocks, each of which is read once an epoch if that much is kept.

    `docs/locality.md` has what this costs in randomness and saves in reading. Choose a block of 1 to 8 MiB, and a tile
    as large as 2 · `tile` blocks fit in memory or in the cache on disk; of every source, where a run is over several.
    """

    block: int
    tile: int = 64

    def __post_init__(self) -> None:
        for name in ("block", "tile"):
            object.__setattr__(self, name, whole(f"{name} of a locality", getattr(self, name), 1, 31))


@dataclass(frozen=True, slots=True)
class LocalPermutation(Permutation):
    """A keyed bijection on [0, n) like `Permutation`, which takes samples no further apart than `locality` says.

    An array costs up to three times what it costs there, and half of that where its positions are close together.

    >>> LocalPermutation(11, locality=Locality(block=2, tile=2))(range(11))
    array([ 6,  0,  4,  7,  1,  8,  9,  3,  5,  2, 10])
    """

    locality: Locality = Locality(block=1024)

    def _permute(self, numbers: Ints, inverse: bool) -> int:
        block, tile = self.locality.block, self.locality.tile
        return int(local_kernels.permute_local(numbers, self.n, block, tile, self.seed, self.epoch, inverse, numbers))


Shuffle = bool | Locality
"""Whether to shuffle: everything with everything, not at all, or with some locality."""


def shuffle_to_json(shuffle: Shuffle) -> Any:
    return [shuffle.block, shuffle.tile] if isinstance(shuffle, Locality) else shuffle


def shuffle_from_json(value: Any) -> Shuffle:
    match value:
        case bool():
            return value
        case [int(block), int(tile)] if block > 0 and tile > 0:
            return Locality(block, tile)
    raise StateError(f"{value!r} describes no shuffle; expected true, false or [block, tile]")
