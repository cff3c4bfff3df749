"""The state of a stream: for every lane, where reading goes on, and which documents wait to be packed.

    {"kind": "stream", "version": 2, "samples": 6400, "plan": {…}, "files": {"3": "0f5e…"}, "num_lanes": 2,
     "lanes": {"0": {"cursor": [0, 3, 7, 1], "rest": [[3, 6, 128]], "pending": [], "documents": [3, 6, 17, 0, …], …}}}

Documents are references of four numbers each, so a state is small; resuming reads their text again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import StateError
from tokenfeed.plan.state import VERSION, check_kind
from tokenfeed.text.streaming.cursors import LaneCursor
from tokenfeed.types import Ints

__all__ = ["LaneState", "Position", "SavedStream", "is_nanochats"]

_MOST_LANES = 1 << 20


@dataclass(frozen=True)
class LaneState:
    """Where a lane goes on."""

    cursor: LaneCursor
    documents: Ints
    """(file, row group, row, tokens done) of the documents that wait, oldest first."""
    num_rows: int
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
    """Lanes that one rank owns, or all."""

    def files(self, num_files: int) -> set[int]:
        """Numbers of the files that its lanes refer to."""
        lanes = self.lanes.values()
        counted = [*(lane.documents for lane in lanes), *(lane.cursor.pending for lane in lanes)]
        begun = (group[0] for lane in lanes for group in lane.cursor.rest)
        return {file % num_files for file in {*np.concatenate(counted)[:, 0].tolist(), *begun}}

    def has_reached(self, end: LaneCursor | None) -> bool:
        """Whether nothing is left before a cursor; never where there is no end."""
        return end is not None and all(
            lane.cursor.reached >= end.reached
            and not (len(lane.documents) or len(lane.cursor.pending) or lane.cursor.rest)
            for lane in self.lanes.values()
        )


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
        missing = sorted(set(range(num_lanes)) - set(lanes))
        if missing:
            raise StateError(f"lanes {missing[:8]} of {num_lanes} are in none of these {len(value)} states")
        return cls(Position(num_rows, num_lanes, lanes), first.plan, contents)

    @classmethod
    def _from_one(cls, value: Any) -> "SavedStream":
        state = check_kind(value, "stream")
        try:
            num_rows, num_lanes = _whole([state["samples"], state["num_lanes"]])
            lanes = {int(number): LaneState.from_json(lane) for number, lane in state["lanes"].items()}
            if not 1 <= num_lanes <= _MOST_LANES or not all(0 <= number < num_lanes for number in lanes):
                raise ValueError(f"lanes {sorted(lanes)} of {num_lanes}")
            return cls(Position(num_rows, num_lanes, lanes), dict(state["plan"]), dict(state["files"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the state of the stream is damaged: {error!r}") from error


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
