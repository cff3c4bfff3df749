"""`Locality`: how far apart a shuffle may take what lies together, where reading far apart is dear."""

from dataclasses import dataclass
from typing import Any

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.kernels import locality as kernels
from tokenfeed.plan.permutation import Permutation, whole
from tokenfeed.types import Ints

__all__ = [
    "LocalPermutation",
    "Locality",
    "Shuffle",
    "check_shuffle",
    "shuffle_from_json",
    "shuffle_to_json",
]

_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Locality:
    """A shuffle for data that is dear to read at random: `Loader(view, 32, shuffle=Locality(block=1024, tile=64))`.

    The data is cut into blocks of `block` consecutive samples (groups of samples, where the view has groups). Blocks
    come in random order, and samples are mixed across `tile` blocks and then across tiles that begin half a tile later.
    So at any time samples come from 2 · `tile` blocks, each of which is read once an epoch if that much is kept.

    `docs/locality.md` has what this costs in randomness and saves in reading. Choose a block of 1 to 8 MiB, and a tile
    as large as 2 · `tile` blocks fit in memory or in the cache on disk; of every source, where a run is over several.
    """

    block: int
    tile: int = 64

    def __post_init__(self) -> None:
        for name in ("block", "tile"):
            number = whole(f"{name} of a locality", getattr(self, name))
            if not 1 <= number < _LIMIT:
                raise ArgumentError(f"{name} of a locality is {number}; it must be in [1, 2**31)")
            object.__setattr__(self, name, number)


@dataclass(frozen=True, slots=True)
class LocalPermutation(Permutation):
    """A keyed bijection on [0, n) like `Permutation`, which takes samples no further apart than `locality` says.

    An array costs up to three times what it costs there, and half of that where its positions are close together.

    >>> LocalPermutation(11, locality=Locality(block=2, tile=2))(range(11))
    array([ 6,  0,  4,  7,  1,  8,  9,  3,  5,  2, 10])
    """

    locality: Locality = Locality(block=1024)

    def _permute(self, numbers: Ints, back: bool) -> int:
        block, tile = self.locality.block, self.locality.tile
        return int(kernels.permute_local(numbers, self.n, block, tile, self.seed, self.epoch, back, numbers))


Shuffle = bool | Locality
"""Whether to shuffle: everything with everything, not at all, or with some locality."""


def check_shuffle(shuffle: Any) -> Shuffle:
    if not isinstance(shuffle, bool | Locality):
        raise ArgumentError(f"shuffle is {shuffle!r}; it must be True, False or a Locality")
    return shuffle


def shuffle_to_json(shuffle: Shuffle) -> Any:
    return [shuffle.block, shuffle.tile] if isinstance(shuffle, Locality) else shuffle


def shuffle_from_json(value: Any) -> Shuffle:
    match value:
        case bool():
            return value
        case [int(block), int(tile)] if block > 0 and tile > 0:
            return Locality(block, tile)
    raise StateError(f"{value!r} describes no shuffle; expected true, false or [block, tile]")
