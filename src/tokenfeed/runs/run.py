"""`Run`: what a run delivered, from its run file alone; the stores are needed only for the content of rows."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, StateError, quantity
from tokenfeed.plan.amendment import Amendment
from tokenfeed.plan.dealing import TokenCounts
from tokenfeed.plan.masks import Where, check_where
from tokenfeed.plan.mixing import Sources
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.run_order import check_epochs
from tokenfeed.runs.data import RunData, Stores
from tokenfeed.runs.file import Start, read_starts
from tokenfeed.runs.find import Parts, Sightings, Wanted, count_epochs, find_rows
from tokenfeed.runs.legs import Leg, StepRow, find_legs
from tokenfeed.runs.sets import select
from tokenfeed.runs.trace import RowTrace, trace_rows
from tokenfeed.storage.address import local_file
from tokenfeed.store.view import Delivered, View

__all__ = ["Run"]


class Run(Delivered):
    """A run, from its run file: `trace` a step to the data, `find` a document, `place` a sample.

    `view.unseen(run)` and `view.seen(run)` are views of the samples that it has never, or ever, delivered.
    """

    def __init__(self, path: str | Path, *, stores: Stores | None = None) -> None:
        """`stores` say where the data is now: by the name of the source, or alone where there is one.

        By default it is where the run file says. A store that is not what the run was over is an error.
        """
        self.path = local_file(path)
        self._stores = stores
        self._opened: dict[Any, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file again, which may have grown; what was opened stays open."""
        self.starts = read_starts(self.path)
        legs = find_legs(self.starts, lambda start: TokenCounts(self._open(start)))
        self.legs = [leg for leg in legs if not leg.rolled_back]
        """The steps that count, by the start that ran them last; the last leg goes on into what is planned."""
        self.rolled_back = [leg for leg in legs if leg.rolled_back]
        """Steps that were run before the run went back to an earlier checkpoint, as far as the run file knows."""

    def plan(self) -> Plan:
        """The plan of the run after its last start, with its amendments, over its data: `Loader(run.plan(), 32)`
        delivers it again, on any number of ranks.
        """
        if not self.starts:
            raise ArgumentError(f"{self.path}: nothing was started")
        return self._open(self.starts[-1])

    def _open(self, start: Start) -> Plan:
        """The plan of a start, over its data."""
        data = self._data(start)
        views = {key: data.view(each.name) for each, key in start.plan.keyed_sources}
        limits = {key: each.max_epochs for each, key in start.plan.keyed_sources}
        return start.plan.over(Sources(views, limits, start.plan.by))

    def _data(self, start: Start) -> RunData:
        return RunData(start.plan, start.stores, self._stores, self._opened)

    @property
    def reached(self) -> int:
        """Number of samples that the run is known to have delivered; what comes later is planned."""
        return self.legs[-1].reached if self.legs else 0

    @property
    def end(self) -> int | None:
        """Number of samples after which the run ends; None without end."""
        return self.legs[-1].stop if self.legs else None

    def epochs(self, source: str | None = None) -> range:
        """The epochs of a source that the run has reached, with the one under way: those that `find` looks at."""
        plan = self.legs[-1].plan
        return range(count_epochs(self._find_parts(), plan.sources[plan.source_number(source)].name))

    @property
    def changes(self) -> list[tuple[int, Amendment]]:
        """(first step, what changed there) of all changes of the plan, as `estimate_step` has the steps."""
        return [(self.estimate_step(each.at), each) for each in self.starts[-1].plan.amendments] if self.starts else []

    def leg_of(self, step: int) -> Leg:
        """The leg that a step belongs to."""
        number = bisect_right(self.legs, step, key=lambda leg: leg.first_step)
        if not number:
            raise ArgumentError(f"{self.path} has no step {step}")
        return self.legs[number - 1]

    def samples(self, step: int, *, rank: int | None = None) -> list[int]:
        """The samples of the run that a step delivers: of one rank row by row, or of all ranks in order.

        Under a token budget, and for a rank of balanced ones, they follow from lengths: the data is opened.
        """
        leg = self.leg_of(step)
        samples, stop = leg.samples(step, rank), leg.start.stop
        if not samples.size and stop is not None and leg.begin(step) >= stop:
            raise ArgumentError(f"{self.path} has no step {step}: the run ended after {quantity(stop, 'sample')}")
        found: list[int] = samples.tolist()
        return found

    def place(self, sample: int) -> StepRow:
        """The step, rank and row of sample k, the inverse of `samples`. O(starts); under a token budget, a
        walk from the last note before it.

        A sample that was delivered again, after a return to an earlier checkpoint, is where it came last.
        """
        for leg in reversed(self.legs):
            if leg.first_sample <= sample and (leg.stop is None or sample < leg.stop):
                return StepRow(*(int(each[0]) for each in leg.place(np.array([sample]))))
        begins = f"begins with sample {self.legs[0].first_sample:,}" if self.legs else "has not begun"
        end = "has no end" if self.end is None else f"ends with sample {self.end - 1:,}"
        raise ArgumentError(f"{self.path} has no sample {sample}: it {begins} and {end}")

    def estimate_step(self, sample: int) -> int:
        """The step that delivers a sample, or would; under a token budget, as the notes of the run file have it."""
        number = max(1, bisect_right(self.legs, sample, key=lambda leg: leg.first_sample))
        leg = self.legs[number - 1]
        return leg.first_step if sample < leg.first_sample else leg.estimate_step(sample)

    def trace(
        self, step: int, *, rank: int | None = None, part: slice = slice(None), rolled_back: bool = False
    ) -> list[RowTrace]:
        """Where the rows of a step come from: of one rank row by row, or of all ranks in the order of the run.

        `part` is which of these rows. Rows that the run is not known to have delivered have `planned` set.

        A step that was run several times is told as it was run last. With `rolled_back` it is told as it was run the
        other times, before the run went back to an earlier checkpoint: as far as the run file knows, oldest first, and
        with `rolled_back` set in every row. Both together are what was delivered.

        Samples, epochs and indices follow from the run file, as `samples` says. Shards, documents and payloads are
        looked up in the stores when they are asked for.
        """
        if not rolled_back:
            leg, samples = self.leg_of(step), self.samples(step, rank=rank)
            return trace_rows(self._data(leg.start), leg, np.array(samples[part], np.int64))
        return [
            row
            for leg in self.rolled_back
            if leg.first_step <= step and (rank is None or rank < leg.start.world_size)
            for row in trace_rows(self._data(leg.start), leg, leg.samples(step, rank))
        ][part]

    def find(
        self,
        document: int | None = None,
        *,
        index: int | None = None,
        where: Where | None = None,
        source: str | None = None,
        epochs: Sequence[int] | None = None,
    ) -> Sightings:
        """Every row, in the order of the steps, that delivers a document.

        The document is named by its number in the store; or by its payload, `where={"url": "…"}` or a function of the
        payload, which reads all payloads of the `source`, or of all sources. `index` is a sample of the view instead.
        Otherwise the cost is that of the rows found.

        By default all epochs of the source that the run has reached are looked at, and the one under way to its end;
        `.not_looked_at` tells what is left.

        Rows that the run is not known to have delivered have `planned` set, those of steps that were run again after a
        return to an earlier checkpoint `rolled_back`, and those whose loss leaves the document out `masked`. Where
        there are none, `.why` tells the reason.
        """
        if [document, index, where].count(None) != 2:
            raise ArgumentError("which document? Give its number, or where=… to find it by its payload")
        if where is not None:
            check_where(where)
        if epochs is not None:
            check_epochs(epochs)
        parts = self._find_parts()
        if not parts:
            raise ArgumentError(f"{self.path}: nothing was started")
        return find_rows(parts, Wanted(document, index, where), source, epochs)

    def _find_parts(self) -> Parts:
        by_plan: dict[int, list[Leg]] = {}
        for leg in sorted([*self.legs, *self.rolled_back], key=lambda leg: leg.number):
            legs = by_plan.pop(id(leg.plan), [])  # so that the plan of the last leg comes last
            legs.append(leg)
            by_plan[id(leg.plan)] = legs
        return [(self._data(legs[0].start), legs) for legs in by_plan.values()]

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
            (before.stop, after.first_sample)
            for before, after in pairwise(self.legs)
            if before.stop is not None and before.stop < after.first_sample
        ]
        return select(view, leg.plan, reached, left_out, source, seen=seen)

    def __repr__(self) -> str:
        plan = f", {self.starts[-1].plan}" if self.starts else ""
        return (
            f"Run({str(self.path)!r}: {quantity(len(self.starts), 'start')}, {self.reached:,} samples delivered{plan})"
        )
