"""`store.packed(length)`: whole documents packed into rows of equal width, by a plan that was made before."""

from collections.abc import Sequence

import numpy as np

from tokenfeed.store.data import Data
from tokenfeed.store.packing_plan import PIECES, ROWS, PackedPieces, Pieces, find_plan
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.store.spec import PackedSpec
from tokenfeed.store.view import StoreRows, View
from tokenfeed.types import Bools, Ints

__all__ = ["Packed"]


class Packed(View):
    """Sample i is row i of a packing plan: documents one after the other, then zeros up to length + 1 items.

    Documents a b b b c c c c c d d, length 3:  row 0 = c c c c,  row 1 = b b b a,  row 2 = d d c ·
    """

    spec: PackedSpec
    length: int

    def __init__(self, data: Data, spec: PackedSpec, plan: PackedPieces | None = None) -> None:
        """Without a plan, the one that `pack` made is looked up."""
        super().__init__(data, spec, spec.length)
        self.length = spec.length
        self.width = spec.length + 1
        self.plan = find_plan(data, spec) if plan is None else plan
        """What each row is made of."""

    def __len__(self) -> int:
        return len(self.plan)

    def rows(self, numbers: Ints) -> "_PackedRows":
        return _PackedRows(self, numbers, self.plan.find(numbers))

    def _join(self, others: Sequence["Packed"], data: Data) -> "Packed":
        plans = [plan for view in (self, *others) for plan in view.plan.plans]
        return Packed(data, self.spec, PackedPieces(plans, data.reader.options.backend))

    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        """As for every view. One pass over the plan: 0.1 s for a million rows."""
        first_items, lengths = self._locate_spans(documents, table)
        order = np.argsort(first_items)
        starts, stops = first_items[order], (first_items + lengths)[order]
        touching, first_row, first_item = [np.empty(0, np.int64)], 0, 0
        for plan in self.plan.plans if starts.size else ():
            found, first_piece = [np.empty(0, np.int64)], 0
            for pieces in plan.read(PIECES):
                begins = first_item + pieces["first_item"]
                last = np.searchsorted(starts, begins + pieces["length"]) - 1  # of the spans that begin before the end
                found.append(first_piece + np.flatnonzero((last >= 0) & (begins < stops[last])))
                first_piece += begins.size
            touched = np.concatenate(found)
            rows = sum(np.searchsorted(firsts, touched, side="right") for firsts in plan.read(ROWS)) - 1
            touching.append(first_row + np.unique(rows))
            first_row += plan.record.rows
            first_item += plan.record.items
        return np.concatenate(touching)


class _PackedRows(StoreRows):
    """Rows of equal width, each made of pieces of documents and padding."""

    view: Packed

    def __init__(self, view: Packed, indices: Ints, pieces: Pieces) -> None:
        super().__init__(view, indices)
        self._pieces = pieces

    @property
    def extents(self) -> tuple[Ints, Ints]:
        return self._pieces.first_items, self._pieces.offsets

    @property
    def lengths(self) -> Ints:
        sizes = np.where(self._pieces.filled, np.diff(self._pieces.offsets), 0)
        before = np.concatenate(([0], np.cumsum(sizes)))[self._pieces.entries]
        return np.diff(before)

    def _find_spans(self, table: SpanTable) -> BatchSpans:
        """Spans are found piece by piece, so one that reaches from a piece into the next is listed for both."""
        entries, first_items, offsets = self._pieces
        filled = self._pieces.filled
        counts = np.diff(offsets)[filled]
        found = table.find(first_items[filled], np.concatenate(([0], np.cumsum(counts))))
        shifts = np.repeat(offsets[:-1][filled] % self.view.width, np.diff(found.offsets))
        pieces_before = np.concatenate(([0], np.cumsum(filled)))[entries]
        return BatchSpans(
            table, found.offsets[pieces_before], found.numbers, found.starts + shifts, found.stops + shifts
        )

    def loss_mask(self, start: int, stop: int) -> Bools:
        """Whether a target follows its input in the same document, and so can be predicted from it.

        A target is then never padding, nor the first item of a document or of the later part of a cut one; nor an item
        for which the column `loss_mask` of the view is 0.

            row a a b b b ·  →  inputs a a b b b,  targets a b b b ·,  mask 1 0 1 1 0
        """
        pieces = self._pieces.part(start, stop)
        mask = np.repeat(pieces.filled, np.diff(pieces.offsets))
        mask[pieces.offsets[1:] - 1] = False
        mask = mask.reshape(stop - start, self.view.width)[:, :-1]
        wanted = super().loss_mask(start, stop)
        return mask if wanted is None else mask & wanted
