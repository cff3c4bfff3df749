"""`Orders`: in which order the samples of each source come, epoch after epoch.

    number = epoch · n + place in the epoch ──permutation──► (epoch, index)

A *number* counts what a source delivers. Sources that were amended have a `Course` of their own.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.kernels.growth import COLUMNS, place_numbers
from tokenfeed.kernels.permutation import permute_run
from tokenfeed.plan.course import Course, Deck, Stream, permute_streams
from tokenfeed.plan.permutation import Permutation, Shuffle
from tokenfeed.types import Ints

__all__ = ["INT64", "Orders", "Row"]

Row = tuple[int, int, int, tuple[int, int] | None]
INT64 = np.dtype(np.int64)
"""Passed instead of `np.int64`, which NumPy looks up in every call: 0.1 µs an array."""


class Orders:
    """number ↔ (epoch, index) of every source; all rows together take two kernel calls, however many sources there are.

    Epoch number // n, index `Permutation(n, seed, epoch)[number % n]`. With groups of m samples, groups are permuted:
    `Permutation(n / m, seed, epoch)[number % n // m] · m + number % m`. With a `Locality` as `shuffle`, the permutation
    is a `LocalPermutation`.
    """

    def __init__(self, rows: Sequence[Row], shuffle: Shuffle) -> None:
        """`rows` has for each source: samples, samples of a group, which stay together, seed, and curriculum."""
        sizes, groups, seeds, curricula = zip(*rows, strict=True)
        for size, group, seed in zip(sizes, groups, seeds, strict=True):
            if size < 1:
                raise ArgumentError("there is nothing to load: the view has no samples")
            if group < 1 or size % group:
                raise ArgumentError(f"{size} samples are no whole number of groups of {group}")
            Permutation(size, seed=seed)  # checks both
        self._shuffle = shuffle
        self._groups = np.array(groups, np.int64)
        self._seeds = np.array(seeds, np.int64)
        self._num_groups = np.array(sizes, np.int64) // self._groups
        self._first = sizes[0], seeds[0]
        self._are_grouped = max(groups) > 1
        self._rows = list(rows)
        self._courses: dict[int, Course] = {}
        for source, each in enumerate(curricula):
            if each is not None:
                self._courses[source] = self.course(source)
        self._is_plain = shuffle is True and not self._are_grouped and not self._courses
        """Whether samples are shuffled one by one, and no source was amended."""

    def add(self, rows: Sequence[Row]) -> "Orders":
        """The same with more sources."""
        more = Orders([*self._rows, *rows], self._shuffle)
        more._courses, more._is_plain = more._courses | self._courses, self._is_plain and more._is_plain
        return more

    def amend(self, source: int, change: Callable[[Course], Course]) -> "Orders":
        """The same with another course of one source."""
        again = copy(self)
        vars(again).pop("_streams", None)
        again._courses, again._is_plain = {**self._courses, source: change(self.course(source))}, False
        return again

    def course(self, source: int) -> Course:
        """The order of one source."""
        if source in self._courses:
            return self._courses[source]
        deck = Deck(int(self._seeds[source]), self._shuffle, self._rows[source][3])
        return Course(deck, int(self._num_groups[source]), int(self._groups[source]))

    def locate(self, sources: Ints | None, numbers: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices) of row j, which is number numbers[j] of source sources[j]; without `sources`, of the first.

        O(1) each; `Course.locate` says what amendments cost.
        """
        epochs, indices = np.empty(numbers.size, INT64), np.empty(numbers.size, INT64)
        if self._is_plain and sources is None:  # nearly every run: nothing else costs time
            permute_run(numbers, *self._first, epochs, indices)
            return epochs, indices
        if self._courses:
            return self._locate_courses(sources, numbers, epochs, indices)
        turns, places, groups = numbers, None, None
        if self._are_grouped:
            groups = self._groups[0] if sources is None else self._groups[sources]
            turns, places = np.divmod(numbers, groups)
        permute_streams(self._shuffle, sources, turns, self._num_groups, self._seeds, epochs, indices)
        return epochs, indices if groups is None else indices * groups + places

    def _locate_courses(self, sources: Ints | None, numbers: Ints, epochs: Ints, indices: Ints) -> tuple[Ints, Ints]:
        known, tables = self._streams, self._streams.tables
        if sources is None:
            sources = np.zeros(numbers.size, INT64)
        streams, turns, groups, offsets = np.empty((4, numbers.size), INT64)
        place_numbers(sources, numbers, *tables, streams, turns, groups, offsets)
        permute_streams(self._shuffle, streams, turns, known.sizes, known.seeds, epochs, indices)
        if known.are_grouped:
            indices *= groups
        indices += offsets
        for source in known.with_gaps:
            rows = np.flatnonzero(sources == source)
            epochs[rows], indices[rows] = self._courses[source].locate(numbers[rows])
        return epochs, indices

    @cached_property
    def _streams(self) -> "_Streams":
        return _Streams([self.course(number) for number in range(len(self._rows))])

    def find(self, source: int, indices: Ints, epoch: int, *, group: int | None = None) -> Ints:
        """The numbers of samples in an epoch, −1 where it does not deliver them; `group` as for `Course.find`."""
        return self.course(source).find(indices, epoch, group=group)


class _Streams:
    """The chapters of all sources, as `place_numbers` takes them."""

    def __init__(self, courses: Sequence[Course]) -> None:
        ids: dict[Stream, int] = {}
        starts, chapters, nodes, bounds = [], [], [np.empty((0, COLUMNS), np.int64)], [0]
        slots: list[tuple[int, int, int]] = []
        num_nodes = 0
        for course in courses:
            for chapter, rest, whole in course.chapters():
                node, size = chapter.node, chapter.size * chapter.group
                first = num_nodes if node.nodes.size else -1
                buckets = course.deck.buckets(chapter.size)
                if whole not in ids:  # its buckets follow it
                    ids |= {stream: len(ids) + place for place, stream in enumerate([whole, *buckets])}
                key, epoch = ids[whole], chapter.epoch + 1
                if buckets and node.is_whole and not chapter.begin:  # the first epoch is as those after it
                    rest, epoch = 0, chapter.epoch
                row = rest, chapter.begin, chapter.group, first, len(slots), key, size, epoch
                chapters.append((*row, buckets[0].size if buckets else 0, course.deck.ordered))
                starts.append(chapter.start)
                slots += [(ids.setdefault(stream, len(ids)), turn, stream.first) for stream, turn in node.slots]
                nodes.append(node.nodes)
                num_nodes += len(node.nodes)
            bounds.append(len(chapters))
        self.tables = (
            *(np.array(each, np.int64) for each in (bounds, starts, chapters)),
            np.concatenate(nodes),
            np.array(slots, np.int64),
        )
        self.sizes, self.seeds = np.array([(each.size, each.seed) for each in ids], np.int64).T.copy()
        self.are_grouped = any(row[2] > 1 for row in chapters)
        self.with_gaps = [number for number, course in enumerate(courses) if not course.is_whole]
        """Sources of which samples are left out, which tables do not know."""
