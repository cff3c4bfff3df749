"""Samples that a run must not see: ranges of the run, and samples of the data from some point of the run on.

A run numbers the samples it delivers k = 0, 1, 2, … without gaps, whatever it skips. A range [start, stop) counts in
the run as it is without skips, and is a jump. A removal takes samples of one source out of every epoch from k = `at`
on. Let q₀ < q₁ < … be the sorted places of the removed samples in an epoch: the r-th sample that is left has place
r + (number of i with qᵢ − i ≤ r).

Both change only what comes after the point at which they begin, in whatever order they were made. So a run can return
to a checkpoint before a loss spike, skip the samples that caused it, and repeat nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.types import Ints

__all__ = ["Range", "Ranges", "Removals", "Skip"]

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Skip:
    """Samples not to see: `samples`, a range of the run; or `documents` or `indices`, skipped from sample `at` on.

    All ranges count in the run as it is without skips: `plan.without_skips(k)` is the number there of the k-th sample
    of a run that has skips already. `at` is a k of the run as it is delivered, such as that of a checkpoint.

    >>> Skip(samples=(81_000, 82_000))          # what steps around a loss spike would have delivered
    >>> Skip(documents=[17, 4711], at=80_000)   # every sample that touches these documents
    >>> Skip(indices=[5], at=80_000)            # sample 5 of the view
    >>> Skip(documents=[17], source="web", at=80_000)
    >>> Skip(documents=[17], mask=True, at=80_000)   # samples stay, and `batch.loss_mask` leaves the document out
    """

    samples: Range | None = None
    documents: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    at: int = 0
    source: str | None = None
    """Name of the source that `documents` or `indices` count in; required in a mixture of several sources."""
    mask: bool = False
    """Whether samples that touch `documents` are delivered with these documents masked, instead of dropped."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "documents", tuple(sorted({int(number) for number in self.documents})))
        object.__setattr__(self, "indices", tuple(sorted({int(number) for number in self.indices})))
        if self.samples is not None:
            start, stop = (int(number) for number in self.samples)
            object.__setattr__(self, "samples", (start, stop))
            if not 0 <= start < stop or self.documents or self.indices or self.at or self.source is not None:
                raise ArgumentError(
                    f"{self}: samples is a range (start, stop) of the run with 0 <= start < stop, and stands alone"
                )
        elif not self.documents and not self.indices:
            raise ArgumentError("a Skip needs samples, documents or indices")
        if self.mask and (not self.documents or self.indices):
            raise ArgumentError(f"{self}: mask=True goes with documents, and with nothing else")
        if self.at < 0:
            raise ArgumentError(f"{self}: at is the number of a sample, and cannot be negative")

    def to_json(self) -> list[Any]:
        if self.samples is not None:
            return ["samples", *self.samples]
        if self.mask:
            return ["mask", self.at, list(self.documents), self.source]
        return ["indices", self.at, list(self.indices), list(self.documents), self.source]

    @classmethod
    def from_json(cls, value: Any) -> "Skip":
        parts = value if isinstance(value, list) else []
        numbers = [each for part in parts for each in (part if isinstance(part, list) else [part])]
        if not all(isinstance(each, str | None) or (type(each) is int and 0 <= each < 1 << 62) for each in numbers):
            raise ArgumentError(f"{str(value)[:80]} describes no skip: its numbers are whole, from 0 to 2**62")
        match value:
            case ["samples", start, stop]:
                return cls(samples=(start, stop))
            case ["mask", at, [*documents], str() | None as source]:
                return cls(at=at, documents=tuple(documents), source=source, mask=True)
            case ["indices", at, [*indices], [*documents], str() | None as source]:
                return cls(at=at, indices=tuple(indices), documents=tuple(documents), source=source)
        raise ArgumentError(f"{str(value)[:80]} describes no skip")


class Ranges(list[Range]):
    """Skipped ranges of a run, in the numbers that it has without skips: sorted, those that touch or overlap as one.

    (10, 15) and (50, 60):  k = 9 → 9, 10 → 15, 44 → 49, 45 → 60
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        merged: list[Range] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                start, last = merged.pop()
                stop = max(stop, last)
            merged.append((start, stop))
        super().__init__(merged)
        self._starts, self._stops = np.array(merged, np.int64).reshape(-1, 2).T
        self._skipped = np.concatenate([[0], np.cumsum(self._stops - self._starts)])

    def jump(self, samples: Ints) -> Ints:
        """k → its number in the run without skips."""
        jumps = self._starts - self._skipped[:-1]
        return np.asarray(samples + self._skipped[np.searchsorted(jumps, samples, side="right")])

    def jump_back(self, numbers: Ints) -> Ints:
        """Undo `jump`; −1 for numbers that are skipped, and for those that are −1."""
        before = np.searchsorted(self._starts, numbers, side="right")
        skipped = (before > 0) & (numbers < np.append(0, self._stops)[before])
        return np.where(skipped | (numbers < 0), -1, numbers - self._skipped[before])

    def retreat(self, number: int) -> int:
        """The first k that `jump` takes to `number` or beyond it."""
        return number - sum(min(stop, number) - start for start, stop in self if start < number)


class Removals:
    """Number ↔ position in the endless stream of a source that samples are removed from, from some number on.

    `places(epoch, indices)` tells where samples stand in an epoch. Stage i begins with the i-th removal: from number
    `starts[i]`, which has position `positions[i]`, all samples of `removed[i]` are missing.
    """

    def __init__(self, num_samples: int, places: Callable[[int, Ints], Ints]) -> None:
        self._n = num_samples
        self._places = places
        self._starts = np.zeros(1, np.int64)
        self._positions = np.zeros(1, np.int64)
        self._removed: list[Ints] = [np.empty(0, np.int64)]
        self._sorted: dict[tuple[int, int], Ints] = {}

    def add(self, start: int, indices: Ints) -> None:
        """Remove `indices` too, from number `start` on, which is no earlier than those before."""
        removed = np.union1d(self._removed[-1], indices)
        if removed.size >= self._n:
            raise ArgumentError(f"all {self._n:,} samples would be skipped")
        position = self.to_positions(np.array([start]))[0]
        self._starts = np.append(self._starts, start)
        self._positions = np.append(self._positions, position)
        self._removed.append(removed)

    def _missing(self, stage: int, epoch: int) -> Ints:
        """Sorted places of the samples that are missing in an epoch. A few epochs are remembered."""
        key = (stage, epoch)
        if key not in self._sorted:
            if len(self._sorted) > 16:
                self._sorted.clear()
            self._sorted[key] = np.sort(self._places(epoch, self._removed[stage]))
        return self._sorted[key]

    def _left_before(self, stage: int, position: int) -> int:
        """Number of samples left before a position in a stream that was in this stage from the beginning."""
        epoch, place = divmod(position, self._n)
        gone = self._removed[stage].size * epoch + int(np.searchsorted(self._missing(stage, epoch), place))
        return position - gone

    def count_before(self, position: int) -> int:
        """Number of samples left before a position."""
        stage = int(np.searchsorted(self._positions, position, side="right")) - 1
        begin = self._left_before(stage, int(self._positions[stage]))
        return int(self._starts[stage]) + self._left_before(stage, position) - begin

    def to_positions(self, numbers: Ints) -> Ints:
        """Number → position."""
        positions = numbers.copy()
        stages = np.searchsorted(self._starts, numbers, side="right") - 1
        for stage in np.unique(stages[stages > 0]):
            begin = self._left_before(stage, int(self._positions[stage]))
            rows = np.flatnonzero(stages == stage)
            epochs, rest = np.divmod(numbers[rows] - self._starts[stage] + begin, self._n - self._removed[stage].size)
            for epoch in np.unique(epochs):
                missing = self._missing(stage, int(epoch))
                chosen = epochs == epoch
                shift = np.searchsorted(missing - np.arange(missing.size), rest[chosen], side="right")
                positions[rows[chosen]] = epoch * self._n + rest[chosen] + shift
        return positions

    def to_numbers(self, positions: Ints) -> Ints:
        """Position → number, −1 for positions of removed samples."""
        numbers = positions.copy()
        stages = np.searchsorted(self._positions, positions, side="right") - 1
        for row in np.flatnonzero(stages > 0):
            stage, position = int(stages[row]), int(positions[row])
            epoch, place = divmod(position, self._n)
            gone = place in self._missing(stage, epoch)
            numbers[row] = -1 if gone else self.count_before(position)
        return numbers
