"""`Source`: the order of one source, epoch after epoch, also where it grows on the way.

    number ──chapters──► (epoch, place in the epoch) ──order of the epoch──► sample

A *number* counts what the source delivers. Every growth begins a *chapter*: what is left of the epoch under way is a
`Rest`, and later epochs are over all samples. So what was delivered before keeps its number, and every epoch is whole:

    3 samples, 2 more after number 4     number   0 1 2   3 | 4 5 6 7   8 9 …
                                         epoch    0 0 0   1 | 1 1 1 1   2 2 …
                                         sample   1 0 2   0 | 4 1 3 2   2 4 …
"""

from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.kernels.permutation import permute_run
from tokenfeed.plan.listed import Listed
from tokenfeed.plan.orders import InOrder, Local, Order, Rest, Shuffled, Tiled
from tokenfeed.plan.permutation import Permutation
from tokenfeed.types import Ints

__all__ = ["INT64", "Shuffle", "Source", "check_shuffle", "shuffle_from_json", "shuffle_to_json"]

INT64 = np.dtype(np.int64)
"""Passed instead of `np.int64`, which NumPy looks up in every call: 0.1 µs an array."""
_END = (1 << 63) - 1

Shuffle = bool | Local | Listed
"""Whether to shuffle: everything with everything, not at all, with some locality, or as a file says."""


@dataclass(frozen=True, slots=True)
class _Chapter:
    start: int
    """Number that it begins with."""
    epoch: int
    """Epoch that is under way there."""
    size: int
    """How many samples the source has from there on."""
    first: Order
    """What is left of that epoch."""
    epoch_size: int
    """How many samples a later epoch delivers."""


class Source:
    """number ↔ (epoch, sample) of one source. Making and growing one builds nothing."""

    def __init__(self, size: int, seed: int, shuffle: Shuffle) -> None:
        if size < 1:
            raise ArgumentError("there is nothing to load: the view has no samples")
        Permutation(size, seed=seed)  # checks both
        if isinstance(shuffle, Listed):
            shuffle.check_fits(size)
        self.seed, self.shuffle = seed, shuffle
        self._known = size
        """How many samples it began with."""
        first = self._order(size, 0)
        self._chapters = [_Chapter(0, 0, size, first, first.size)]
        self._starts = [0]
        self.is_plain = shuffle is True
        """Whether every epoch is one shuffle of all samples: then kernels do many sources at once."""

    @property
    def size(self) -> int:
        """How many samples it has by now."""
        return self._chapters[-1].size

    def _order(self, size: int, epoch: int) -> Order:
        """A whole epoch over so many samples."""
        if isinstance(self.shuffle, Listed):
            added = size - self._known
            return Rest(self.shuffle, 0, self._known, InOrder(added)) if added else self.shuffle
        return _make_order(self.shuffle, size, self.seed, epoch)

    def grow(self, number: int, added: int) -> "Source":
        """The same up to `number`, and so many samples more from there on."""
        last = self._chapters[-1]
        if number < last.start:
            raise ArgumentError(f"a growth after {number:,} samples of the source; there is one after {last.start:,}")
        epoch, order, start, _ = self._find(number)
        begin, size = number - start, last.size + added
        seed = int(Permutation(1 << 62, self.seed, last.size)[begin])
        mixed = Shuffled(order.size - begin + added, seed, epoch) if self.shuffle is True else None
        new = _make_order(self.shuffle if isinstance(self.shuffle, Local) else False, added, seed, epoch)
        rest = Rest(order, begin, last.size, new, mixed)
        grown = copy(self)
        grown.is_plain = False
        grown._starts = [*self._starts, number]
        grown._chapters = [*self._chapters, _Chapter(number, epoch, size, rest, self._order(size, epoch).size)]
        return grown

    def _find(self, number: int) -> tuple[int, Order, int, int]:
        """The epoch of a number, what is delivered of it there, and the first number of that and of what follows."""
        which = bisect_right(self._starts, number) - 1
        chapter = self._chapters[which]
        stop = self._starts[which + 1] if which + 1 < len(self._starts) else _END
        ends = chapter.start + chapter.first.size
        if number < ends:
            return chapter.epoch, chapter.first, chapter.start, min(ends, stop)
        later = (number - ends) // chapter.epoch_size
        epoch, start = chapter.epoch + 1 + later, ends + later * chapter.epoch_size
        return epoch, self._order(chapter.size, epoch), start, min(start + chapter.epoch_size, stop)

    def at(self, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, samples). O(1) each; with growths, one step for each of the epoch."""
        epochs, samples = np.empty(numbers.size, INT64), np.empty(numbers.size, INT64)
        if self.is_plain:  # nearly every run: nothing else costs time
            permute_run(numbers, self._known, self.seed, epochs, samples)
        elif numbers.size:
            for rows, epoch, order, start in self._split(numbers):
                epochs[rows], samples[rows] = epoch, order.at(numbers[rows] - start)
        return epochs, samples

    def _split(self, numbers: Ints) -> Iterator[tuple[Any, int, Order, int]]:
        """(rows, epoch, order, first number of the order) of numbers, which mostly lie in one epoch."""
        epoch, order, start, stop = self._find(int(numbers.min()))
        if numbers.max() < stop:
            yield slice(None), epoch, order, start
            return
        rows = np.argsort(numbers, kind="stable")
        ascending, first = numbers[rows], 0
        while first < rows.size:
            epoch, order, start, stop = self._find(int(ascending[first]))
            last = int(np.searchsorted(ascending, stop))
            yield rows[first:last], epoch, order, start
            first = last

    def place(self, epoch: int, samples: Ints) -> Ints:
        """The numbers of samples in an epoch; −1 where it does not deliver them. One step for each growth of it."""
        numbers, places = np.full(samples.size, -1), np.empty(0, np.int64)
        for which, chapter in enumerate(self._chapters):
            stop = self._starts[which + 1] if which + 1 < len(self._starts) else _END
            ends = chapter.start + chapter.first.size
            if chapter.epoch > epoch:
                break
            if chapter.epoch < epoch:
                start = ends + (epoch - chapter.epoch - 1) * chapter.epoch_size
                if start >= stop:
                    continue
                places = self._order(chapter.size, epoch).place(samples)
            else:
                start, first = chapter.start, chapter.first
                if isinstance(first, Rest) and places.size == samples.size:  # those in the order before are known
                    places = first.follow(places, samples)
                else:
                    places = first.place(samples)
            found = start + places
            numbers = np.where((places >= 0) & (found < stop), found, numbers)
        return numbers

    def count(self, epochs: int) -> int:
        """How many samples the first `epochs` epochs deliver."""
        for which, chapter in enumerate(self._chapters):
            stop = self._starts[which + 1] if which + 1 < len(self._starts) else _END
            if chapter.epoch >= epochs:
                return chapter.start
            end = chapter.start + chapter.first.size + (epochs - chapter.epoch - 1) * chapter.epoch_size
            if end <= stop:
                return end
        raise AssertionError("the last chapter has no end")


def _make_order(shuffle: bool | Local, size: int, seed: int, epoch: int) -> Order:
    if isinstance(shuffle, Local):
        return Tiled(size, shuffle.block, shuffle.tile, seed, epoch)
    return Shuffled(size, seed, epoch) if shuffle else InOrder(size)


def check_shuffle(shuffle: Shuffle) -> None:
    if not isinstance(shuffle, bool | Local | Listed):
        raise ArgumentError(f"shuffle is {shuffle!r}; it must be True, False, Local(block, tile) or Listed(path)")


def shuffle_to_json(shuffle: Shuffle) -> Any:
    if isinstance(shuffle, Listed):
        return shuffle.to_json()
    return [shuffle.block, shuffle.tile] if isinstance(shuffle, Local) else shuffle


def shuffle_from_json(value: Any) -> Shuffle:
    match value:
        case bool():
            return value
        case [int(block), int(tile)] if block > 0 and tile > 0:
            return Local(block, tile)
        case {"path": str(), "digest": str()}:
            return Listed.from_json(value)
    raise StateError(f"{value!r} describes no shuffle; expected true, false, [block, tile] or a path with its digest")
