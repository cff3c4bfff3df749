"""`store.documents()`: one span is one sample, however long."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import SampleIndexError
from tokenfeed.store.batch import Batch, Sample
from tokenfeed.store.data import Array, Bytes, ColumnSet, Data, as_indices, new_bytes
from tokenfeed.store.reader import Ints, Location, Reader
from tokenfeed.store.spans import BatchSpans

__all__ = ["Document", "DocumentBatch", "Documents"]

_MANY_ITEMS = 1 << 24
"""Before room is made for more than this, the last item of each is read: how many there are is only claimed."""


class Documents:
    """Sample i is the items that span i of a table covers, and its payload. Empty documents are samples too."""

    def __init__(
        self, data: Data, *, table: str = "documents", columns: Sequence[str] = (), spans: Sequence[str] = ()
    ) -> None:
        self._data = data
        self._table = data.spans[table]
        self._columns = data.column_set(columns)
        self._spans = [data.spans[name].name for name in spans]

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"Documents({len(self):,} of {self._table.name!r}: {', '.join(self._columns.names) or 'payloads'})"

    def __getitem__(self, index: int) -> "Document":
        return self.read([index])[0]

    def read(self, indices: Sequence[int] | Array, *, allocate: Callable[[int], Bytes] = new_bytes) -> "DocumentBatch":
        """Documents `indices` as a batch: two GIL-free calls, one that finds them and one that reads them.

        `allocate(bytes)` gives the memory for all columns.
        """
        numbers = as_indices(indices)
        first_items, lengths = self._table.locate(numbers)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        if offsets[-1] > _MANY_ITEMS:
            self._probe((first_items + lengths - 1)[lengths > 0])
        batch = DocumentBatch(self, numbers, first_items, offsets)
        batch.load(allocate)
        for table in self._spans:
            batch.spans_of(table).read_payloads()
        return batch

    def _probe(self, items: Ints) -> None:
        """Raise where an item is not there."""
        buffer = new_bytes(self._columns.buffer_bytes(items.size))
        self.reader.read_ragged(items, np.arange(items.size + 1), self.reader.request(self._columns.forms), buffer)

    def announce(self, indices: Ints) -> None:
        """Where documents lie must be read first, so nothing is known ahead of reading them."""

    @property
    def reader(self) -> Reader:
        """What it reads by."""
        return self._data.reader

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read with every batch."""
        return self._columns.names

    def join(self, others: Sequence["Documents"]) -> "Documents":
        """The documents of this view, then those of the others, as one view."""
        data = Data.join([view._data for view in (self, *others)], self.columns)
        return Documents(data, table=self._table.name, columns=self.columns, spans=self._spans)

    @property
    def identity(self) -> str:
        """A checksum of the data."""
        return self._data.identity

    @property
    def description(self) -> str:
        """What one sample is."""
        return f"documents({self._table.name!r})"

    @property
    def sample_bytes(self) -> int:
        """How many bytes of columns a document has, on average."""
        return self._columns.buffer_bytes(self._data.num_items) // max(1, len(self))

    def samples_touching(self, documents: Sequence[int]) -> Ints:
        """The documents themselves, if there are such."""
        numbers = as_indices(documents)
        self._table.locate(numbers)
        return np.unique(numbers)

    def locate(self, index: int) -> list[Location]:
        """Which items of which shard document `index` is made of; nothing for an empty one."""
        if not 0 <= index < len(self):
            raise SampleIndexError(f"document {index} is outside the view, which has {len(self):,} documents")
        first_items, lengths = self._table.locate(np.array([index]))
        return self._data.reader.locate(int(first_items[0]), int(first_items[0] + lengths[0]))


class DocumentBatch(Batch):
    """Documents one behind the other: document j is [offsets[j], offsets[j + 1]) of every column."""

    def __init__(self, view: Documents, indices: Ints, first_items: Ints, offsets: Ints) -> None:
        super().__init__(indices, {})
        self.offsets = offsets
        self._view = view
        self._table = view._table.name
        self._first_items = first_items

    @property
    def _data(self) -> Data:
        return self._view._data

    @property
    def _columns(self) -> ColumnSet:
        return self._view._columns

    @property
    def shape(self) -> tuple[int, ...]:
        return (int(self.offsets[-1]),)

    @property
    def lengths(self) -> Ints:
        """Items of each document."""
        return np.diff(self.offsets)

    def _read(self, columns: ColumnSet, buffer: Bytes) -> None:
        reader = self._data.reader
        reader.read_ragged(self._first_items, self.offsets, reader.request(columns.forms), buffer)

    def _find_spans(self, table: str) -> BatchSpans:
        spans = self._data.spans[table]
        if table != self._table:
            return spans.find(self._first_items, self.offsets)
        # A document's own span is known, and must not be looked up by items: it may have none.
        return BatchSpans(spans, np.arange(len(self) + 1), self.indices, np.zeros_like(self.indices), self.lengths)

    def _place(self, row: int) -> Any:
        return slice(self.offsets[row], self.offsets[row + 1])

    def _places(self, start: int, stop: int) -> slice:
        return slice(self.offsets[start], self.offsets[stop])

    def part(self, start: int, stop: int) -> "DocumentBatch":
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        indices, first_items = self.indices[start:stop], self._first_items[start:stop]
        return DocumentBatch(self._view, indices, first_items, offsets)._share(self, start, stop)

    @property
    def payloads(self) -> list[Any]:
        """What was written with each document, decoded now."""
        return [row[0].payload for row in self.spans_of(self._table)]

    def __getitem__(self, row: int) -> "Document":
        sample = super().__getitem__(row)
        return Document(self, sample._row)

    def __iter__(self) -> Iterator["Document"]:
        return (self[row] for row in range(len(self)))


class Document(Sample):
    """One document of a batch."""

    __slots__ = ()
    _batch: DocumentBatch

    @property
    def payload(self) -> Any:
        """What was written with it, decoded now; None where nothing was."""
        return self._batch.spans_of(self._batch._table)[self._row][0].payload
