"""The state of a stream: for every lane, where reading goes on, and which documents wait to be packed.

    {"version": 1, "rows": 6400, "lanes": 2, "plan": {…}, "files": {"3": "0f5e…"},
     "lane": {"0": {"cursor": [0, 3, 7, 1], "rest": [[3, 6, 128]], "pending": [], "documents": [3, 6, 17, 0, …], …}}}

Documents are references, four numbers each, so that a state is small; resuming reads their text again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import StateError
from tokenfeed.text.streaming.places import Place
from tokenfeed.types import Ints

__all__ = ["LaneState", "StreamState"]

VERSION = 1
_MOST_LANES = 1 << 20


@dataclass(frozen=True)
class LaneState:
    place: Place
    documents: Ints
    """(file, row group, row, tokens done) of the documents that wait, oldest first."""
    num_rows: int
    """That the lane has given."""

    def to_json(self) -> dict[str, Any]:
        place = self.place
        return {
            "cursor": [*place.cursor, place.skip],
            "rest": [list(group) for group in place.rest],
            "pending": place.pending.reshape(-1).tolist(),
            "documents": self.documents.reshape(-1).tolist(),
            "rows": self.num_rows,
        }

    @classmethod
    def from_json(cls, value: Any) -> "LaneState":
        epoch, part, group, skip = _whole(value["cursor"])
        rest = tuple((file, group, row) for file, group, row in map(_whole, value["rest"]))
        place = Place(epoch, part, group, skip, rest, _references(value["pending"]))
        (num_rows,) = _whole([value["rows"]])
        return cls(place, _references(value["documents"]), num_rows)

    def files(self) -> set[int]:
        """The files that it refers to."""
        return {
            *self.documents[:, 0].tolist(),
            *self.place.pending[:, 0].tolist(),
            *(one[0] for one in self.place.rest),
        }


@dataclass(frozen=True)
class StreamState:
    num_rows: int
    """Rows delivered, over all lanes."""
    num_lanes: int
    lanes: Mapping[int, LaneState]
    """Those that one rank owns, or all."""
    plan: Mapping[str, Any]
    contents: Mapping[str, str]
    """Checksums of the files that the lanes refer to."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "rows": self.num_rows,
            "lanes": self.num_lanes,
            "plan": dict(self.plan),
            "files": dict(self.contents),
            "lane": {str(number): lane.to_json() for number, lane in self.lanes.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "StreamState":
        """From one state, or from the list of all ranks' states."""
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return cls._merge([cls._from_one(one) for one in value])
        return cls._from_one(value)

    @classmethod
    def _from_one(cls, value: Any) -> "StreamState":
        if not isinstance(value, Mapping):
            raise StateError(f"the state of a stream is a dict (or a list of them), not {type(value).__name__}")
        if value.get("version") != VERSION:
            raise StateError(f"the state has version {value.get('version')!r}; this tokenfeed takes {VERSION}")
        if "samples" in value and "rows" not in value:
            raise StateError("this is the state of a Loader, over a store; a stream has another")
        try:
            num_rows, num_lanes = _whole([value["rows"], value["lanes"]])
            lanes = {int(number): LaneState.from_json(lane) for number, lane in value["lane"].items()}
            if not 1 <= num_lanes <= _MOST_LANES or not all(0 <= number < num_lanes for number in lanes):
                raise ValueError(f"lanes {sorted(lanes)} of {num_lanes}")
            return cls(num_rows, num_lanes, lanes, dict(value["plan"]), dict(value["files"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the state of the stream is damaged: {error!r}") from error

    @classmethod
    def _merge(cls, states: Sequence["StreamState"]) -> "StreamState":
        if not states:
            raise StateError("an empty list of states cannot be resumed")
        first = states[0]
        lanes: dict[int, LaneState] = {}
        contents: dict[str, str] = {}
        for state in states:
            if (state.num_rows, state.num_lanes, state.plan) != (first.num_rows, first.num_lanes, first.plan):
                raise StateError(
                    f"these are states of different moments or runs: {first.num_rows:,} rows of {first.num_lanes} "
                    f"lanes in one, {state.num_rows:,} of {state.num_lanes} in another"
                )
            lanes.update(state.lanes)
            contents.update(state.contents)
        missing = sorted(set(range(first.num_lanes)) - set(lanes))
        if missing:
            raise StateError(f"lanes {missing[:8]} of {first.num_lanes} are in none of these {len(states)} states")
        return cls(first.num_rows, first.num_lanes, lanes, first.plan, contents)


def _whole(numbers: Any) -> list[int]:
    if not isinstance(numbers, list | tuple) or not all(
        type(number) is int and 0 <= number < 1 << 62 for number in numbers
    ):
        raise ValueError(f"{str(numbers)[:80]} where whole numbers belong")
    return list(numbers)


def _references(numbers: Any) -> Ints:
    return np.array(_whole(numbers), np.int64).reshape(-1, 4)
