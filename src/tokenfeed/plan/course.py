"""`Course`: the order of one source that was amended: samples left out, a store that grew.

A course is a list of *chapters*. A chapter begins at some number of the source (it counts what the source delivers),
goes on with the rest of the epoch that the source is in, and then with whole epochs over all samples:

    number ──samples left out──► (epoch, place in the epoch) ──order of the epoch──► index

The order of an epoch is a permutation of all samples. Where the source grows in mid-epoch, those that are added
have a permutation of their own (a *stream*), and what is left of the epoch is the rests of all its streams, each spread
evenly over the whole (`kernels/growth.py`), however often the source grew:

    n = 5, order 3 0 4 1 2; after 3 0 it grows by two, order 6 5:  rests 4 1 2 and 6 5, merged, say, 6 4 1 5 2

What is computed here must never change: a checkpoint holds a number of samples, and means this order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.kernels import growth as kernels
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.locality import permute_local_run, permute_local_sources
from tokenfeed.kernels.permutation import permute_run, permute_sources
from tokenfeed.plan.permutation import Locality, LocalPermutation, Permutation, Shuffle
from tokenfeed.types import Ints

__all__ = ["Course", "Deck", "Stream", "permute_streams"]


@dataclass(frozen=True, slots=True)
class Stream:
    """Samples [first, first + size) of a source, shuffled among themselves in every epoch by a seed of their own."""

    first: int
    size: int
    seed: int


@dataclass(frozen=True, slots=True)
class Deck:
    """How the samples of a source are shuffled: what any number of them makes of a place in an epoch, and back."""

    seed: int
    shuffle: Shuffle

    def whole(self, size: int) -> Stream:
        """All samples of the source."""
        return Stream(0, size, self.seed)

    def find(self, stream: Stream, samples: Ints, epoch: int) -> Ints:
        """The places in an epoch at which samples of a stream stand."""
        own = samples - stream.first
        key = stream.size, stream.seed, epoch
        if isinstance(self.shuffle, Locality):
            return LocalPermutation(*key, self.shuffle).inverse(own)
        return Permutation(*key).inverse(own) if self.shuffle else own

    def run(self, turns: Ints, stream: Stream) -> tuple[Ints, Ints]:
        """(epochs, samples) at turns of the endless run over one stream."""
        epochs, samples = np.empty_like(turns), np.empty_like(turns)
        permute_streams(self.shuffle, None, turns, [stream.size], [stream.seed], epochs, samples)
        samples += stream.first
        return epochs, samples


def permute_streams(
    shuffle: Shuffle, streams: Ints | None, turns: Ints, sizes: Any, seeds: Any, epochs: Ints, indices: Ints
) -> None:
    """Row j is turn turns[j] of the endless run over streams[j] alone: its epoch, and its place in the stream.

    Without `streams`, over the first, which is faster.
    """
    if streams is None:
        size, seed = int(sizes[0]), int(seeds[0])
        if shuffle is True:
            permute_run(turns, size, seed, epochs, indices)
        elif isinstance(shuffle, Locality):
            permute_local_run(turns, size, shuffle.block, shuffle.tile, seed, epochs, indices)
        else:
            np.divmod(turns, size, out=(epochs, indices))
    elif shuffle is True:
        permute_sources(streams, turns, sizes, seeds, epochs, indices)
    elif isinstance(shuffle, Locality):
        permute_local_sources(streams, turns, sizes, shuffle.block, shuffle.tile, seeds, epochs, indices)
    else:
        np.divmod(turns, sizes[streams], out=(epochs, indices))


class Rest:
    """What is left of an epoch: the rests of its streams, merged.

    Unless samples are shuffled all with all, those that were added come last: mixing them in would lose the order, or
    the locality, of what is left.
    """

    def __init__(self, deck: Deck, epoch: int, streams: Sequence[Stream], drawn: Sequence[int], number: int) -> None:
        """`drawn` are the samples of each stream that came before; it begins at `number` of the source."""
        self._deck, self._epoch = deck, epoch
        self.streams, self._drawn = tuple(streams), np.array(drawn, np.int64)
        left = [each for each, stream in enumerate(streams) if drawn[each] < stream.size]
        self._numbers = np.full(len(streams), -1)
        """Slot of each stream; −1 where all of it came before."""
        self._numbers[left] = np.arange(len(left))
        self.slots = [(streams[each], epoch * streams[each].size + drawn[each]) for each in left]
        """(stream, first turn of the run over it) of all that is merged."""
        sizes = np.array([streams[each].size - drawn[each] for each in left], np.int64)
        self.size = int(sizes.sum())
        self.nodes = np.zeros((max(0, len(left) - 1), kernels.COLUMNS), np.int64)
        self._parents = np.full(len(left), -1)
        if len(left) > 1:
            key = int(checksum(f"{deck.seed}:{number}".encode()), 16) >> 1
            kernels.build_tree(sizes, deck.shuffle is True, key, self.nodes, self._parents)

    @classmethod
    def whole(cls, deck: Deck, size: int, epoch: int) -> "Rest":
        """A whole epoch over `size` samples."""
        return cls(deck, epoch, [deck.whole(size)], [0], 0)

    @property
    def is_whole(self) -> bool:
        return len(self.streams) == 1 and not self._drawn[0]

    def grow(self, begin: int, added: int, known: int, number: int) -> "Rest":
        """What is left from place `begin` on, with `added` samples after the `known` ones."""
        drawn = self._drawn.copy()
        counts = np.full(len(self.slots), begin)
        if self.nodes.size:
            kernels.count_elements(begin, self.nodes, counts)
        there = self._numbers >= 0
        drawn[there] += counts[self._numbers[there]]
        seed = int(checksum(f"{self._deck.seed}+{number}".encode()), 16) >> 1
        streams = [*self.streams, Stream(known, added, seed)]
        return Rest(self._deck, self._epoch, streams, [*drawn.tolist(), 0], number)

    def at(self, places: Ints) -> Ints:
        """The samples at places."""
        if not self.nodes.size:
            stream, first = self.slots[0]
            return self._deck.run(places + first, stream)[1]
        lists, ranks = np.empty_like(places), np.empty_like(places)
        kernels.find_elements(places, self.nodes, lists, ranks)
        samples = np.empty_like(places)
        for each in np.unique(lists).tolist():
            rows = np.flatnonzero(lists == each)
            stream, first = self.slots[each]
            samples[rows] = self._deck.run(ranks[rows] + first, stream)[1]
        return samples

    def place(self, samples: Ints) -> Ints:
        """Where samples stand; −1 for those that came before, or are not there."""
        places = np.full_like(samples, -1)
        firsts = [stream.first for stream in self.streams]
        which = np.searchsorted(firsts, samples, side="right") - 1
        for each in np.unique(which).tolist():
            stream, slot = self.streams[each], int(self._numbers[each])
            rows = np.flatnonzero((which == each) & (samples < stream.first + stream.size))
            if slot >= 0 and rows.size:
                ranks = self._deck.find(stream, samples[rows], self._epoch) - self._drawn[each]
                found = np.maximum(ranks, -1)
                if self.nodes.size:
                    kernels.find_places(np.full_like(ranks, slot), found, self.nodes, self._parents, found)
                places[rows] = found
        return places


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """From number `start` on: the rest of an epoch from place `begin` of `node` on, then epochs over `size` samples."""

    start: int
    epoch: int
    node: Rest
    begin: int
    size: int
    removed: Ints
    """Samples left out, sorted."""

    @property
    def kept(self) -> int:
        """Samples of a whole epoch that are delivered."""
        return self.size - self.removed.size


class Course:
    """number ↔ (epoch, index) of one source. Amending it makes another course: what was before is shared."""

    def __init__(self, deck: Deck, size: int) -> None:
        self.deck = deck
        self._chapters = [Chapter(0, 0, Rest.whole(deck, size, 0), 0, size, np.empty(0, np.int64))]
        self._starts = [0]
        self._gone: dict[tuple[int, int], Ints] = {}

    @property
    def is_whole(self) -> bool:
        """Whether no sample is left out."""
        return not any(chapter.removed.size for chapter in self._chapters)

    def chapters(self) -> list[tuple[Chapter, int, Stream]]:
        """Chapters, samples that each delivers in the epoch that it begins in, and the stream of its later epochs."""
        return [(each, self._rest(i), self.deck.whole(each.size)) for i, each in enumerate(self._chapters)]

    @property
    def num_samples(self) -> int:
        """Number of samples that the source has by now."""
        return self._chapters[-1].size

    def amend(self, number: int, *, added: int = 0, removed: Ints | None = None) -> "Course":
        """The same up to `number`. Then `added` samples more, or without `removed` too."""
        last = self._chapters[-1]
        (epoch,), (place,) = (each.tolist() for each in self._place(len(self._chapters) - 1, np.array([number])))
        node = last.node if epoch == last.epoch else Rest.whole(self.deck, last.size, epoch)
        chapter = replace(last, start=number, epoch=epoch, node=node, begin=place)
        if added:
            if place or not node.is_whole:
                node = node.grow(place, added, last.size, number)
            else:
                node = Rest.whole(self.deck, last.size + added, epoch)
            chapter = replace(chapter, node=node, begin=0, size=last.size + added)
        if removed is not None:
            if removed.min(initial=0) < 0 or removed.max(initial=0) >= self.num_samples:
                told = f"samples {removed.min()} to {removed.max()}"
                raise ArgumentError(f"a skip names {told}; the view has {self.num_samples:,}")
            chapter = replace(chapter, removed=np.union1d(chapter.removed, removed))
        if chapter.kept <= 0:
            raise ArgumentError(f"all {chapter.removed.size:,} samples would be skipped")
        course = Course.__new__(Course)
        course.deck, course._gone = self.deck, {}
        course._chapters, course._starts = [*self._chapters, chapter], [*self._starts, number]
        return course

    def _missing(self, which: int, epoch: int) -> Ints:
        """Sorted places of the samples that a chapter leaves out in an epoch. A few epochs are remembered."""
        chapter = self._chapters[which]
        if not chapter.removed.size:
            return chapter.removed
        if (which, epoch) not in self._gone:
            if len(self._gone) > 16:
                self._gone.clear()
            is_rest = epoch == chapter.epoch
            places = (chapter.node if is_rest else Rest.whole(self.deck, chapter.size, epoch)).place(chapter.removed)
            self._gone[which, epoch] = np.sort(places[places >= (chapter.begin if is_rest else 0)])
        return self._gone[which, epoch]

    def _rest(self, which: int) -> int:
        """Samples that a chapter delivers in the epoch that it begins in, if it goes on so long."""
        chapter = self._chapters[which]
        return chapter.node.size - chapter.begin - int(self._missing(which, chapter.epoch).size)

    def _place(self, which: int, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, places) of numbers that lie in a chapter."""
        chapter, ranks = self._chapters[which], numbers - self._starts[which]
        rest = self._rest(which)
        epochs, places = np.divmod(ranks - rest, chapter.kept)
        in_rest = ranks < rest
        epochs = np.where(in_rest, chapter.epoch, epochs + chapter.epoch + 1)
        places = np.where(in_rest, ranks, places)
        if chapter.removed.size:
            for epoch in np.unique(epochs).tolist():
                chosen = epochs == epoch
                missing = self._missing(which, epoch) - (chapter.begin if epoch == chapter.epoch else 0)
                places[chosen] += np.searchsorted(missing - np.arange(missing.size), places[chosen], side="right")
        return epochs, places + np.where(in_rest, chapter.begin, 0)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices). O(1) each; O(log s) where s samples are left out."""
        epochs, indices = np.empty_like(numbers), np.empty_like(numbers)
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        for each in np.unique(which).tolist():
            rows = np.flatnonzero(which == each)
            epochs[rows], indices[rows] = self._locate(each, numbers[rows])
        return epochs, indices

    def _locate(self, which: int, numbers: Ints) -> tuple[Ints, Ints]:
        chapter = self._chapters[which]
        epochs, places = self._place(which, numbers)
        indices = np.empty_like(numbers)
        in_rest = epochs == chapter.epoch
        indices[in_rest] = chapter.node.at(places[in_rest])
        later = ~in_rest
        turns = epochs[later] * chapter.size + places[later]
        indices[later] = self.deck.run(turns, self.deck.whole(chapter.size))[1]
        return epochs, indices

    def find(self, indices: Ints, epoch: int) -> Ints:
        """The numbers at which samples are delivered in an epoch, −1 where they are not."""
        numbers = np.full_like(indices, -1)
        stops = [*self._starts[1:], (1 << 63) - 1]
        for which, (chapter, stop) in enumerate(zip(self._chapters, stops, strict=True)):
            ends = which + 1 < len(self._chapters) and self._chapters[which + 1].epoch < epoch
            if chapter.epoch > epoch or ends:
                continue
            is_rest = chapter.epoch == epoch
            begin = chapter.begin if is_rest else 0
            places = (chapter.node if is_rest else Rest.whole(self.deck, chapter.size, epoch)).place(indices)
            missing = self._missing(which, epoch)
            before = 0 if is_rest else self._rest(which) + (epoch - chapter.epoch - 1) * chapter.kept
            found = chapter.start + before + places - begin - np.searchsorted(missing, places)
            there = (places >= begin) & ~np.isin(places, missing) & (found >= chapter.start) & (found < stop)
            numbers[there] = found[there]
        return numbers

    def count(self, epochs: int) -> int:
        """How many samples the first `epochs` epochs deliver."""
        stops = [*self._starts[1:], (1 << 63) - 1]
        for which, (chapter, stop) in enumerate(zip(self._chapters, stops, strict=True)):
            if chapter.epoch >= epochs:
                return chapter.start
            end = chapter.start + self._rest(which) + (epochs - chapter.epoch - 1) * chapter.kept
            if end <= stop:
                return end
        raise AssertionError("the last chapter has no end")
