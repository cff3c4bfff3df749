"""`Run`: what a run delivered, from its run file alone; the stores are needed only for the content of rows."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, StateError, quantity
from tokenfeed.plan.dealing import TokenCounts
from tokenfeed.plan.mixing import Sources
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.run_order import check_epochs
from tokenfeed.plan.skips import Where, check_where
from tokenfeed.runs.file import Start, read_starts
from tokenfeed.runs.legs import Leg, StepRow, find_legs
from tokenfeed.runs.origins import Origins, Stores
from tokenfeed.runs.sets import select
from tokenfeed.runs.tracing import RowTrace, Sightings, find_rows, trace_rows
from tokenfeed.store.view import Delivered, View

__all__ = ["Run"]


class Run(Delivered):
    """A run, from its run file: `trace` a step to the data, `find` a document, `place` a sample.

    `view.unseen(run)` and `view.seen(run)` are views of the samples that it has never, or ever, delivered.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._opened: dict[Any, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file again, which may have grown; what was opened stays open."""
        self.starts = read_starts(self.path)
        self._legs: list[Leg] | None = None

    @property
    def legs(self) -> list[Leg]:
        """The starts that no later one overrides at once, each with the steps that it has in the end."""
        return [leg for leg in self._find_legs(None) if not leg.rolled_back]

    def _find_legs(self, stores: Stores | None) -> list[Leg]:
        """All legs, those that were rolled back too; over other stores, found anew."""
        if stores is None and self._legs is not None:
            return self._legs
        legs = find_legs(self.starts, lambda start: TokenCounts(self._open(start, stores)))
        self._legs = legs if stores is None else self._legs
        return legs

    def plan(self, *, stores: Stores | None = None) -> Plan:
        """The plan of the run after its last start, with its amendments, over its data.

        `Loader(run.plan(), 32)` delivers it again, on any number of ranks. `stores` as for `trace`.
        """
        if not self.starts:
            raise ArgumentError(f"{self.path}: nothing was started")
        return self._open(self.starts[-1], stores)

    def _open(self, start: Start, stores: Stores | None) -> Plan:
        """The plan of a start, over its data."""
        origins = self._origins(start, stores)
        views = {key: origins.view(each.name) for each, key in start.plan.keyed_sources}
        limits = {key: each.max_epochs for each, key in start.plan.keyed_sources}
        return start.plan.over(Sources(views, limits, start.plan.by))

    def _origins(self, start: Start, stores: Stores | None) -> Origins:
        return Origins(start.plan, start.stores, stores, self._opened)

    @property
    def reached(self) -> int:
        """Number of samples that the run is known to have delivered; what comes later is planned."""
        return self.legs[-1].reached if self.legs else 0

    def leg_of(self, step: int, *, stores: Stores | None = None) -> Leg:
        """The leg that a step belongs to."""
        for leg in reversed(self._find_legs(stores)):
            if leg.first_step <= step and not leg.rolled_back:
                return leg
        raise ArgumentError(f"{self.path} has no step {step}")

    def samples(self, step: int, *, rank: int | None = None, stores: Stores | None = None) -> list[int]:
        """The samples of the run that a step delivers: of one rank row by row, or of all ranks in order.

        `stores` as for `trace`: under a token budget, or balanced, they follow from lengths.
        """
        return self._samples(self.leg_of(step, stores=stores), step, rank)

    def _samples(self, leg: Leg, step: int, rank: int | None) -> list[int]:
        samples, stop = leg.samples(step, rank), leg.start.stop
        if not samples.size and stop is not None and leg.begin(step) >= stop:
            raise ArgumentError(f"{self.path} has no step {step}: the run ended after {quantity(stop, 'sample')}")
        found: list[int] = samples.tolist()
        return found

    def select(self, view: View, *, step: int | None, source: str | None, seen: bool) -> View:
        """What `view.seen` and `view.unseen` give. Steps that were run several times count as they were run last."""
        if not self.legs:
            raise StateError(f"{self.path} tells of no start: nothing was delivered, as far as it goes")
        leg, reached = self.legs[-1], self.reached
        if step is not None:
            leg = self.leg_of(step)
            end, stop = leg.begin(step), leg.start.stop
            end = end if stop is None else min(end, stop)
            if end > leg.reached:
                raise ArgumentError(
                    f"step {step} begins after {quantity(end, 'sample')}, and the run is known to have delivered "
                    f"{leg.reached:,}: what comes later was not seen. Give an earlier step, or none for all of it"
                )
            reached = end
        left_out = [
            (before.stop, after.start.samples)
            for before, after in pairwise(self.legs)
            if before.stop is not None and before.stop < after.start.samples
        ]
        return select(view, leg.start.plan, reached, left_out, source, seen=seen)

    def trace(
        self,
        step: int,
        *,
        rank: int | None = None,
        part: slice = slice(None),
        stores: Stores | None = None,
        rolled_back: bool = False,
    ) -> list[RowTrace]:
        """Where the rows of a step come from: of one rank row by row, or of all ranks in the order of the run.

        `part` is which of these rows. Rows that the run is not known to have delivered have `planned` set.

        A step that was run several times is told as it was run last. With `rolled_back` it is told as it was run the
        other times, before the run went back to an earlier checkpoint: as far as the run file knows, oldest first, and
        with `rolled_back` set in every row. Both together are what was delivered.

        Samples, epochs and indices follow from the run file; under a token budget, and where ranks were balanced, from
        the lengths in the stores too, of the samples since the last note before the step. Shards, documents and
        payloads are looked up in the stores when they are asked for: where they were when the run began, or where
        `stores` says, by the name of the source, or without a name for a run over one view. A store that is not what
        the run was over is an error.
        """
        if not rolled_back:
            leg = self.leg_of(step, stores=stores)
            return trace_rows(self._origins(leg.start, stores), leg, self._samples(leg, step, rank)[part])
        legs = [leg for leg in self._find_legs(stores) if leg.rolled_back and leg.first_step <= step]
        return [
            row
            for leg in legs
            if rank is None or rank < leg.start.world_size
            for row in trace_rows(self._origins(leg.start, stores), leg, leg.samples(step, rank).tolist())
        ][part]

    def place(self, sample: int) -> StepRow:
        """The step, rank and row of sample k, the inverse of `samples`. O(starts); under a token budget, a
        walk from the last note before it.

        A sample that was delivered again, after a return to an earlier checkpoint, is where it came last.
        """
        numbers = np.array([sample])
        for leg in reversed(self.legs):
            if leg.holds(numbers)[0]:
                return StepRow(*(int(each[0]) for each in leg.place(numbers)))
        raise ArgumentError(f"{self.path} has no sample {sample}: {self._tell_range()}")

    def __repr__(self) -> str:
        plan = f", {self.starts[-1].plan}" if self.starts else ""
        return (
            f"Run({str(self.path)!r}: {quantity(len(self.starts), 'start')}, {self.reached:,} samples delivered{plan})"
        )

    def _tell_range(self) -> str:
        if not self.legs:
            return "nothing was started"
        stop = self.legs[-1].stop
        end = "has no end" if stop is None else f"ends with sample {stop - 1:,}"
        return f"it begins with sample {self.legs[0].start.samples:,} and {end}"

    def find(
        self,
        document: int | None = None,
        *,
        source: str | None = None,
        epochs: Sequence[int] = range(1),
        where: Where | None = None,
        stores: Stores | None = None,
    ) -> Sightings:
        """Every row, in the order of the steps, that delivers a document in some epochs (of its source).

        The document is named by its number in the store; or by its payload, `where={"url": "…"}` or a function of the
        payload, which reads all payloads of the `source`, or of all sources. Otherwise the cost is that of the rows
        found. `stores` as for `trace`.

        Those that the run is not known to have delivered have `planned` set, those of steps that were run again after a
        return to an earlier checkpoint `rolled_back`, and those whose loss leaves the document out `masked`. Where
        there are none, `.why` tells the reason.
        """
        if (document is None) == (where is None):
            raise ArgumentError("which document? Give its number, or where=… to find it by its payload")
        if where is not None:
            check_where(where)
        check_epochs(epochs)
        by_plan: dict[int, list[Leg]] = {}
        for leg in self._find_legs(stores):
            by_plan.setdefault(id(leg.start.plan), []).append(leg)
        parts = [(self._origins(legs[0].start, stores), legs) for legs in by_plan.values()]
        return find_rows(parts, document, where, source, tuple(epochs))
