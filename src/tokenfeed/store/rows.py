"""`Rows`: rows that one call read, columns and spans, whatever the view or the packer; and their `Layout`."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.store.spans import BatchSpans
from tokenfeed.types import Array, Bools, Ints

__all__ = ["Layout", "Rows"]


class Layout(NamedTuple):
    """What all rows of a view, or of a stream, have in common."""

    length: int | None
    """Inputs in a row; None where rows have lengths of their own."""
    extra: int
    """Number of items of a row after its inputs."""
    columns: tuple[str, ...]
    primary: str | None
    """Column that inputs and targets are taken from, if there is one."""
    table: str
    """Span table that documents are numbered in."""
    tables: tuple[str, ...]
    is_weighted: bool = False
    """Whether a column gives targets weights other than 0 and 1."""


class Rows(ABC):
    """Rows that one call read. Nothing here knows of a run; `Batch` adds that."""

    layout: Layout
    indices: Ints
    """Number of each row in the view that reads it; on the streaming road, in the run."""
    numbers: Ints | None = None
    """Number of each row in the view that it was asked of, where that is a subset of the one that reads it."""

    @property
    def own(self) -> Ints:
        """Number of each row in the view that it was asked of."""
        return self.indices if self.numbers is None else self.numbers

    def __len__(self) -> int:
        return self.indices.size

    @abstractmethod
    def column(self, name: str) -> Array:
        """All rows of one column; read now if it was not read before."""

    @abstractmethod
    def spans(self, table: str) -> BatchSpans:
        """Spans of a table that the rows touch; looked up on first use."""

    @property
    @abstractmethod
    def offsets(self) -> Ints:
        """Where each row begins in the items of all rows laid end to end, and the end."""

    @property
    def lengths(self) -> Ints:
        """Number of real items of each row: padding does not count."""
        return np.diff(self.offsets)

    def input_length(self, start: int, stop: int) -> int:
        """Inputs in each of rows [start, stop)."""
        assert self.layout.length is not None
        return self.layout.length

    def places(self, start: int, stop: int) -> slice:
        """Rows [start, stop) of a column."""
        return slice(start, stop)

    def learned(self, start: int, stop: int) -> Array | None:
        """Weight of each item of rows [start, stop) as a target, in the shape of a column, or whether it is one at all.

        None where no column says so.
        """
        return None

    def loss_mask(self, start: int, stop: int) -> Bools | None:
        """Which targets of rows [start, stop) count; None where all do."""
        learned = self._learned_targets(start, stop)
        return None if learned is None else learned != 0

    def loss_weights(self, start: int, stop: int) -> Array | None:
        """Weights of the targets of rows [start, stop), where `layout.is_weighted`; else None."""
        return self._learned_targets(start, stop) if self.layout.is_weighted else None

    def _learned_targets(self, start: int, stop: int) -> Array | None:
        learned = self.learned(start, stop)
        if learned is None:
            return None
        whole = self.widen(learned, start, stop)
        return whole[:, 1 : self.input_length(start, stop) + 1]

    def num_targets(self, start: int, stop: int) -> Ints:
        """Number of targets that count in each of rows [start, stop)."""
        if self.layout.primary is None or self.layout.extra == 0:
            return np.zeros(stop - start, np.int64)
        mask = self.loss_mask(start, stop)
        return np.full(stop - start, self.input_length(start, stop)) if mask is None else mask.sum(1)

    def inputs(self, start: int, stop: int) -> Array:
        """Inputs of rows [start, stop): a view of the primary column where rows have one length."""
        return self.block(self.primary(), start, stop)[:, : self.input_length(start, stop)]

    def targets(self, start: int, stop: int) -> Array:
        """Items that follow the inputs, one by one."""
        if self.layout.extra == 0:
            raise ArgumentError("windows(…, extra=0) have no targets; extra=1 reads the item after each window too")
        return self.block(self.primary(), start, stop)[:, 1 : self.input_length(start, stop) + 1]

    def block(self, column: Array, start: int, stop: int) -> Array:
        """Rows [start, stop) of a column; where they have lengths of their own, padded with zeros to the longest."""
        return column[start:stop]

    def widen(self, items: Array, start: int, stop: int) -> Array:
        """The items of rows [start, stop) as rows of one length."""
        return items

    def primary(self) -> Array:
        """The column that inputs and targets are taken from."""
        if self.layout.primary is None:
            raise ArgumentError(
                "a batch has inputs and targets if the store has one column, or one called 'tokens'; the columns are "
                f"{', '.join(self.layout.columns) or 'none'}: use batch.column(name)"
            )
        return self.column(self.layout.primary)
