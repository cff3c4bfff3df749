"""`store.documents()`: one span is one sample, however long."""

from collections.abc import Sequence

import numpy as np

from tokenfeed.store.data import Data, new_bytes, offsets_of
from tokenfeed.store.numbers import as_indices
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.store.spec import DocumentsSpec
from tokenfeed.store.view import StoreRows, View
from tokenfeed.types import Array, Bools, Ints

__all__ = ["Documents"]

_MANY_ITEMS = 1 << 24
"""Above this size, the last item of each document is read before memory is allocated: span tables are untrusted."""


class Documents(View, opens=DocumentsSpec):
    """Sample i is the items that span i of a table covers, and its payload. Empty documents are samples too."""

    spec: DocumentsSpec

    def __init__(self, data: Data, spec: DocumentsSpec) -> None:
        super().__init__(data, spec, None)
        self.length = None
        self._table = data.spans[spec.table]
        self.width = -(-data.num_items // max(1, len(self)))

    def __len__(self) -> int:
        return len(self._table)

    def rows(self, numbers: Ints) -> "_DocumentRows":
        first_items, lengths = self._table.locate(numbers)
        rows = _DocumentRows(self, numbers, first_items, lengths)
        if rows.offsets[-1] > _MANY_ITEMS:
            items = np.unique((first_items + lengths - 1)[lengths > 0])
            buffer = new_bytes(self.column_set.buffer_bytes(items.size))
            self.reader.read_ragged(items, np.arange(items.size + 1), self.column_set.request, buffer)
        return rows

    def lengths(self, indices: Ints) -> Ints:
        return self._table.locate(as_indices(indices))[1]

    def announce(self, indices: Ints, *, block_bytes: int = 0) -> None:
        """Nothing is known ahead of reading: where documents lie must be read first."""

    def _join(self, others: Sequence["Documents"], data: Data) -> "Documents":
        return Documents(data, self.spec)

    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        if table not in (None, self.spec.table):
            starts, stops = self._locate_spans(documents, table)
            return np.unique(self._table.find(starts, offsets_of(stops - starts)).numbers)
        numbers = as_indices(documents)
        self._table.locate(numbers)  # raises where there is no such document
        return np.unique(numbers)


class _DocumentRows(StoreRows):
    """Documents, one after the other: document j is [offsets[j], offsets[j + 1]) of every column.

    Inputs and targets are padded with zeros to the longest document of the batch, and `loss_mask` leaves padding out.
    """

    def __init__(self, view: Documents, indices: Ints, first_items: Ints, lengths: Ints) -> None:
        super().__init__(view, indices)
        self._offsets = offsets_of(lengths)
        self._extents = first_items, self._offsets

    @property
    def shape(self) -> tuple[int, ...]:
        return (int(self._offsets[-1]),)

    @property
    def offsets(self) -> Ints:
        return self._offsets

    def input_length(self, start: int, stop: int) -> int:
        return max(0, int(self.lengths[start:stop].max(initial=0)) - 1)

    def _find_spans(self, table: SpanTable) -> BatchSpans:
        if table.name != self.layout.table:
            return super()._find_spans(table)
        # A document's own span is known, and must not be looked up by items: it may have none.
        return BatchSpans(table, np.arange(len(self) + 1), self.indices, np.zeros_like(self.indices), self.lengths)

    def places(self, start: int, stop: int) -> slice:
        return slice(self._offsets[start], self._offsets[stop])

    def loss_mask(self, start: int, stop: int) -> Bools:
        wanted = super().loss_mask(start, stop)
        return self._is_item(start, stop)[:, 1:] if wanted is None else wanted

    def _is_item(self, start: int, stop: int) -> Bools:
        return np.arange(self.input_length(start, stop) + 1) < self.lengths[start:stop, None]

    def num_targets(self, start: int, stop: int) -> Ints:
        learned = self.learned(start, stop)
        if learned is None:
            return np.maximum(self.lengths[start:stop] - 1, 0)
        offsets = self._offsets[start : stop + 1] - self._offsets[start]
        counted = learned != 0
        counted[offsets[:-1][np.diff(offsets) > 0]] = False  # the first item of a document is no target
        before: Ints = np.append(0, np.cumsum(counted))[offsets]
        return np.diff(before)

    def block(self, column: Array, start: int, stop: int) -> Array:
        return self.widen(column[self.places(start, stop)], start, stop)

    def widen(self, items: Array, start: int, stop: int) -> Array:
        is_item = self._is_item(start, stop)
        rows = np.zeros((*is_item.shape, *items.shape[1:]), items.dtype)
        rows[is_item] = items
        return rows
