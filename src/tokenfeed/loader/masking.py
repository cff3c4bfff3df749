"""Documents that must not be learned from: their samples are delivered, and `loss_mask` leaves them out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Skip
from tokenfeed.store.batch import Rows
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["Masks", "find_masks"]


class _Mask(NamedTuple):
    at: int
    """First sample of the run that the mask applies to."""
    indices: Ints
    """Samples that touch the documents, sorted; numbered through all sources."""
    documents: Ints
    """Documents, numbered through all sources."""


class Masks:
    """Which targets of a batch count. Threads may share it."""

    def __init__(self, masks: Sequence[_Mask], table: str) -> None:
        """`table` is the span table that documents are numbered in."""
        self._masks = list(masks)
        self._table = table

    def __call__(self, rows: Rows, samples: Ints, start: int, stop: int) -> Bools:
        """(rows, length): False where the target is in a masked document.

        Spans are looked up only where a sample touches a masked document.
        """
        length = rows.input_length(start, stop)
        mask = np.ones((stop - start, length), np.bool_)
        for at, indices, documents in self._masks:
            touched = (samples[start:stop] >= at) & np.isin(rows.indices[start:stop], indices)
            if touched.any():
                spans = rows.spans(self._table).part(start, stop, length=length)
                offsets = rows.offsets[start : stop + 1] - rows.offsets[start]
                targets = spans.span_numbers(offsets).reshape(stop - start, -1)[:, 1 : length + 1]
                mask[touched] &= ~np.isin(targets[touched], documents)
        return mask


def find_masks(plan: Plan, views: Sequence[View]) -> Masks | None:
    """The skips of a plan that mask; None where there is none. `views` are those of its sources."""
    masks = [_find(views, plan.source_number(skip.source), skip) for skip in plan.skips if skip.mask]
    return Masks(masks, views[0].spec.table) if masks else None


def _find(views: Sequence[View], number: int, skip: Skip) -> _Mask:
    view, earlier = views[number], views[:number]
    if view.length is None:
        raise ArgumentError(f"{skip}: samples of {view} are whole documents; skip them without mask=True")
    touched = view.samples_touching(skip.documents)
    if touched.size == 0:
        raise ArgumentError(f"{skip}: no sample touches these documents")
    first_index = sum(len(each) for each in earlier)
    first_document = sum(len(each.data.spans[each.spec.table]) for each in earlier)
    return _Mask(skip.at, first_index + touched, first_document + np.array(skip.documents))
