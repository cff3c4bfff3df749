"""Rows of a step, traced to the shards and documents that they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tokenfeed.runs.origins import Origins
from tokenfeed.store.batch import HostBatch, Sample
from tokenfeed.store.reader import Location
from tokenfeed.store.spans import Span
from tokenfeed.store.view import View

__all__ = ["RowTrace", "trace_rows"]


class _SourceRows:
    """The rows of one step that come from one source: looked up together, when the first of them is asked for."""

    def __init__(self, origins: Origins, source: str) -> None:
        self._origins = origins
        self._source = source
        self.indices: list[int] = []

    @cached_property
    def view(self) -> View:
        return self._origins.view(self._source)

    @cached_property
    def batch(self) -> HostBatch:
        return self.view.unread(self.indices)

    def documents(self, place: int) -> Sequence[Span]:
        table = self.view.span_table
        if table is None:
            return []
        spans: Sequence[Span] = self.batch.spans[table.name][place]
        return spans


@dataclass(frozen=True, slots=True)
class RowTrace:
    """Where a row that was delivered comes from.

    Its content is looked up in the store on first use, for all rows of the step together: no tokens are read for
    `locations` and `documents`.
    """

    sample: int
    """k, its number in the run."""
    rank: int
    row: int
    """Row in the batch of that rank."""
    epoch: int
    """Epoch of its source."""
    index: int
    """Its number in the view of its source."""
    source: str
    """Name of its source; empty where the run is over one view."""
    _rows: _SourceRows = field(repr=False, compare=False)
    _place: int = field(repr=False, compare=False)

    @property
    def locations(self) -> list[Location]:
        """Which items of which shards it is made of."""
        return self._rows.view.locate(self.index)

    @property
    def documents(self) -> Sequence[Span]:
        """The documents in it: number, items [start, stop) of the row, and payload, which is decoded when asked for."""
        return self._rows.documents(self._place)

    @property
    def content(self) -> Sample:
        """The row itself, with its columns and spans; each is read when it is asked for."""
        return self._rows.batch[self._place]


def trace_rows(origins: Origins, samples: Sequence[int], ranks: Sequence[int], rows: Sequence[int]) -> list[RowTrace]:
    """Rows of one step by their numbers in the run. O(1) each; nothing is opened."""
    by_source: dict[str, _SourceRows] = {}
    traced = []
    for trace, rank, row in zip(origins.plan.trace(samples), ranks, rows, strict=True):
        together = by_source.setdefault(trace.source, _SourceRows(origins, trace.source))
        place = len(together.indices)
        together.indices.append(trace.index)
        traced.append(RowTrace(trace.sample, rank, row, trace.epoch, trace.index, trace.source, together, place))
    return traced
