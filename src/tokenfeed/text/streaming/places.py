"""Where each lane reads: which row groups are whose, and how a lane goes on after a stop.

A lane passes over the row groups of all files in order and takes every L-th one, starting with its own number:

    files        0: 3 row groups      1: 4 row groups           sharding="global", L = 2
    lane 0       0,0       0,2        1,1       1,3             lane l takes l, l + L, … counted over all files
    lane 1            0,1        1,0       1,2                  ("per_file" starts with l in every file)

Nothing but the number of row groups of the files passed is needed, so files may still be arriving.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.plan.permutation import Permutation
from tokenfeed.types import Ints

__all__ = ["NO_DOCUMENTS", "GroupOrder", "InOrder", "Place", "Shuffled", "Stride", "deal"]

NO_DOCUMENTS: Ints = np.empty((0, 4), np.int64)
NO_DOCUMENTS.setflags(write=False)
_MOST_EPOCHS = 1000
"""Between two lanes of a state that is to be believed."""


class Files(Protocol):
    """What is asked of files: how many, and how many row groups each has."""

    def __len__(self) -> int: ...

    def has_group(self, file: int, group: int) -> bool: ...

    def num_groups(self, file: int) -> int: ...


@dataclass(frozen=True)
class Place:
    """Where a lane goes on: first documents, then row groups, then the order of row groups from `cursor` on."""

    epoch: int
    part: int
    """Of the order: a file, as a rule."""
    group: int
    skip: int
    """Row groups from `group` on that belong to other lanes."""
    rest: tuple[tuple[int, int, int], ...] = ()
    """(file, row group, first row) of row groups that were begun, or dealt out."""
    pending: Ints = field(default_factory=lambda: NO_DOCUMENTS)
    """(file, row group, row, tokens done) of documents dealt out."""

    @property
    def cursor(self) -> tuple[int, int, int]:
        return self.epoch, self.part, self.group


class GroupOrder(Protocol):
    """The row groups of an epoch in the order in which lanes pass over them, in parts of a known number."""

    @property
    def num_parts(self) -> int: ...

    def num_groups(self, part: int) -> int: ...

    def has_group(self, part: int, group: int) -> bool: ...

    def locate(self, epoch: int, part: int, group: int) -> tuple[int, int]:
        """(file, row group) at a place of the order."""


class InOrder:
    """File after file, row group after row group."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.num_parts = len(files)

    def num_groups(self, part: int) -> int:
        return self._files.num_groups(part)

    def has_group(self, part: int, group: int) -> bool:
        return self._files.has_group(part, group)

    def locate(self, epoch: int, part: int, group: int) -> tuple[int, int]:
        return part, group


class Shuffled:
    """All row groups of all files in a new random order in every epoch. Every file must be there."""

    num_parts = 1

    def __init__(self, files: Files, seed: int) -> None:
        self._seed = seed
        self._starts = np.concatenate([[0], np.cumsum([files.num_groups(file) for file in range(len(files))])])

    def num_groups(self, part: int) -> int:
        return int(self._starts[-1])

    def has_group(self, part: int, group: int) -> bool:
        return group < int(self._starts[-1])

    def locate(self, epoch: int, part: int, group: int) -> tuple[int, int]:
        number = int(Permutation(int(self._starts[-1]), seed=self._seed, epoch=epoch)[group])
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        return file, number - int(self._starts[file])


class Stride:
    """Which row groups are whose, for a number of lanes."""

    def __init__(self, order: GroupOrder, num_lanes: int, *, per_file: bool = False) -> None:
        self._order = order
        self.num_lanes = num_lanes
        self._per_file = per_file

    def check(self) -> None:
        """Raise where a lane would never find a row group. Looks at no more files than it needs."""
        found = 0
        for part in range(self._order.num_parts):
            count = self._order.num_groups(part)
            found = max(found, count) if self._per_file else found + count
            if found >= self.num_lanes:
                return
        where = "the largest file has" if self._per_file else "there are"
        raise ArgumentError(
            f"{self.num_lanes} lanes, but {where} only {found} row groups: some lanes would have nothing to read. "
            "Use fewer lanes or ranks, or files with smaller row groups (of JSONL, 1,024 lines are one)"
        )

    def start(self, lane: int) -> Place:
        return Place(0, 0, 0, lane)

    def advance(self, place: Place, lane: int) -> tuple[tuple[int, int, int], Place]:
        """((epoch, part, group) of the next row group that the lane takes from the order, the place behind it)."""
        epoch, part, group = place.cursor
        skip = place.skip
        while not self._order.has_group(part, group + skip):
            skip = lane if self._per_file else group + skip - self._order.num_groups(part)
            part, group = part + 1, 0
            if part == self._order.num_parts:
                epoch, part, skip = epoch + 1, 0, lane
        group += skip
        behind = replace(place, epoch=epoch, part=part, group=group + 1, skip=self.num_lanes - 1)
        return (epoch, part, group), behind

    def take(self, place: Place, lane: int) -> Place:
        """The place after the lane has opened its next row group: that row group is the rest to be read."""
        (epoch, part, group), behind = self.advance(place, lane)
        return replace(behind, rest=((*self._order.locate(epoch, part, group), 0),))

    def take_all(self, place: Place, lane: int, cursor: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        """The row groups that the lane would take before `cursor`."""
        taken: list[tuple[int, int, int]] = []
        while True:
            (epoch, part, group), place = self.advance(place, lane)
            if (epoch, part, group) >= cursor:
                return taken
            taken.append((*self._order.locate(epoch, part, group), 0))


def deal(places: Sequence[Place], buffered: Sequence[Ints], old: Stride, new: Stride) -> list[Place]:
    """Deal what the old lanes had before them out to new ones: every remaining document once.

    The order beyond what any of the old lanes had reached is the new lanes' from their start; the row groups before
    that are dealt out one by one, and documents in runs, so that few row groups are read for them.
    """
    cursor = max(place.cursor for place in places)
    if cursor[0] - min(place.epoch for place in places) > _MOST_EPOCHS:
        raise StateError(f"one lane is more than {_MOST_EPOCHS:,} epochs ahead of another; the state is damaged")
    rest, documents = [], [NO_DOCUMENTS]
    for lane, place in enumerate(places):
        rest += [*place.rest, *old.take_all(place, lane, cursor)]
        documents += [buffered[lane], place.pending]
    waiting = np.concatenate(documents)
    waiting = waiting[np.lexsort(waiting.T[2::-1])]
    shares = np.array_split(waiting, new.num_lanes)
    rest.sort()
    return [
        Place(*cursor, skip=lane, rest=tuple(rest[lane :: new.num_lanes]), pending=shares[lane])
        for lane in range(new.num_lanes)
    ]
