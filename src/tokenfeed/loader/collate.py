"""Documents of any length as arrays of one shape: `Loader(store.documents(), 32, collate=pad(multiple_of=64))`."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.shares import some
from tokenfeed.store.batch import HostBatch
from tokenfeed.types import Array, Bools, Ints

__all__ = ["SIDES", "Padded", "Pairs", "Truncate", "pad", "pairs", "run_collate"]

SIDES = "sides"
"""Span table of a store of pairs: two spans, "chosen" and "rejected", in every document."""
Truncate = Literal["end", "start", "error"]


def run_collate(collate: Callable[[HostBatch], Any], batch: HostBatch) -> Any:
    """What a collate function makes of a batch. An error of it gets a note, which says of which samples."""
    try:
        return collate(batch)
    except Exception as error:
        samples, numbers, names = batch.samples.tolist(), batch.indices.tolist(), batch.source_names
        rows = [f"{names[source]} {number}".lstrip() for source, number in zip(batch.sources, numbers, strict=True)]
        of_view = "" if numbers == samples else f": {some(rows, str)} of the view"  # rows of a stream are of no view
        error.add_note(f"in collate, of samples {some(samples)} of the run{of_view}")
        raise


class Padded(NamedTuple):
    """Documents as rows: `columns[name]` is (rows, width, …), and `mask` is False for padding."""

    columns: dict[str, Array]
    lengths: Ints
    mask: Bools


class Pairs(NamedTuple):
    """Preference pairs: row i of both is pair i, and both have one width."""

    chosen: Padded
    rejected: Padded


class _Padding(NamedTuple):
    multiple_of: int
    max_length: int | None
    truncate: Truncate
    value: int

    def check(self) -> None:
        is_known = self.truncate in ("end", "start", "error")
        if self.multiple_of < 1 or (self.max_length is not None and self.max_length < 1) or not is_known:
            raise ArgumentError(
                f"pad(multiple_of={self.multiple_of}, max_length={self.max_length}, truncate={self.truncate!r}) "
                "cannot be"
            )

    def kept(self, batch: HostBatch, lengths: Ints) -> Ints:
        """Number of items that are left of each."""
        if self.max_length is None:
            return lengths
        if self.truncate == "error" and (lengths > self.max_length).any():
            number = batch.indices[int(np.argmax(lengths))]
            raise ArgumentError(f"document {number} has {lengths.max():,} items; max_length is {self.max_length:,}")
        return np.minimum(lengths, self.max_length)

    def width(self, kept: Ints) -> int:
        return -(-int(kept.max(initial=0)) // self.multiple_of) * self.multiple_of

    def rows(self, batch: HostBatch, firsts: Ints, lengths: Ints, width: int) -> Padded:
        """Rows of items [firsts[i], firsts[i] + lengths[i]) of the batch. Only the primary column is filled with
        `value`, others with 0: padding is not learned."""
        kept = self.kept(batch, lengths)
        mask = np.arange(width) < kept[:, None]
        cut = lengths - kept if self.truncate == "start" else np.zeros_like(kept)
        # Item j of row i of the result is item firsts[i] + cut[i] + j of the batch.
        sources = ((firsts + cut)[:, None] + np.arange(width))[mask]
        columns = {}
        for name, column in batch.columns.items():
            fill = self.value if name == batch.rows.layout.primary else 0
            rows = np.full((len(batch), width, *column.shape[1:]), fill, column.dtype)
            rows[mask] = column[sources]
            columns[name] = rows
        return Padded(columns, kept, mask)


def pad(
    *, multiple_of: int = 1, max_length: int | None = None, truncate: Truncate = "end", value: int = 0
) -> Callable[[HostBatch], Padded]:
    """A collate function: rows as wide as the longest document of the batch, rounded up to a multiple.

    A document longer than `max_length` loses its end, or its start, or is an error. `value` fills what is left.
    """
    padding = _Padding(multiple_of, max_length, truncate, value)
    padding.check()

    def collate(batch: HostBatch) -> Padded:
        if batch.rows.layout.length is not None:
            raise ArgumentError("only documents are padded; windows have one length")
        lengths = batch.lengths
        return padding.rows(batch, batch.offsets[:-1], lengths, padding.width(padding.kept(batch, lengths)))

    return collate


def pairs(
    *, multiple_of: int = 1, max_length: int | None = None, truncate: Truncate = "end", value: int = 0
) -> Callable[[HostBatch], Pairs]:
    """A collate function for preference pairs, as `prepare(chat=…)` stores them: chosen and rejected side by side.

    The options are those of `pad`, for each side.
    """
    padding = _Padding(multiple_of, max_length, truncate, value)
    padding.check()

    def collate(batch: HostBatch) -> Pairs:
        if batch.rows.layout.length is not None or SIDES not in batch.spans:
            raise ArgumentError("pairs are documents of a store of preference pairs: Loader(store.documents(), …)")
        spans = batch.spans_of(SIDES)
        if (np.diff(spans.offsets) != 2).any():
            raise ArgumentError("a document of this batch has not two sides; was the store made by prepare(chat=…)?")
        firsts = np.repeat(batch.offsets[:-1], 2) + spans.starts
        lengths = spans.stops - spans.starts
        width = padding.width(padding.kept(batch, lengths))
        chosen, rejected = (padding.rows(batch, firsts[side::2], lengths[side::2], width) for side in (0, 1))
        return Pairs(chosen, rejected)

    return collate
