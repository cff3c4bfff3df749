"""`Course`: the order of one source that was amended: samples left out, a store that grew, another sequence length.

A course is a list of *chapters*. A chapter begins at some number of the source (it counts what the source delivers),
goes on with the rest of the epoch that the source is in, and then with whole epochs over all samples:

    number ──samples left out──► (epoch, place in the epoch) ──order of the epoch──► index

The order of an epoch is a permutation of all groups (`Whole`). Where the source grows after p of n groups, the order of
the rest is a new permutation over the n − p unseen and the m added groups (`Grown`), and so again for every growth:

    n = 5, order 3 0 4 1 2; after 3 0 it grows by two:  unseen 4 1 2, added 5 6; of five, say Q = 2 0 4 1 3
    rest: unseen[2] = 2, unseen[0] = 4, added[4 − 3] = 6, unseen[1] = 1, added[3 − 3] = 5

What is computed here must never change: a checkpoint holds a number of samples, and means this order.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.locality import permute_local_run
from tokenfeed.kernels.permutation import look_up, permute_run
from tokenfeed.plan.permutation import Locality, LocalPermutation, Permutation, Shuffle
from tokenfeed.types import Ints

__all__ = ["Course", "Deck"]

_AT_ONCE = 1 << 22  # groups of a table times its depth: 60 ms
_WORTHWHILE = 1 << 25  # 0.4 s, and 256 MiB at most
_SOON = 64  # a table that takes longer is made once this part of it was looked up


@dataclass(frozen=True, slots=True)
class Deck:
    """How the groups of a source are shuffled: what any number of them makes of a place in an epoch, and back."""

    seed: int
    shuffle: Shuffle

    def order(self, size: int, epoch: int, seed: int | None = None) -> Permutation | None:
        """The order of `size` groups in an epoch; None where they are not shuffled."""
        key = size, self.seed if seed is None else seed, epoch
        if isinstance(self.shuffle, Locality):
            return LocalPermutation(*key, self.shuffle)
        return Permutation(*key) if self.shuffle else None

    def run(self, positions: Ints, size: int) -> tuple[Ints, Ints]:
        """(epochs, groups) at positions of the endless stream of epochs over `size` groups."""
        epochs, groups = np.empty_like(positions), np.empty_like(positions)
        if self.shuffle is True:
            permute_run(positions, size, self.seed, epochs, groups)
        elif isinstance(self.shuffle, Locality):
            permute_local_run(positions, size, self.shuffle.block, self.shuffle.tile, self.seed, epochs, groups)
        else:
            np.divmod(positions, size, out=(epochs, groups))
        return epochs, groups


class Whole:
    """An epoch over `size` groups."""

    depth = 1

    def __init__(self, deck: Deck, size: int, epoch: int) -> None:
        self.size = size
        self._order = deck.order(size, epoch)

    def at(self, places: Ints) -> Ints:
        return places if self._order is None else self._order(places)

    def place(self, groups: Ints) -> Ints:
        """Where groups stand; −1 for those that are not there."""
        known = np.minimum(groups, self.size - 1)
        return np.where(groups < self.size, known if self._order is None else self._order.inverse(known), -1)


class Grown:
    """The rest of an epoch from place `begin` of what came `before`, with `added` groups after the `known` ones.

    A group that has begun (`head`) is finished first. Unless groups are shuffled all with all, those that are added
    come last: mixing them in would lose the order, or the locality, of what is left.
    """

    def __init__(
        self, deck: Deck, before: "Whole | Grown", begin: int, head: bool, added: int, place: tuple[int, int, int]
    ):
        """`place` is the number of groups before, the epoch, and the number of the source at which it grows."""
        self.before = before
        self.depth: int = before.depth + 1
        self.known, epoch, number = place
        self._begin, self._head, self._added = begin, int(head), added
        self._unseen = before.size - begin - self._head
        self.size: int = before.size - begin + added
        self._is_mixed = deck.shuffle is True
        seed = int(checksum(f"{deck.seed}+{number}".encode()), 16) >> 1
        self._order = deck.order(self._unseen + added if self._is_mixed else added, epoch, seed)
        self.table: Ints | None = None
        """All of it, as long as that is small: a cache of the definition, for a depth of some growths costs time."""
        self._looked_up = 0

    def _shuffled(self, places: Ints, *, back: bool) -> Ints:
        """Which of the unseen and added groups comes at a place behind the head; or where it comes."""
        if self._order is None:
            return places
        turn = self._order.inverse if back else self._order
        if self._is_mixed:
            return turn(places)
        return np.where(places < self._unseen, places, turn(np.maximum(places - self._unseen, 0)) + self._unseen)

    def at(self, places: Ints) -> Ints:
        node: Whole | Grown = self
        groups, rows = np.empty_like(places), None
        while isinstance(node, Grown):
            table = node._find_table(places.size)
            if table is not None:
                found = table[places]
                break
            drawn = node._shuffled(np.maximum(places - node._head, 0), back=False)
            is_old = (drawn < node._unseen) | (places < node._head)
            put = ~is_old if rows is None else rows[~is_old]
            groups[put] = drawn[~is_old] - node._unseen + node.known
            rows = np.flatnonzero(is_old) if rows is None else rows[is_old]
            places = np.where(places < node._head, node._begin, drawn + node._begin + node._head)[is_old]
            node = node.before
        else:
            found = node.at(places)
        if rows is None:
            return found
        groups[rows] = found
        return groups

    def _find_table(self, count: int) -> Ints | None:
        """The table, if there is one or if so much was looked up that it is worth its time."""
        work = self.size * self.depth
        if self.table is None and work <= _WORTHWHILE and self._looked_up >= 0:
            self._looked_up += count
            if work <= _AT_ONCE or self._looked_up > self.size // _SOON:
                self._looked_up = -1  # `at` looks up all of it, and must not come here again
                self.table = self.at(np.arange(self.size))
        return self.table

    def place(self, groups: Ints) -> Ints:
        node: Whole | Grown = self
        chain = []
        while isinstance(node, Grown):
            chain.append(node)
            node = node.before
        places = node.place(groups)
        for each in reversed(chain):
            places = each.advance(places, groups)
        return places

    def advance(self, places: Ints, groups: Ints) -> Ints:
        """Where groups stand, if they stood at `places` of what came before; −1 for those that came, or come later."""
        rest = places - self._begin - self._head
        is_new = (groups >= self.known) & (groups < self.known + self._added)
        rest = np.where(is_new, self._unseen + groups - self.known, rest)
        there = is_new | ((rest >= 0) & (places >= 0))
        found = np.full_like(places, -1)
        found[there] = self._head + self._shuffled(rest[there], back=True)
        if self._head:
            found[places == self._begin] = 0
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """From number `start` on: the rest of an epoch from sample `begin` of `node` on, then epochs over `size` groups."""

    start: int
    epoch: int
    node: Whole | Grown
    begin: int
    size: int
    group: int
    """Samples of a group."""
    removed: Ints
    """Samples left out, sorted."""

    @property
    def kept(self) -> int:
        """Samples of a whole epoch that are delivered."""
        return self.size * self.group - self.removed.size


class Course:
    """number ↔ (epoch, index) of one source. Amending it makes another course: what was before is shared."""

    def __init__(self, deck: Deck, size: int, group: int) -> None:
        self._deck = deck
        self._chapters = [Chapter(0, 0, Whole(deck, size, 0), 0, size, group, np.empty(0, np.int64))]
        self._starts = [0]
        self._gone: dict[tuple[int, int], Ints] = {}
        self._quick: tuple[int, int, int, int, Ints] | None = None
        """(epoch, start, stop, begin, table) of the chapter that was looked up last, if its order is in a table."""

    @property
    def num_samples(self) -> int:
        """Number of samples that the source has by now."""
        return self._chapters[-1].size * self._chapters[-1].group

    def amend(self, number: int, *, added: int = 0, removed: Ints | None = None, group: int | None = None) -> "Course":
        """The same up to `number`. Then `added` groups more, without `removed` too, or with groups of `group` samples.

        With another `group`, every sample is left out that holds an item of one that was.
        """
        last = self._chapters[-1]
        (epoch,), (place,) = (each.tolist() for each in self._place(len(self._chapters) - 1, np.array([number])))
        node = last.node if epoch == last.epoch else Whole(self._deck, last.size, epoch)
        chapter = replace(last, start=number, epoch=epoch, node=node, begin=place)
        if group is not None:
            begin, within = divmod(place, last.group)
            if within:
                raise ArgumentError("a group of windows has begun there, and its rest would be lost by another length")
            least = last.removed * group // last.group
            most = -(-(last.removed + 1) * group // last.group)
            overlaps = [np.arange(*each) for each in zip(least.tolist(), most.tolist(), strict=True)]
            gone = np.unique(np.concatenate([last.removed[:0], *overlaps]))
            chapter = replace(chapter, begin=begin * group, group=group, removed=gone)
        if added:
            begin, within = divmod(place, last.group)
            node = Whole(self._deck, last.size + added, epoch)
            if place or not isinstance(chapter.node, Whole):
                node = Grown(self._deck, chapter.node, begin, within > 0, added, (last.size, epoch, number))
            chapter = replace(chapter, node=node, begin=within, size=last.size + added)
        if removed is not None:
            if removed.min(initial=0) < 0 or removed.max(initial=0) >= self.num_samples:
                told = f"samples {removed.min()} to {removed.max()}"
                raise ArgumentError(f"a skip names {told}; the view has {self.num_samples:,}")
            chapter = replace(chapter, removed=np.union1d(chapter.removed, removed))
        if chapter.kept <= 0:
            raise ArgumentError(f"all {chapter.removed.size:,} samples would be skipped")
        course = Course.__new__(Course)
        course._deck, course._gone, course._quick = self._deck, {}, None
        course._chapters, course._starts = [*self._chapters, chapter], [*self._starts, number]
        return course

    def is_between_groups(self, number: int) -> bool:
        """Whether a group begins with this number."""
        return int(self._place(len(self._chapters) - 1, np.array([number]))[1][0]) % self._chapters[-1].group == 0

    def _missing(self, which: int, epoch: int) -> Ints:
        """Sorted places of the samples that a chapter leaves out in an epoch. A few epochs are remembered."""
        chapter = self._chapters[which]
        if not chapter.removed.size:
            return chapter.removed
        if (which, epoch) not in self._gone:
            if len(self._gone) > 16:
                self._gone.clear()
            groups, within = np.divmod(chapter.removed, chapter.group)
            is_rest = epoch == chapter.epoch
            places = (chapter.node if is_rest else Whole(self._deck, chapter.size, epoch)).place(groups)
            places = np.where(places < 0, -1, places * chapter.group + within)
            self._gone[which, epoch] = np.sort(places[places >= (chapter.begin if is_rest else 0)])
        return self._gone[which, epoch]

    def _rest(self, which: int) -> int:
        """Samples that a chapter delivers in the epoch that it begins in, if it goes on so long."""
        chapter = self._chapters[which]
        return chapter.node.size * chapter.group - chapter.begin - int(self._missing(which, chapter.epoch).size)

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
        """(epochs, indices). O(1) each; O(log s) where s samples are left out, and O(growths of an epoch) where it is
        too large for a table.
        """
        if self._quick is not None:
            indices = np.empty_like(numbers)
            epoch, *where = self._quick
            if look_up(numbers, *where, indices) == numbers.size:
                return np.full(numbers.size, epoch), indices
        first, last = (bisect_right(self._starts, int(each)) - 1 for each in (numbers.min(), numbers.max()))
        if first == last:
            return self._locate(first, numbers)
        epochs, indices = np.empty_like(numbers), np.empty_like(numbers)
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        for each in np.unique(which).tolist():
            rows = np.flatnonzero(which == each)
            epochs[rows], indices[rows] = self._locate(each, numbers[rows])
        return epochs, indices

    def _locate(self, which: int, numbers: Ints) -> tuple[Ints, Ints]:
        chapter = self._chapters[which]
        if not chapter.removed.size and int(numbers.max()) - chapter.start < self._rest(which):
            places, epochs = numbers + (chapter.begin - chapter.start), np.full_like(numbers, chapter.epoch)
            if chapter.group == 1:
                if isinstance(chapter.node, Grown) and chapter.node.table is not None:
                    stop = self._starts[which + 1] if which + 1 < len(self._starts) else (1 << 63) - 1
                    self._quick = chapter.epoch, chapter.start, stop, chapter.begin, chapter.node.table
                return epochs, chapter.node.at(places)
            groups, within = np.divmod(places, chapter.group)
            return epochs, chapter.node.at(groups) * chapter.group + within
        epochs, places = self._place(which, numbers)
        groups, within = np.divmod(places, chapter.group)
        indices = np.empty_like(numbers)
        in_rest = epochs == chapter.epoch
        indices[in_rest] = chapter.node.at(groups[in_rest])
        later = ~in_rest
        indices[later] = self._deck.run(epochs[later] * chapter.size + groups[later], chapter.size)[1]
        return epochs, indices * chapter.group + within

    def find(self, indices: Ints, epoch: int, *, group: int | None = None) -> Ints:
        """The numbers at which samples are delivered in an epoch, −1 where they are not.

        Where the length changed, `indices` count samples of one length: that with groups of `group`, or the last.
        """
        group = self._chapters[-1].group if group is None else group
        numbers = np.full_like(indices, -1)
        groups, within = np.divmod(indices, group)
        node: Whole | Grown | None = None
        places = groups
        stops = [*self._starts[1:], (1 << 63) - 1]
        for which, (chapter, stop) in enumerate(zip(self._chapters, stops, strict=True)):
            ends = which + 1 < len(self._chapters) and self._chapters[which + 1].epoch < epoch
            if chapter.epoch > epoch or ends or chapter.group != group:
                continue
            is_rest = chapter.epoch == epoch
            begin = chapter.begin if is_rest else 0
            here = chapter.node if is_rest else Whole(self._deck, chapter.size, epoch)
            if isinstance(here, Grown) and here.before is node:
                places = here.advance(places, groups)
            elif here is not node:
                places = here.place(groups)
            node = here
            samples = np.where(places < 0, -1, places * group + within)
            missing = self._missing(which, epoch)
            before = 0 if is_rest else self._rest(which) + (epoch - chapter.epoch - 1) * chapter.kept
            found = chapter.start + before + samples - begin - np.searchsorted(missing, samples)
            there = (samples >= begin) & ~np.isin(samples, missing) & (found >= chapter.start) & (found < stop)
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
