"""Rows of a run, traced to the shards and documents in them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tokenfeed.plan.plan import Plan
from tokenfeed.plan.run_order import Trace
from tokenfeed.runs.data import RunData
from tokenfeed.runs.legs import Leg
from tokenfeed.store.batch import HostBatch, Sample
from tokenfeed.store.reader import Location
from tokenfeed.store.spans import Span
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["RowTrace", "RunRow", "are_masked", "trace_rows"]


@dataclass(frozen=True, slots=True)
class RunRow(Trace):
    """A row of a run: which sample it is, and which step, rank and start delivered it."""

    step: int
    rank: int
    row: int
    """Row in the batch of that rank; where a step has several batches, counted through all of them."""
    planned: bool
    """Whether the run is not known to have got there: it would deliver the row if it goes on."""
    rolled_back: bool
    """Whether the run went back to an earlier checkpoint after it, and ran the step again."""
    start: int
    """Number of the start that delivered it, in the order of the run file."""


class _SourceRows:
    """The rows of one step that come from one source: looked up together, when the first of them is asked for."""

    def __init__(self, data: RunData, source: str) -> None:
        self.plan = data.plan
        self.indices: list[int] = []
        self._data, self._source = data, source

    @cached_property
    def view(self) -> View:
        return self._data.view(self._source)

    @cached_property
    def batch(self) -> HostBatch:
        return self.view.unread(self.indices)


@dataclass(frozen=True, slots=True)
class RowTrace(RunRow):
    """Where a row comes from.

    Its content is looked up in the store on first use, for all rows of the step together: no tokens are read for
    `locations` and `documents`.
    """

    _rows: _SourceRows = field(repr=False, compare=False)
    _place: int = field(repr=False, compare=False)

    @property
    def view(self) -> View:
        """The view that it is a sample of: number `index`."""
        return self._rows.view

    @property
    def locations(self) -> list[Location]:
        """Which items of which shards it is made of."""
        return self._rows.view.locate(self.index)

    @property
    def tokenizer(self) -> str | None:
        """What made its tokens, as in `Store.tokenizer`."""
        return self._rows.view.tokenizer

    @property
    def documents(self) -> Sequence[Span]:
        """The documents in it: number, items [start, stop) of the row, and payload, which is decoded when asked for."""
        table = self._rows.view.span_table
        return [] if table is None else self._rows.batch.spans[table.name][self._place]

    @property
    def masked(self) -> list[int]:
        """Numbers of the documents in it that `loss_mask` leaves out of the loss."""
        numbers = np.array([each.number for each in self.documents], np.int64)
        found: list[int] = numbers[are_masked(self._rows.plan, self.source, self.sample, numbers)].tolist()
        return found

    @property
    def content(self) -> Sample:
        """The row itself, with its columns and spans; each is read when it is asked for."""
        return self._rows.batch[self._place]

    def to_json(self, most_documents: int | None = None) -> dict[str, Any]:
        """All of it but its content, as `tokenfeed trace --json` prints it; payloads as they are."""
        names = "rank", "row", "sample", "source", "epoch", "index", "planned", "rolled_back", "start"
        masked, documents = set(self.masked), self.documents
        shown = documents if most_documents is None else documents[:most_documents]
        return {
            **{name: getattr(self, name) for name in names},
            "locations": [location._asdict() for location in self.locations],
            "num_documents": len(documents),
            "documents": [
                {
                    "number": each.number,
                    "start": each.start,
                    "stop": each.stop,
                    "masked": each.number in masked,
                    "payload": each.payload,
                }
                for each in shown
            ],
        }


def trace_rows(data: RunData, leg: Leg, samples: Ints) -> list[RowTrace]:
    """Samples of the run that a leg delivers. O(1) each; nothing is opened."""
    by_source: dict[str, _SourceRows] = {}
    traced = []
    places = np.stack(leg.place(samples)).T.tolist()
    for trace, (step, rank, row) in zip(data.plan.trace(samples), places, strict=True):
        rows = by_source.setdefault(trace.source, _SourceRows(data, trace.source))
        rows.indices.append(trace.index)
        sample = trace.sample, trace.epoch, trace.index, trace.source
        state = trace.sample >= leg.reached, leg.rolled_back, leg.number
        traced.append(RowTrace(*sample, step, rank, row, *state, rows, len(rows.indices) - 1))
    return traced


def are_masked(plan: Plan, source: str, samples: Ints | int, documents: Ints) -> Bools:
    """Which documents are masked in samples of the run that come from a source."""
    masked = np.zeros(documents.shape, np.bool_)
    for begin, number, mask in plan.masks:
        if plan.sources[number].name == source:
            masked |= (samples >= begin) & np.isin(documents, mask.documents)
    return masked
