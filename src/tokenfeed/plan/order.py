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

Row = tuple[int, int]
INT64 = np.dtype(np.int64)
"""Passed instead of `np.int64`, which NumPy looks up in every call: 0.1 µs an array."""


class Orders:
    """number ↔ (epoch, index) of every source; all rows together take two kernel calls, however many sources there are.

    Epoch number // n, index `Permutation(n, seed, epoch)[number % n]`. With a `Locality` as `shuffle`, the permutation
    is a `LocalPermutation`.
    """

    def __init__(self, rows: Sequence[Row], shuffle: Shuffle) -> None:
        """`rows` has for each source: samples, and seed."""
        sizes, seeds = zip(*rows, strict=True)
        for size, seed in zip(sizes, seeds, strict=True):
            if size < 1:
                raise ArgumentError("there is nothing to load: the view has no samples")
            Permutation(size, seed=seed)  # checks both
        self._shuffle = shuffle
        self._seeds = np.array(seeds, np.int64)
        self._sizes = np.array(sizes, np.int64)
        self._first = sizes[0], seeds[0]
        self._rows = list(rows)
        self._courses: dict[int, Course] = {}
        self._is_plain = shuffle is True and not self._courses
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
        deck = Deck(int(self._seeds[source]), self._shuffle)
        return Course(deck, int(self._sizes[source]))

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
        permute_streams(self._shuffle, sources, numbers, self._sizes, self._seeds, epochs, indices)
        return epochs, indices

    def _locate_courses(self, sources: Ints | None, numbers: Ints, epochs: Ints, indices: Ints) -> tuple[Ints, Ints]:
        known, tables = self._streams, self._streams.tables
        if sources is None:
            sources = np.zeros(numbers.size, INT64)
        streams, turns, offsets = np.empty((3, numbers.size), INT64)
        place_numbers(sources, numbers, *tables, streams, turns, offsets)
        permute_streams(self._shuffle, streams, turns, known.sizes, known.seeds, epochs, indices)
        indices += offsets
        for source in known.with_gaps:
            rows = np.flatnonzero(sources == source)
            epochs[rows], indices[rows] = self._courses[source].locate(numbers[rows])
        return epochs, indices

    @cached_property
    def _streams(self) -> "_Streams":
        return _Streams([self.course(number) for number in range(len(self._rows))])

    def find(self, source: int, indices: Ints, epoch: int) -> Ints:
        """The numbers of samples in an epoch, −1 where it does not deliver them."""
        return self.course(source).find(indices, epoch)


class _Streams:
    """The chapters of all sources, as `place_numbers` takes them."""

    def __init__(self, courses: Sequence[Course]) -> None:
        ids: dict[Stream, int] = {}
        starts, chapters, nodes, bounds = [], [], [np.empty((0, COLUMNS), np.int64)], [0]
        slots: list[tuple[int, int, int]] = []
        num_nodes = 0
        for course in courses:
            for chapter, rest, whole in course.chapters():
                node = chapter.node
                first = num_nodes if node.nodes.size else -1
                key = ids.setdefault(whole, len(ids))
                chapters.append((rest, chapter.begin, first, len(slots), key, chapter.size, chapter.epoch + 1))
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
        self.with_gaps = [number for number, course in enumerate(courses) if not course.is_whole]
        """Sources of which samples are left out, which tables do not know."""
