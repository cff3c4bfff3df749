"""`Order`: in which order the samples of one source come, epoch after epoch, and which of them are left out.

    number ──removals──► position = epoch · n + place in the epoch ──permutation──► (epoch, index)

A *number* counts what a source delivers; a *position* counts its endless shuffled stream with nothing left out.
"""

from collections.abc import Sequence

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.kernels.locality import permute_local_run, permute_local_sources
from tokenfeed.kernels.permutation import permute_run, permute_sources
from tokenfeed.plan.locality import Locality, LocalPermutation, Shuffle
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.skips import Removals
from tokenfeed.types import Ints

__all__ = ["INT64", "Order", "Orders"]

INT64 = np.dtype(np.int64)
"""Passed instead of `np.int64`, which NumPy looks up in every call: 0.1 µs an array."""


class Order:
    """number ↔ (epoch, index) of one source.

    Without removals: epoch number // n, index `Permutation(n, seed, epoch)[number % n]`. With groups of m samples,
    groups are permuted: `Permutation(n / m, seed, epoch)[number % n // m] · m + number % m`. With a `Locality` as
    `shuffle`, the permutation is a `LocalPermutation`.
    """

    def __init__(self, num_samples: int, *, seed: int, shuffle: Shuffle, group: int = 1) -> None:
        """Groups of `group` samples are shuffled, and stay together."""
        if num_samples < 1:
            raise ArgumentError("there is nothing to load: the view has no samples")
        if group < 1 or num_samples % group:
            raise ArgumentError(f"{num_samples} samples are no whole number of groups of {group}")
        Permutation(num_samples, seed=seed)  # checks both
        self.num_samples = num_samples
        self.num_groups = num_samples // group
        self.group = group
        self.seed = seed
        self.shuffle = shuffle
        self.removals: Removals | None = None
        """Samples that are left out; None where none are."""

    def remove(self, indices: Sequence[int], start: int) -> None:
        """Leave these samples out from number `start` on."""
        if min(indices) < 0 or max(indices) >= self.num_samples:
            raise ArgumentError(
                f"a skip names samples {min(indices)} to {max(indices)}; the view has {self.num_samples:,}"
            )
        if self.removals is None:
            self.removals = Removals(self.num_samples, self._places)
        self.removals.add(start, np.array(indices))

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices). O(1) each, O(log s) where s samples are removed."""
        if self.removals is not None:
            numbers = self.removals.to_positions(numbers)
        epochs, indices = np.empty(numbers.size, INT64), np.empty(numbers.size, INT64)
        if not self.shuffle:
            np.divmod(numbers, self.num_samples, out=(epochs, indices))
        elif self.group == 1:
            self._permute(numbers, epochs, indices)
        else:
            groups, places = np.divmod(numbers, self.group)
            self._permute(groups, epochs, indices)
            indices = indices * self.group + places
        return epochs, indices

    def _permute(self, groups: Ints, epochs: Ints, indices: Ints) -> None:
        if self.shuffle is True:
            permute_run(groups, self.num_groups, self.seed, epochs, indices)
        elif isinstance(self.shuffle, Locality):
            block, tile = self.shuffle.block, self.shuffle.tile
            permute_local_run(groups, self.num_groups, block, tile, self.seed, epochs, indices)

    def find(self, indices: Ints, epoch: int) -> Ints:
        """The numbers of samples in an epoch, −1 where they are left out: 100 ns each; 20 µs each with removals."""
        positions = epoch * self.num_samples + self._places(epoch, indices)
        return positions if self.removals is None else self.removals.to_numbers(positions)

    def count(self, epochs: int) -> int:
        """How many samples the first `epochs` epochs deliver."""
        position = epochs * self.num_samples
        return position if self.removals is None else self.removals.count_before(position)

    def _places(self, epoch: int, indices: Ints) -> Ints:
        """Where samples stand in an epoch."""
        if not self.shuffle:
            return indices
        groups, places = np.divmod(indices, self.group)
        order = Permutation(self.num_groups, self.seed, epoch)
        if isinstance(self.shuffle, Locality):
            order = LocalPermutation(self.num_groups, self.seed, epoch, self.shuffle)
        return np.asarray(order.inverse(groups)) * self.group + places


class Orders:
    """The orders of several sources, evaluated together: two kernel calls however many sources there are."""

    def __init__(self, orders: Sequence[Order], shuffle: Shuffle) -> None:
        self._shuffle = shuffle
        self._removals = [(number, order.removals) for number, order in enumerate(orders) if order.removals is not None]
        self._sizes = np.array([order.num_samples for order in orders], np.int64)
        self._groups = np.array([order.group for order in orders], np.int64)
        self._num_groups = self._sizes // self._groups
        self._are_grouped = bool((self._groups > 1).any())
        self._seeds = np.array([order.seed for order in orders], np.int64)

    def locate(self, sources: Ints, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices) of row j, which is number numbers[j] of source sources[j]. O(1) each."""
        for number, removals in self._removals:
            chosen = sources == number
            numbers[chosen] = removals.to_positions(numbers[chosen])
        epochs, indices = np.empty_like(numbers), np.empty_like(numbers)
        if not self._shuffle:
            np.divmod(numbers, self._sizes[sources], out=(epochs, indices))
        elif self._are_grouped:
            groups = self._groups[sources]
            numbers, places = np.divmod(numbers, groups)
            self._permute(sources, numbers, epochs, indices)
            indices = indices * groups + places
        else:
            self._permute(sources, numbers, epochs, indices)
        return epochs, indices

    def _permute(self, sources: Ints, groups: Ints, epochs: Ints, indices: Ints) -> None:
        if isinstance(self._shuffle, Locality):
            block, tile = self._shuffle.block, self._shuffle.tile
            permute_local_sources(sources, groups, self._num_groups, block, tile, self._seeds, epochs, indices)
        else:
            permute_sources(sources, groups, self._num_groups, self._seeds, epochs, indices)
