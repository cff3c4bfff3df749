"""Documents that are not to be learned from: their samples are delivered, and `loss_mask` leaves them out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.mixing import Mixture
from tokenfeed.plan.skips import Skip
from tokenfeed.types import Ints

__all__ = ["Masks", "find_masks"]

TABLE = "documents"


class _Mask(NamedTuple):
    at: int
    """From this sample of the run on."""
    indices: Ints
    """The samples of the view that touch the documents, sorted."""
    documents: Ints


class Masks:
    """Which targets of a batch count. Threads may share it."""

    def __init__(self, masks: Sequence[_Mask]) -> None:
        self._masks = list(masks)

    def of(self, rows: Any, samples: Ints) -> npt.NDArray[np.bool_]:
        """(rows, length): False where the target is of a document that is masked. Spans are read only where one is."""
        mask = np.ones((len(rows), rows.length), np.bool_)
        for at, indices, documents in self._masks:
            touched = (samples >= at) & np.isin(rows.indices, indices)
            if touched.any():
                targets = rows.span_numbers(TABLE)[touched, 1 : rows.length + 1]
                mask[touched] &= ~np.isin(targets, documents)
        return mask


def find_masks(view: Any, skips: Sequence[Skip]) -> Masks | None:
    """Of these skips, those that mask; None where there is none."""
    masks = [_find(view, skip) for skip in skips if skip.mask]
    return Masks(masks) if masks else None


def _find(view: Any, skip: Skip) -> _Mask:
    """In the numbers of the view, or of all sources of a mixture one behind the other."""
    first_index = first_document = 0
    if isinstance(view, Mixture):
        if skip.source not in view.views:
            raise ArgumentError(f"{skip}: of which source? There are {', '.join(view.views)}")
        for name in view.schedule.names:
            if name == skip.source:
                break
            first_index += len(view.views[name])
            first_document += len(view.views[name]._data.spans[TABLE])
        view = view.views[skip.source]
    if not hasattr(view, "length"):
        raise ArgumentError(f"{skip}: samples of {view} are whole documents; skip them without mask=True")
    touched = view.samples_touching(skip.documents)
    if touched.size == 0:
        raise ArgumentError(f"{skip}: no sample touches these documents")
    return _Mask(skip.at, first_index + touched, first_document + np.array(skip.documents))
