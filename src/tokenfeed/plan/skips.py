"""Samples a run must not see: ranges of the run, and samples of the data from some point of the run on.

A run numbers what it delivers k = 0, 1, 2, … without gaps, whatever it skips. Two maps lead from k to a position in the
endless shuffled stream:

    k ──ranges──► j ──removals──► position = epoch · n + place in the epoch

A range [start, stop) is a jump: from k = start on, j is stop − start further. A removal takes samples of the data out
of every epoch from `at` on: the place of the r-th sample that is left follows from the sorted places q₀ < q₁ < … of
those that are not, as r + (number of i with qᵢ − i ≤ r). Both maps only ever change what comes after the point at which
they were added, so a run can go back to a checkpoint before a loss spike, skip, and repeat nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError

__all__ = ["Ints", "Removals", "Skip", "begun", "jump", "jump_back"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Skip:
    """What not to see. Give `samples`, a range of the run; or `documents` or `indices`, which are skipped from `at` on.

    >>> Skip(samples=(81_000, 82_000))          # what steps around a loss spike would have delivered
    >>> Skip(documents=[17, 4711], at=80_000)   # every sample that touches these documents
    >>> Skip(indices=[5], at=80_000)            # sample 5 of the view
    >>> Skip(documents=[17], source="web", at=80_000)
    >>> Skip(documents=[17], mask=True, at=80_000)   # samples stay, and `batch.loss_mask` leaves the document out
    """

    samples: tuple[int, int] | None = None
    documents: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    at: int = 0
    source: str | None = None
    """Of a mixture, the source that `documents` or `indices` are of."""
    mask: bool = False
    """Deliver the samples that touch `documents`, and mask these, where they would be dropped otherwise."""

    def __post_init__(self) -> None:
        for name in ("documents", "indices"):
            object.__setattr__(self, name, tuple(sorted({int(number) for number in getattr(self, name)})))
        if self.samples is not None:
            start, stop = (int(number) for number in self.samples)
            object.__setattr__(self, "samples", (start, stop))
            if not 0 <= start < stop or self.documents or self.indices or self.at:
                raise ArgumentError(
                    f"{self}: samples is a range (start, stop) with 0 <= start < stop, and stands alone"
                )
        elif not self.documents and not self.indices:
            raise ArgumentError("a Skip needs samples, documents or indices")
        if self.mask and (not self.documents or self.indices):
            raise ArgumentError(f"{self}: mask=True goes with documents, and with nothing else")
        if self.at < 0:
            raise ArgumentError(f"{self}: at is the number of a sample, and cannot be negative")

    @property
    def begins(self) -> int:
        """The first k that it changes, at the earliest."""
        return self.at if self.samples is None else self.samples[0]

    def to_json(self) -> list[Any]:
        if self.samples is not None:
            return ["samples", *self.samples]
        if self.mask:
            return ["mask", self.at, list(self.documents), self.source]
        fields = ["indices", self.at, list(self.indices), list(self.documents)]
        return fields if self.source is None else [*fields, self.source]

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
            case ["indices", at, [*indices], [*documents]]:
                return cls(at=at, indices=tuple(indices), documents=tuple(documents))
            case ["indices", at, [*indices], [*documents], str(source)]:
                return cls(at=at, indices=tuple(indices), documents=tuple(documents), source=source)
        raise ArgumentError(f"{value!r} describes no skip")


def jump(samples: Ints, ranges: Sequence[tuple[int, int]]) -> Ints:
    """k → j. A range counts in the numbering that those before it leave, so the last one is applied first."""
    for start, stop in reversed(ranges):
        samples = samples + (stop - start) * (samples >= start)
    return samples


def begun(skips: Sequence[Skip], num_delivered: int) -> list[Skip]:
    """The skips that may change any of the first `num_delivered` samples of a run.

    A skip counts in the numbering that those before it leave. A range that is skipped later, but lies further ahead,
    brings it closer: samples (50, 60), then (10, 15), and the first of them begins at k = 45.
    """
    found = []
    for place, skip in enumerate(skips):
        begin = skip.begins
        for start, stop in (each.samples for each in skips[place + 1 :] if each.samples is not None and not skip.mask):
            begin = min(begin, max(start, begin - (stop - start)))
        if begin < num_delivered:
            found.append(skip)
    return found


def jump_back(numbers: Ints, ranges: Sequence[tuple[int, int]]) -> Ints:
    """j → k, −1 for those that are skipped."""
    for start, stop in ranges:
        inside = (numbers >= start) & (numbers < stop)
        numbers = np.where(inside, -1, numbers - (stop - start) * (numbers >= stop))
    return numbers


class Removals:
    """j → position and back, where samples are taken out of every epoch from some j on.

    `places(epoch, indices)` gives where samples stand in an epoch. Stage i begins with the i-th removal: from
    `starts[i]` on (and from position `positions[i]` on) all samples of `removed[i]` are missing.
    """

    def __init__(self, num_samples: int, places: Callable[[int, Ints], Ints]) -> None:
        self._n = num_samples
        self._places = places
        self._starts = np.zeros(1, np.int64)
        self._positions = np.zeros(1, np.int64)
        self._removed: list[Ints] = [np.empty(0, np.int64)]
        self._sorted: dict[tuple[int, int], Ints] = {}

    def add(self, start: int, indices: Ints) -> None:
        """From the `start`-th number on, `indices` are missing too."""
        if start < self._starts[-1]:
            raise ArgumentError(f"skips must be given in the order in which they were made; {start} is too early")
        removed = np.union1d(self._removed[-1], indices)
        if removed.size >= self._n:
            raise ArgumentError(f"all {self._n:,} samples would be skipped")
        position = self.to_positions(np.array([start]))[0]
        self._starts = np.append(self._starts, start)
        self._positions = np.append(self._positions, position)
        self._removed.append(removed)

    def _missing(self, stage: int, epoch: int) -> Ints:
        """Places of what is missing in an epoch, sorted. A few epochs are remembered."""
        key = (stage, epoch)
        if key not in self._sorted:
            if len(self._sorted) > 16:
                self._sorted.clear()
            self._sorted[key] = np.sort(self._places(epoch, self._removed[stage]))
        return self._sorted[key]

    def _left_before(self, stage: int, position: int) -> int:
        """How many samples before a position a run would have that had been in this stage from the beginning."""
        epoch, place = divmod(position, self._n)
        gone = self._removed[stage].size * epoch + int(np.searchsorted(self._missing(stage, epoch), place))
        return position - gone

    def count_before(self, position: int) -> int:
        """How many samples come before a position."""
        stage = int(np.searchsorted(self._positions, position, side="right")) - 1
        begin = self._left_before(stage, int(self._positions[stage]))
        return int(self._starts[stage]) + self._left_before(stage, position) - begin

    def to_positions(self, numbers: Ints) -> Ints:
        """j → position."""
        if len(self._removed) == 1:
            return numbers
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
        """Position → j, −1 for those that are missing."""
        numbers = positions.copy()
        stages = np.searchsorted(self._positions, positions, side="right") - 1
        for row in np.flatnonzero(stages > 0):
            stage, position = int(stages[row]), int(positions[row])
            epoch, place = divmod(position, self._n)
            gone = place in self._missing(stage, epoch)
            numbers[row] = -1 if gone else self.count_before(position)
        return numbers
