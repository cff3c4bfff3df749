"""Masks of documents on the rows of a batch: the samples are delivered, and `loss_mask` leaves the documents out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenfeed.plan.plan import Plan
from tokenfeed.store.rows import Rows
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["Masks"]


class _Mask(NamedTuple):
    at: int
    """First sample of the run that the mask applies to."""
    view: View
    """View of the source that the documents are of: other sources need have none."""
    first: int
    """Number of its first sample, where all sources are numbered one after the other."""
    samples: Ints
    """Samples of the view that touch the documents, sorted."""
    documents: Ints

    def targets(self, numbers: Ints) -> Bools:
        """(rows, length): which targets of samples of the view are in other documents."""
        rows = self.view.rows(numbers)
        length = rows.input_length(0, numbers.size)
        spans = rows.spans(self.view.spec.table).part(0, numbers.size, length=length)
        documents = spans.span_numbers(rows.offsets).reshape(numbers.size, -1)[:, 1 : length + 1]
        return ~np.isin(documents, self.documents)


class Masks:
    """Which targets of rows count, by the masks of a plan."""

    def __init__(self, plan: Plan, first_samples: Sequence[int] | Ints) -> None:
        """`first_samples` are the numbers of the first sample of each source."""
        self._masks = [
            _Mask(at, view, int(first_samples[source]), view.samples_touching(mask.documents), mask.documents)
            for at, source, mask in plan.masks
            for view in [plan.views[source]]
        ]

    def __call__(self, rows: Rows, samples: Ints, start: int, stop: int) -> Bools:
        """(rows, length) of rows [start, stop), which are samples of the run. In a sample that is a whole masked
        document, no target counts.

        Spans are looked up only of samples that touch a masked document.
        """
        counted = np.ones((stop - start, rows.input_length(start, stop)), np.bool_)
        for mask in self._masks:
            own = rows.own[start:stop] - mask.first
            touched = (samples[start:stop] >= mask.at) & np.isin(own, mask.samples)
            if not touched.any():
                continue
            if mask.view.length is None:
                counted[touched] = False
            else:
                counted[touched] &= mask.targets(own[touched])
        return counted
