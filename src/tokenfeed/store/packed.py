"""`store.packed(length)`: whole documents packed into rows of equal width, by a plan that was made before."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.store.batch import Batch, Sample
from tokenfeed.store.data import Array, Bytes, ColumnSet, Data, as_indices, new_bytes
from tokenfeed.store.packing_plan import ALGORITHM, PackedRows, Pieces
from tokenfeed.store.reader import Ints, Location, Reader
from tokenfeed.store.spans import BatchSpans

__all__ = ["Packed", "PackedBatch"]


class Packed:
    """Sample i is row i of a packing plan: documents one behind the other, then zeros up to length + 1 items.

    Documents a b b b c c c c c d d, length 3:  row 0 = c c c c,  row 1 = b b b a,  row 2 = d d c ·
    """

    def __init__(
        self,
        data: Data,
        rows: PackedRows,
        *,
        table: str = "documents",
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
        loss_mask: str | None = None,
    ) -> None:
        self.length = rows.length
        self.rows = rows
        """What each sample is made of."""
        self._data = data
        self._table = data.spans[table]
        self._columns = data.column_set([*columns, *([] if loss_mask is None else [loss_mask])])
        self._spans = [data.spans[name].name for name in spans]
        self._loss_mask = loss_mask
        if loss_mask is not None and (
            data.columns[loss_mask].shape or data.columns[loss_mask].dtype.kind not in "biuf"
        ):
            raise ArgumentError(
                f"loss_mask is {loss_mask!r}, a column of {data.columns[loss_mask]}; expected one number for each item"
            )
        self.request = data.reader.request(self._columns.forms)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Packed({len(self):,} rows of {self.length} + 1 items: {', '.join(self._columns.names)})"

    def __getitem__(self, index: int) -> Sample:
        return self.read([index])[0]

    def read(self, indices: Sequence[int] | Array, *, allocate: Callable[[int], Bytes] = new_bytes) -> "PackedBatch":
        """Rows `indices` as a batch: two GIL-free calls, one that finds their pieces and one that reads them.

        `allocate(bytes)` gives the memory for all columns.
        """
        numbers = as_indices(indices)
        batch = PackedBatch(self, numbers, self.rows.find(numbers))
        batch.load(allocate)
        for table in self._spans:
            batch.spans_of(table).read_payloads()
        return batch

    def announce(self, indices: Ints) -> None:
        """Begin to fetch what `read` will need, as far as it lies elsewhere. Does not wait."""
        pieces = self.rows.find(indices)
        self.reader.announce(pieces.first_items, pieces.offsets, self.request)

    @property
    def reader(self) -> Reader:
        """What it reads by."""
        return self._data.reader

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read with every batch."""
        return self._columns.names

    def join(self, others: Sequence["Packed"]) -> "Packed":
        """The rows of this view, then those of the others, as one view."""
        for number, other in enumerate(others, 1):
            if (other.description, other.columns, other._loss_mask) != (
                self.description,
                self.columns,
                self._loss_mask,
            ):
                raise ArgumentError(f"views 0 and {number} cannot be read together: {self}, and {other}")
        return Packed(
            Data.join([view._data for view in (self, *others)], self.columns),
            self.rows.join([other.rows for other in others]),
            table=self._table.name,
            columns=self.columns,
            spans=self._spans,
            loss_mask=self._loss_mask,
        )

    @property
    def identity(self) -> str:
        """A checksum of the data."""
        return self._data.identity

    @property
    def description(self) -> str:
        """What one sample is."""
        table = "" if self._table.name == "documents" else f", {self._table.name!r}"
        return f"packed({self.length}{table}) by algorithm {ALGORITHM}"

    @property
    def sample_bytes(self) -> int:
        """How many bytes of columns a sample has."""
        return self._columns.buffer_bytes(self.length + 1)

    def samples_touching(self, documents: Sequence[int]) -> Ints:
        """The rows with an item of any of these documents, sorted. One pass over the plan: 0.1 s for a million rows."""
        first_items, lengths = self._table.locate(as_indices(documents))
        filled = lengths > 0
        order = np.argsort(first_items[filled])
        starts, stops = first_items[filled][order], (first_items + lengths)[filled][order]
        if starts.size == 0:
            return np.empty(0, np.int64)
        touching, first_row, first_item = [], 0, 0
        for plan in self.rows.plans:
            found, first_piece = [np.empty(0, np.int64)], 0
            for begins in plan.read_first_items():
                positions = first_item + begins
                nearest = np.searchsorted(starts, positions, side="right") - 1
                found.append(first_piece + np.flatnonzero((nearest >= 0) & (positions < stops[nearest])))
                first_piece += begins.size
            rows = np.searchsorted(plan.read_rows(), np.concatenate(found), side="right") - 1
            touching.append(first_row + np.unique(rows).astype(np.int64))
            first_row += plan.record.rows
            first_item += plan.record.items
        return np.concatenate(touching)

    def locate(self, index: int) -> list[Location]:
        """Which items of which shards row `index` is made of, piece by piece."""
        if not 0 <= index < len(self):
            raise SampleIndexError(f"row {index} is outside the view, which has {len(self):,} rows")
        pieces = self.rows.find(np.array([index]))
        stops = pieces.first_items + np.diff(pieces.offsets)
        bounds = zip(pieces.first_items.tolist(), stops.tolist(), strict=True)
        return [place for start, stop in bounds if start >= 0 for place in self._data.reader.locate(start, stop)]


class PackedBatch(Batch):
    """Rows of equal width. `inputs, targets = batch` is next-token prediction; `loss_mask` says where it can be."""

    extra = 1

    def __init__(self, view: Packed, indices: Ints, pieces: Pieces) -> None:
        super().__init__(indices, {})
        self.pieces = pieces
        """What each row is made of."""
        self._view = view

    @property
    def _data(self) -> Data:
        return self._view._data

    @property
    def _columns(self) -> ColumnSet:
        return self._view._columns

    @property
    def length(self) -> int:
        """Inputs in a row."""
        return self._view.length

    @property
    def shape(self) -> tuple[int, ...]:
        return self.indices.size, self._view.length + 1

    def _read(self, columns: ColumnSet, buffer: Bytes) -> None:
        reader = self._data.reader
        request = self._view.request if columns is self._columns else reader.request(columns.forms)
        reader.read_pieces(self.pieces.first_items, self.pieces.offsets, request, buffer)

    def _find_spans(self, table: str) -> BatchSpans:
        """Spans are found piece by piece, so one that reaches from a piece into the next is listed for both."""
        entries, first_items, offsets = self.pieces
        filled = self.pieces.filled
        counts = np.diff(offsets)[filled]
        found = self._data.spans[table].find(first_items[filled], np.concatenate(([0], np.cumsum(counts))))
        shifts = np.repeat(offsets[:-1][filled] % self.shape[1], np.diff(found.offsets))
        pieces_before = np.concatenate(([0], np.cumsum(filled)))[entries]
        return BatchSpans(
            found.table, found.offsets[pieces_before], found.numbers, found.starts + shifts, found.stops + shifts
        )

    def span_numbers(self, table: str) -> Ints:
        """For every item of every row, the number of the span of `table` that covers it; −1 for padding."""
        spans = self.spans_of(table)
        numbers = np.full(self.shape, -1, np.int64)
        numbers.reshape(-1)[self._is_item] = spans.span_numbers()
        return numbers

    @property
    def _is_item(self) -> npt.NDArray[np.bool_]:
        """Of all positions of all rows, which are not padding."""
        return np.repeat(self.pieces.filled, np.diff(self.pieces.offsets))

    def _place(self, row: int) -> Any:
        return row

    def _places(self, start: int, stop: int) -> slice:
        return slice(start, stop)

    def part(self, start: int, stop: int) -> "PackedBatch":
        pieces = self.pieces.part(start, stop)
        return PackedBatch(self._view, self.indices[start:stop], pieces)._share(self, start, stop)

    @property
    def primary(self) -> str | None:
        """The column that inputs and targets are taken from, if there is one."""
        return self._data.primary if self._data.has_primary else None

    @property
    def inputs(self) -> Array:
        """The first `length` items of each row of the primary column. A view, not a copy."""
        return self.column(self._data.primary)[:, :-1]

    @property
    def targets(self) -> Array:
        """The items that follow the inputs, one by one. A view, not a copy."""
        return self.column(self._data.primary)[:, 1:]

    @cached_property
    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """(rows, length): whether a target follows its input in the same document, and so can be predicted from it.

        A target is then never padding, nor the first item of a document or of the later part of a cut one; nor one for
        which the column that the view was told of (`loss_mask`) is 0.

            row a a b b b ·  →  inputs a a b b b,  targets a b b b ·,  mask 1 0 1 1 0
        """
        mask = self._is_item
        mask[self.pieces.offsets[1:] - 1] = False
        mask = mask.reshape(self.shape)[:, :-1]
        if self._view._loss_mask is None:
            return mask
        wanted: npt.NDArray[np.bool_] = self.column(self._view._loss_mask)[:, 1:] != 0
        return mask & wanted

    def __iter__(self) -> Iterator[Array]:
        yield self.inputs
        yield self.targets
