"""Lanes: which row groups belong to which, where each reads, and the state from which they go on after a stop.

A lane is one independent stream of rows. It passes over the row groups of all files in order and takes every L-th one,
starting with its own number:

    files        0: 3 row groups      1: 4 row groups           sharding="global", L = 2
    lane 0       0,0       0,2        1,1       1,3             lane l takes l, l + L, … counted over all files
    lane 1            0,1        1,0       1,2                  ("per_file" starts with l in every file)

Nothing but the number of row groups of the files passed is needed, so files may still be arriving.

References count files on from epoch to epoch: with 10 files, file 23 is file 3 in epoch 2. A state is small, since
documents that wait are references of four numbers; resuming reads their text again.

    {"kind": "stream", "version": 2, "samples": 6400, "plan": {…}, "files": {"3": "0f5e…"}, "num_lanes": 2,
     "lanes": {"0": {"cursor": [0, 3, 7, 1], "rest": [[3, 6, 128]], "pending": [], "documents": [3, 6, 17, 0, …], …}}}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from tokenfeed.errors import ArgumentError, StateError, quantity
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.state import VERSION, check_kind
from tokenfeed.text.sources.portions import Group
from tokenfeed.types import Ints

__all__ = [
    "NO_DOCUMENTS",
    "GroupedTexts",
    "LaneCursor",
    "LaneState",
    "Position",
    "Restart",
    "SavedStream",
    "Stride",
    "check_whole",
    "deal",
    "files_of",
    "is_nanochats",
]

Restart = Literal["part", "epoch", "never"]

NO_DOCUMENTS: Ints = np.empty((0, 4), np.int64)
NO_DOCUMENTS.setflags(write=False)
_MOST_EPOCHS = 1000
"""Limit on the epochs between two lanes; a state with more is damaged."""
_MOST_LANES = 1 << 20


def check_whole(least: int = 1, **values: int | None) -> None:
    """Raise where an option is neither None nor a whole number that is large enough."""
    for name, value in values.items():
        if value is not None and (type(value) is not int or value < least):
            raise ArgumentError(f"{name} is {value!r}; it must be a whole number, at least {least}")


class GroupedTexts(Protocol):
    """Texts in row groups, in files."""

    @property
    def paths(self) -> Sequence[str]:
        """Names of the files, for messages."""

    def __len__(self) -> int: ...

    def has_group(self, file: int, group: int) -> bool: ...

    def num_groups(self, file: int) -> int: ...

    def read(self, file: int, group: int, start: int = 0) -> Group | None:
        """A row group from row `start` on; None where there is no such group."""


@dataclass(frozen=True)
class LaneCursor:
    """Where a lane goes on: first `pending` documents, then the `rest` of row groups, then new row groups in order."""

    epoch: int
    part: int
    """Part of the order: as a rule, a file."""
    group: int
    skip: int
    """Number of row groups from `group` on that belong to other lanes."""
    rest: tuple[tuple[int, int, int], ...] = ()
    """(file, row group, first row) of row groups that were begun, or dealt out."""
    pending: Ints = field(default_factory=lambda: NO_DOCUMENTS)
    """(file, row group, row, tokens done) of documents dealt out."""

    @property
    def reached(self) -> tuple[int, int, int]:
        """(epoch, part, group) of the first row group that this lane has not passed."""
        return self.epoch, self.part, self.group


class Stride:
    """The order in which lanes pass over the row groups of an epoch, in parts; and which of them are a lane's.

    Without a seed, a part is a file. With one, all row groups of all files are one part, in a new random order in every
    epoch; every file must be there.
    """

    def __init__(
        self, files: GroupedTexts, num_lanes: int, restart: Restart = "epoch", seed: int | None = None
    ) -> None:
        """Lanes begin to count again in every part of the order, in every epoch, or never."""
        self.num_lanes = num_lanes
        self._files = files
        self._restart = restart
        self._seed = seed
        self._num_parts = len(files) if seed is None else 1

    @cached_property
    def _starts(self) -> Ints:
        """Number of the first row group of every file, and the end."""
        return np.concatenate([[0], np.cumsum([self._files.num_groups(file) for file in range(len(self._files))])])

    def _num_groups(self, part: int) -> int:
        return self._files.num_groups(part) if self._seed is None else int(self._starts[-1])

    def _has_group(self, part: int, group: int) -> bool:
        return self._files.has_group(part, group) if self._seed is None else group < self._num_groups(part)

    def _locate(self, epoch: int, part: int, group: int) -> tuple[int, int, int]:
        """(file, row group, 0) of a group of a part."""
        if self._seed is not None:
            number = int(Permutation(self._num_groups(part), seed=self._seed, epoch=epoch)[group])
            part = int(np.searchsorted(self._starts, number, side="right")) - 1
            group = number - int(self._starts[part])
        return epoch * len(self._files) + part, group, 0

    def check(self) -> None:
        """Raise where a lane would never find a row group. Looks at no more files than it needs."""
        found = 0
        for part in range(self._num_parts):
            if self._has_group(part, self.num_lanes - 1):
                return
            count = self._num_groups(part)
            found = max(found, count) if self._restart == "part" else found + count
            if found >= self.num_lanes:
                return
        if not found:
            raise ArgumentError(f"there is nothing to read in {self._files}: no file has a row or a line")
        where = "the largest file has" if self._restart == "part" else "all files have"
        raise ArgumentError(
            f"{quantity(self.num_lanes, 'lane')}, but {where} only {quantity(found, 'row group')}: some lanes would "
            "have nothing to read. Use fewer lanes or ranks, or files with smaller row groups (1,024 lines of JSONL)"
        )

    def take(self, cursor: LaneCursor, lane: int) -> LaneCursor:
        """The cursor once the lane has opened its next row group: that row group is the rest to be read."""
        epoch, part, group = cursor.reached
        skip = cursor.skip
        while not self._has_group(part, group + skip):
            skip = lane if self._restart == "part" else group + skip - self._num_groups(part)
            part, group = part + 1, 0
            if part == self._num_parts:
                epoch, part = epoch + 1, 0
                skip = skip if self._restart == "never" else lane
        group += skip
        return LaneCursor(epoch, part, group + 1, self.num_lanes - 1, (self._locate(epoch, part, group),))

    def take_all(self, cursor: LaneCursor, lane: int, stop: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        """The row groups that the lane would take before (epoch, part, group)."""
        taken: list[tuple[int, int, int]] = []
        while True:
            cursor = self.take(cursor, lane)
            epoch, part, after = cursor.reached
            if (epoch, part, after - 1) >= stop:
                return taken
            taken += cursor.rest


@dataclass(frozen=True)
class LaneState:
    """Where a lane goes on."""

    cursor: LaneCursor
    documents: Ints = field(default_factory=lambda: NO_DOCUMENTS)
    """(file, row group, row, tokens done) of the documents that wait, oldest first."""
    num_rows: int = 0
    """Number of rows that the lane has given."""

    def to_json(self) -> dict[str, Any]:
        return {
            "cursor": [*self.cursor.reached, self.cursor.skip],
            "rest": [list(group) for group in self.cursor.rest],
            "pending": self.cursor.pending.reshape(-1).tolist(),
            "documents": self.documents.reshape(-1).tolist(),
            "samples": self.num_rows,
        }

    @classmethod
    def from_json(cls, value: Any) -> "LaneState":
        epoch, part, group, skip = _whole(value["cursor"])
        rest = tuple((file, group, row) for file, group, row in map(_whole, value["rest"]))
        pending, documents = (np.array(_whole(value[name]), np.int64) for name in ("pending", "documents"))
        cursor = LaneCursor(epoch, part, group, skip, rest, pending.reshape(-1, 4))
        return cls(cursor, documents.reshape(-1, 4), *_whole([value["samples"]]))


@dataclass(frozen=True)
class Position:
    """Where a stream is: rows delivered over all ranks, and lanes."""

    num_rows: int
    num_lanes: int
    lanes: Mapping[int, LaneState]
    """Lanes that one rank owns, or all. In a mixture, lane l of source s is s·num_lanes + l."""
    rounds: tuple[tuple[int, int], ...] = ()
    """(first row, number of rows) of the rounds of a mixture: those under way, and those that follow them."""

    @property
    def round_end(self) -> int:
        """Row at which the round under way ends: where the next one begins, if none is."""
        begun = [each for each in self.rounds if each[0] <= self.num_rows]
        if not begun:
            return self.num_rows
        start, size = begun[-1]
        return start + -(-(self.num_rows - start) // size) * size

    def of_source(self, source: int) -> dict[int, LaneState]:
        """The lanes of one source, by their numbers in it."""
        first = source * self.num_lanes
        return {number - first: lane for number, lane in self.lanes.items() if 0 <= number - first < self.num_lanes}

    def has_reached(self, end: LaneCursor | None) -> bool:
        """Whether nothing is left before a cursor; never where there is no end."""
        return end is not None and all(
            lane.cursor.reached >= end.reached
            and not (len(lane.documents) or len(lane.cursor.pending) or lane.cursor.rest)
            for lane in self.lanes.values()
        )


def files_of(lanes: Iterable[LaneState], num_files: int) -> set[int]:
    """Numbers of the files that lanes refer to."""
    lanes = list(lanes)
    counted = [NO_DOCUMENTS, *(lane.documents for lane in lanes), *(lane.cursor.pending for lane in lanes)]
    begun = (group[0] for lane in lanes for group in lane.cursor.rest)
    return {file % num_files for file in {*np.concatenate(counted)[:, 0].tolist(), *begun}}


@dataclass(frozen=True)
class SavedStream:
    """A state: a position, and what it is a position in."""

    position: Position
    plan: Mapping[str, Any]
    contents: Mapping[str, str]
    """Checksums of the files that the lanes refer to."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "stream",
            "version": VERSION,
            "samples": self.position.num_rows,
            "plan": dict(self.plan),
            "files": dict(self.contents),
            "num_lanes": self.position.num_lanes,
            **({"rounds": [list(each) for each in self.position.rounds]} if self.position.rounds else {}),
            "lanes": {str(number): lane.to_json() for number, lane in self.position.lanes.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "SavedStream":
        """One state, or the list of all ranks' states as one."""
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return cls._from_one(value)
        if not value:
            raise StateError("an empty list of states cannot be resumed")
        first, *others = map(cls._from_one, value)
        num_rows, num_lanes = first.position.num_rows, first.position.num_lanes
        num_sources = _num_sources(first.plan)
        lanes, contents = dict(first.position.lanes), dict(first.contents)
        for state in others:
            position = state.position
            if (position.num_rows, position.num_lanes, state.plan) != (num_rows, num_lanes, first.plan):
                raise StateError(
                    f"these are states of different moments or runs: {num_rows:,} rows of {num_lanes} lanes in one, "
                    f"{position.num_rows:,} of {position.num_lanes} in another"
                )
            lanes.update(position.lanes)
            contents.update(state.contents)
        missing = sorted(set(range(num_lanes * num_sources)) - set(lanes))
        if missing:
            raise StateError(f"lanes {missing[:8]} of {num_lanes} are in none of these {len(value)} states")
        return cls(replace(first.position, lanes=lanes), first.plan, contents)

    @classmethod
    def _from_one(cls, value: Any) -> "SavedStream":
        state = check_kind(value, "stream")
        try:
            num_rows, num_lanes = _whole([state["samples"], state["num_lanes"]])
            lanes = {int(number): LaneState.from_json(lane) for number, lane in state["lanes"].items()}
            plan = dict(state["plan"])
            last = num_lanes * _num_sources(plan)
            if not 1 <= num_lanes <= _MOST_LANES or not all(0 <= number < last for number in lanes):
                raise ValueError(f"lanes {sorted(lanes)} of {num_lanes}")
            rounds = tuple((start, size) for start, size in map(_whole, state.get("rounds", [])))
            if not all(0 < size <= _MOST_LANES for _, size in rounds) or bool(rounds) != ("sources" in plan):
                raise ValueError(f"rounds {str(rounds)[:80]}")
            if rounds and (list(rounds) != sorted(rounds) or rounds[0][0] > num_rows):
                raise ValueError(f"rounds {str(rounds)[:80]} at row {num_rows}")
            return cls(Position(num_rows, num_lanes, lanes, rounds), plan, dict(state["files"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the state of the stream is damaged: {error!r}") from error


def _num_sources(plan: Mapping[str, Any]) -> int:
    return len(dict(plan["sources"])) if "sources" in plan else 1


def deal(lanes: Mapping[int, LaneState], old: Stride, new: Stride) -> list[LaneCursor]:
    """Deal the remaining documents of the old lanes out to new ones: every document once.

    Beyond what any old lane had reached, the new lanes take row groups as from a start. The row groups before that are
    dealt out one by one, and waiting documents in runs, so that few row groups are read for them.
    """
    cursors = [lane.cursor for lane in lanes.values()]
    reached = max(cursor.reached for cursor in cursors)
    if reached[0] - min(cursor.epoch for cursor in cursors) > _MOST_EPOCHS:
        raise StateError(f"one lane is more than {_MOST_EPOCHS:,} epochs ahead of another; the state is damaged")
    rest, documents = [], [NO_DOCUMENTS]
    for number, lane in sorted(lanes.items()):
        rest += [*lane.cursor.rest, *old.take_all(lane.cursor, number, reached)]
        documents += [lane.documents, lane.cursor.pending]
    pending = np.concatenate(documents)
    pending = pending[np.lexsort(pending.T[2::-1])]
    shares = np.array_split(pending, new.num_lanes)
    rest.sort()
    return [
        LaneCursor(*reached, skip=lane, rest=tuple(rest[lane :: new.num_lanes]), pending=shares[lane])
        for lane in range(new.num_lanes)
    ]


def is_nanochats(state: Any) -> bool:
    """Whether a state is nanochat's `{"pq_idx", "rg_idx", "epoch"}`. With any other word in it, a state is refused."""
    if not isinstance(state, Mapping) or "pq_idx" not in state:
        return False
    others = sorted(str(name) for name in state if name not in ("pq_idx", "rg_idx", "epoch"))
    if others:
        raise StateError(
            f"the state has nanochat's pq_idx and also {', '.join(others[:8])}; give load_state_dict the state of the "
            "stream, or nanochat's alone"
        )
    return True


def _whole(numbers: Any) -> list[int]:
    if not isinstance(numbers, list | tuple) or not all(type(one) is int and 0 <= one < 1 << 62 for one in numbers):
        raise ValueError(f"{str(numbers)[:80]} where whole numbers belong")
    return list(numbers)
