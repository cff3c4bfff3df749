"""The sources of a stream, and which of them a row is drawn from: one source, or a mixture of several.

Every source of a mixture has L lanes. Row i of the run is packed by lane i mod L of the source that it is drawn from.
The shares of the mixture say which source sample k is drawn from; row i is sample i, but for this: the L samples of
a *round* are turned among its L rows, by a hash of the round. Otherwise shares such as `web code web code …` would
give all of web to lane 0 and all of code to lane 1, and half of the documents of each would never be read.

    L = 3     rows       0 1 2   3 4 5   6 7 8
              samples    2 0 1   3 4 5   7 8 6

So the counts of sources are those of the shares at every multiple of L rows. With the default, L is the world size, and
that is every step. On another number of lanes, rounds begin anew where the one that was under way ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenfeed.errors import PlanMismatchError
from tokenfeed.plan.shares import Shares, Stage
from tokenfeed.plan.state import check_parts
from tokenfeed.text.streaming.documents import Documents
from tokenfeed.text.streaming.lanes import LaneCursor, LaneState, Position, SavedStream, files_of
from tokenfeed.text.streaming.packer import Packing
from tokenfeed.types import Ints

__all__ = ["StreamSources"]

_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class StreamSources:
    """Documents by the names of their sources, and the shares by which rows are drawn from them.

    Lanes of all sources are numbered together: lane l of source s is s·L + l.
    """

    def __init__(self, documents: Mapping[str, Documents], shares: Shares | None = None) -> None:
        """One source needs no shares. All sources have one tokenizer."""
        self.names = tuple(documents)
        self.documents = tuple(documents.values())
        self.shares = shares or Shares([Stage({name: 1.0}) for name in self.names[:1]], self.names[:1])

    @classmethod
    def of(cls, source: "Documents | StreamSources") -> "StreamSources":
        return source if isinstance(source, StreamSources) else cls({"": source})

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def is_mixed(self) -> bool:
        return self.names != ("",)

    @property
    def paths(self) -> list[str]:
        return [path for each in self.documents for path in each.paths]

    def check(self, num_lanes: int) -> None:
        """Raise where a lane would have nothing to read."""
        for each in self.documents:
            each.check(num_lanes)

    def draw(self, rows: Ints, position: Position) -> Ints:
        """The source of each row of the run, from a position on."""
        if not self.is_mixed:
            return np.zeros_like(rows)
        samples, limits = np.empty_like(rows), [*(start for start, _ in position.rounds[1:]), np.iinfo(np.int64).max]
        for (start, size), limit in zip(position.rounds, limits, strict=True):
            chosen = (rows >= start) & (rows < limit)
            places = (rows[chosen] - start) % size
            firsts = rows[chosen] - places
            samples[chosen] = firsts + (places + _turns(firsts, size)) % size
        return self.shares.at(samples)[0]

    def begin(self, num_rows: int, num_lanes: int) -> Position:
        """All lanes at the first document of each source."""
        lanes = {number: _fresh(number % num_lanes) for number in range(len(self) * num_lanes)}
        return Position(num_rows, num_lanes, lanes, self._rounds(Position(num_rows, num_lanes, {}), num_lanes))

    def deal(self, position: Position, num_lanes: int) -> Position:
        """Deal the remaining documents of each source out to another number of lanes: every document once."""
        lanes: dict[int, LaneState] = {}
        for source, documents in enumerate(self.documents):
            old = position.of_source(source)
            cursors = documents.deal(old, num_lanes) if old else map(_start, range(num_lanes))
            lanes |= {source * num_lanes + lane: _waiting(cursor) for lane, cursor in enumerate(cursors)}
        return Position(position.num_rows, num_lanes, lanes, self._rounds(position, num_lanes))

    def _rounds(self, position: Position, num_lanes: int) -> tuple[tuple[int, int], ...]:
        """Rounds as they are, to the end of the one under way; then those of another number of lanes."""
        if not self.is_mixed:
            return ()
        end = position.round_end
        before = [each for each in position.rounds if each[0] < end][-1:] if end > position.num_rows else []
        return (*before, (end, num_lanes))

    def parts(self, position: Position, packing: Packing) -> dict[str, Any]:
        """Everything that a state at a position depends on, in short."""
        if not self.is_mixed:
            return {**self.documents[0].parts(), "packing": packing.name}
        return {
            "sources": {name: each.parts() for name, each in zip(self.names, self.documents, strict=True)},
            "mixture": self.shares.digest(position.round_end),
            "packing": packing.name,
        }

    def save(self, position: Position, packing: Packing) -> dict[str, Any]:
        """The state of a stream that is at a position."""
        contents = {
            f"{name}/{file}" if name else file: digest
            for source, (name, documents) in enumerate(zip(self.names, self.documents, strict=True))
            for file, digest in documents.contents(
                files_of(position.of_source(source).values(), documents.num_files)
            ).items()
        }
        return SavedStream(position, self.parts(position, packing), contents).to_json()

    def accept(self, saved: SavedStream, packing: Packing) -> Position:
        """The position of a state, if it was made from these sources. Sources that came since begin at their start."""
        parts, position = dict(saved.plan), saved.position
        if ("sources" in parts) != self.is_mixed:
            kinds = ("one source", "a mixture")
            raise PlanMismatchError(
                f"the checkpoint is of a stream of {kinds['sources' in parts]}, and this is one of "
                f"{kinds[self.is_mixed]}. Resume with what it was made with, or start a new run"
            )
        if parts.pop("packing", None) != packing.name:
            check_parts(self.parts(position, packing), saved.plan)
        if not self.is_mixed:
            self.documents[0].accept(parts, saved.contents)
            return position
        theirs = dict(parts["sources"])
        if list(theirs) != list(self.names[: len(theirs)]):
            raise PlanMismatchError(
                f"the checkpoint was made from the sources {', '.join(theirs)}, and these are {', '.join(self.names)}. "
                "Name the same ones in the same order; new ones go last"
            )
        if self.shares.digest(position.round_end) != parts.get("mixture"):
            raise PlanMismatchError(
                f"the checkpoint drew its first {position.num_rows:,} rows with other weights. To change them, name "
                "those it was made with first: stages=[Stage({…}, samples=N), Stage({…})], where N is at "
                f"least {position.round_end:,} and a whole number of periods (10, 20, … for weights 0.7 and 0.3)"
            )
        for name, documents in zip(theirs, self.documents, strict=False):
            mine = {file[len(name) + 1 :]: digest for file, digest in saved.contents.items() if _is_of(file, name)}
            try:
                documents.accept(theirs[name], mine)
            except PlanMismatchError as error:
                raise PlanMismatchError(f"source {name!r}: {error}") from error
        added = range(len(theirs) * position.num_lanes, len(self) * position.num_lanes)
        return replace(
            position, lanes={**position.lanes, **{each: _fresh(each % position.num_lanes) for each in added}}
        )

    def owned(self, position: Position, lanes: Sequence[int]) -> Iterator[int]:
        """Numbers of these lanes of all sources."""
        return (source * position.num_lanes + lane for source in range(len(self)) for lane in lanes)

    def __repr__(self) -> str:
        if not self.is_mixed:
            return repr(self.documents[0])
        return ", ".join(f"{name}: {each!r}" for name, each in zip(self.names, self.documents, strict=True))


def _start(lane: int) -> LaneCursor:
    return LaneCursor(0, 0, 0, lane)


def _waiting(cursor: LaneCursor) -> LaneState:
    return LaneState(cursor, num_rows=0)


def _fresh(lane: int) -> LaneState:
    return _waiting(_start(lane))


def _is_of(file: str, name: str) -> bool:
    return file.rpartition("/")[0] == name


def _turns(firsts: Ints, size: int) -> Ints:
    """By how much the rounds that begin with these rows are turned."""
    mixed = firsts.astype(np.uint64)
    for multiplier in _MULTIPLIERS:
        mixed *= multiplier
        mixed ^= mixed >> np.uint64(32)
    turns: Ints = (mixed % np.uint64(size)).astype(np.int64)
    return turns
