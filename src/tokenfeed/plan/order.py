"""`Orders`: in which order the samples of each source come, epoch after epoch, and which of them are left out.

    number ──removals──► position = epoch · n + place in the epoch ──permutation──► (epoch, index)

A *number* counts what a source delivers; a *position* counts its endless shuffled stream with nothing left out.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.kernels.locality import permute_local_run, permute_local_sources
from tokenfeed.kernels.permutation import permute_run, permute_sources
from tokenfeed.plan.permutation import Locality, LocalPermutation, Permutation, Shuffle
from tokenfeed.plan.skips import Removals
from tokenfeed.types import Ints

__all__ = ["INT64", "Orders"]

INT64 = np.dtype(np.int64)
"""Passed instead of `np.int64`, which NumPy looks up in every call: 0.1 µs an array."""


class Orders:
    """number ↔ (epoch, index) of every source; all rows together take two kernel calls, however many sources there are.

    Without removals: epoch number // n, index `Permutation(n, seed, epoch)[number % n]`. With groups of m samples,
    groups are permuted: `Permutation(n / m, seed, epoch)[number % n // m] · m + number % m`. With a `Locality` as
    `shuffle`, the permutation is a `LocalPermutation`.
    """

    def __init__(self, sizes: Sequence[int], groups: Sequence[int], seeds: Sequence[int], shuffle: Shuffle) -> None:
        """Of each source: its samples, the samples of a group, which stay together, and its seed."""
        for size, group, seed in zip(sizes, groups, seeds, strict=True):
            if size < 1:
                raise ArgumentError("there is nothing to load: the view has no samples")
            if group < 1 or size % group:
                raise ArgumentError(f"{size} samples are no whole number of groups of {group}")
            Permutation(size, seed=seed)  # checks both
        self._shuffle = shuffle
        self._sizes = np.array(sizes, np.int64)
        self._groups = np.array(groups, np.int64)
        self._seeds = np.array(seeds, np.int64)
        self._num_groups = self._sizes // self._groups
        self._first = sizes[0], groups[0], seeds[0], sizes[0] // groups[0]
        self._are_grouped = max(groups) > 1
        self._removals: dict[int, Removals] = {}
        self._is_plain = shuffle is True and not self._are_grouped
        """Whether samples are shuffled one by one, and none is removed."""

    def remove(self, source: int, indices: Sequence[int], start: int) -> None:
        """Leave these samples of a source out from its number `start` on."""
        size = int(self._sizes[source])
        if min(indices) < 0 or max(indices) >= size:
            raise ArgumentError(f"a skip names samples {min(indices)} to {max(indices)}; the view has {size:,}")
        if source not in self._removals:
            self._removals[source] = Removals(size, partial(self._places, source))
            self._is_plain = False
        self._removals[source].add(start, np.array(indices))

    def locate(self, sources: Ints | None, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices) of row j, which is number numbers[j] of source sources[j]; without `sources`, of the first.

        O(1) each, O(log s) where s samples are removed.
        """
        epochs, indices = np.empty(numbers.size, INT64), np.empty(numbers.size, INT64)
        if self._is_plain and sources is None:  # nearly every run: nothing else costs time
            permute_run(numbers, self._first[3], self._first[2], epochs, indices)
            return epochs, indices
        for source, removals in self._removals.items():
            if sources is None:
                numbers = removals.to_positions(numbers)
            else:
                chosen = sources == source
                numbers[chosen] = removals.to_positions(numbers[chosen])
        if not self._shuffle:
            np.divmod(numbers, self._first[0] if sources is None else self._sizes[sources], out=(epochs, indices))
        elif self._are_grouped:
            groups = self._first[1] if sources is None else self._groups[sources]
            numbers, places = np.divmod(numbers, groups)
            self._permute(sources, numbers, epochs, indices)
            indices = indices * groups + places
        else:
            self._permute(sources, numbers, epochs, indices)
        return epochs, indices

    def _permute(self, sources: Ints | None, groups: Ints, epochs: Ints, indices: Ints) -> None:
        _, _, seed, count = self._first
        if self._shuffle is True and sources is None:
            permute_run(groups, count, seed, epochs, indices)
        elif self._shuffle is True:
            permute_sources(sources, groups, self._num_groups, self._seeds, epochs, indices)
        elif isinstance(self._shuffle, Locality):
            block, tile = self._shuffle.block, self._shuffle.tile
            if sources is None:
                permute_local_run(groups, count, block, tile, seed, epochs, indices)
            else:
                permute_local_sources(sources, groups, self._num_groups, block, tile, self._seeds, epochs, indices)

    def find(self, source: int, indices: Ints, epoch: int) -> Ints:
        """The numbers of samples in an epoch, −1 where they are left out: 100 ns each; 20 µs each with removals."""
        positions = epoch * int(self._sizes[source]) + self._places(source, epoch, indices)
        return self._removals[source].to_numbers(positions) if source in self._removals else positions

    def count(self, source: int, epochs: int) -> int:
        """How many samples the first `epochs` epochs of a source deliver."""
        position = epochs * int(self._sizes[source])
        return self._removals[source].count_before(position) if source in self._removals else position

    def _places(self, source: int, epoch: int, indices: Ints) -> Ints:
        """Where samples stand in an epoch."""
        if not self._shuffle:
            return indices
        group, key = int(self._groups[source]), (int(self._num_groups[source]), int(self._seeds[source]), epoch)
        groups, places = np.divmod(indices, group)
        order = Permutation(*key) if self._shuffle is True else LocalPermutation(*key, self._shuffle)
        return np.asarray(order.inverse(groups)) * group + places
