"""What reading gives: a batch of rows, and a `Sample` for each of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

from tokenfeed.errors import SampleIndexError
from tokenfeed.store.data import Array, Bytes, ColumnSet, Data, new_bytes
from tokenfeed.store.reader import Ints
from tokenfeed.store.spans import BatchSpans, RowSpans

__all__ = ["Batch", "Sample"]


class Batch(ABC):
    """Rows of columns, read into one buffer, and the spans they touch.

    A column or span table that the view was not told of is read when it is asked for.
    """

    # Making a batch is a good part of the time that a read holds the interpreter lock, so what most batches never need
    # is not made for each.
    _buffer: Bytes | None = None
    _spans: Mapping[str, BatchSpans] = MappingProxyType({})

    def __init__(self, indices: Ints, arrays: dict[str, Array]) -> None:
        """`arrays` are columns that have been read already."""
        self.indices = indices
        """The number of each row's sample in the view."""
        self._arrays = arrays

    @property
    @abstractmethod
    def _data(self) -> Data:
        """The store's content."""

    @property
    @abstractmethod
    def _columns(self) -> ColumnSet:
        """The columns that are read with the batch."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of a column of scalars."""

    @abstractmethod
    def _read(self, columns: ColumnSet, buffer: Bytes) -> None:
        """Read the rows of `columns` into `buffer`."""

    @abstractmethod
    def _find_spans(self, table: str) -> BatchSpans:
        """The spans of a table that the rows touch."""

    @abstractmethod
    def _place(self, row: int) -> Any:
        """What selects a row from a column."""

    @abstractmethod
    def _places(self, start: int, stop: int) -> slice:
        """What selects rows [start, stop) from a column."""

    def load(self, allocate: Callable[[int], Bytes]) -> None:
        """Read the columns of the view, all in one call, into memory of `allocate(bytes)`."""
        self._buffer = self._load(self._columns, allocate)

    def _load(self, columns: ColumnSet, allocate: Callable[[int], Bytes]) -> Bytes:
        buffer = allocate(columns.buffer_bytes(math.prod(self.shape)))
        self._read(columns, buffer)
        return buffer

    @abstractmethod
    def part(self, start: int, stop: int) -> Self:
        """Rows [start, stop) as a batch of their own, without a copy."""

    def _share(self, whole: "Batch", start: int, stop: int) -> Self:
        """Take over rows of what another batch has read already."""
        places = whole._places(start, stop)
        self._arrays.update((name, whole.column(name)[places]) for name in self._columns.names)
        self._spans = {table: spans.part(start, stop) for table, spans in whole._spans.items()}
        return self

    def __len__(self) -> int:
        return self.indices.size

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that are read with the batch."""
        return self._columns.names

    def column(self, name: str) -> Array:
        """The rows of one column, in the stored dtype unless the view was given another."""
        if name not in self._arrays:
            columns, buffer = self._columns, self._buffer
            if buffer is None or name not in columns.names:
                columns = self._data.one_column(name)
                buffer = self._load(columns, new_bytes)
            self._arrays[name] = columns.array(name, self.shape, buffer)
        return self._arrays[name]

    @property
    def tokens(self) -> Array:
        """The column of that name."""
        return self.column("tokens")

    @property
    def spans(self) -> Mapping[str, BatchSpans]:
        """The spans that the rows touch, by table."""
        return _SpansByTable(self)

    def spans_of(self, table: str) -> BatchSpans:
        if table not in self._spans:
            self._spans = {**self._spans, table: self._find_spans(table)}
        return self._spans[table]

    def span_numbers(self, table: str) -> Ints:
        """For every item of every row, the number of the span of `table` that covers it."""
        return self.spans_of(table).span_numbers().reshape(self.shape)

    def __getitem__(self, row: int) -> "Sample":
        if not -len(self) <= row < len(self):
            raise SampleIndexError(f"row {row} is outside the batch, which has {len(self)} rows")
        return Sample(self, row % len(self))

    def row_of(self, name: str, row: int) -> Array:
        array: Array = self.column(name)[self._place(row)]
        return array

    @property
    def tables(self) -> Mapping[str, Any]:
        return self._data.spans


class Sample:
    """One row of a batch."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: Batch, row: int) -> None:
        self._batch = batch
        self._row = row

    @property
    def index(self) -> int:
        """Its number in the view."""
        return int(self._batch.indices[self._row])

    def column(self, name: str) -> Array:
        """Its items in one column, in the stored dtype unless the view was given another."""
        return self._batch.row_of(name, self._row)

    @property
    def tokens(self) -> Array:
        """The column of that name."""
        return self.column("tokens")

    @property
    def spans(self) -> Mapping[str, RowSpans]:
        """The spans it touches, by table."""
        return _SpansByTable(self._batch, self._row)


class _SpansByTable(Mapping[str, Any]):
    """Span tables by name, looked up when they are asked for: those of a batch, or of one of its rows."""

    def __init__(self, batch: Batch, row: int | None = None) -> None:
        self._batch = batch
        self._row = row

    def __getitem__(self, table: str) -> Any:
        spans = self._batch.spans_of(table)
        return spans if self._row is None else spans[self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.tables)

    def __len__(self) -> int:
        return len(self._batch.tables)
