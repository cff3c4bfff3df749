"""`View`: everything that a plan, a loader, a mask, a trace or the page asks of samples; and the rows a view reads."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Self

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.store.batch import HostBatch, Rows, Sample
from tokenfeed.store.data import ColumnSet, Data, new_bytes
from tokenfeed.store.reader import Location, Reader
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.store.spec import ViewSpec
from tokenfeed.types import Array, Bools, Bytes, Ints

__all__ = ["StoreRows", "View", "as_indices"]

_INT64 = np.dtype(np.int64)


class View(ABC):
    """Samples of a store, numbered 0, 1, 2, …: `len(view)`, `view[i]`, `view[-1]`, `view[10:20]`, `view.read(indices)`.

    A view pickles by its spec and the paths of its store.
    """

    length: int | None
    """Inputs in a row; None for documents, which have lengths of their own."""

    def __init__(self, data: Data, spec: ViewSpec) -> None:
        self.data = data.delivered_as(spec.dtype)
        """Content of the store."""
        self.spec = spec
        self.column_set = self.data.column_set([*spec.columns, *([] if spec.loss_mask is None else [spec.loss_mask])])
        """Columns that are read with every batch."""
        self._payloads_of = [self.data.spans[name].name for name in spec.spans]
        if spec.loss_mask is not None:
            mask = self.data.columns[spec.loss_mask]
            if mask.shape or mask.dtype.kind not in "biuf":
                raise ArgumentError(
                    f"loss_mask is {spec.loss_mask!r}, a column of {mask}; expected one number for each item"
                )

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, numbers: Ints) -> "StoreRows":
        """Samples by number, of which nothing is read yet."""

    @abstractmethod
    def lengths(self, indices: Ints) -> Ints:
        """Number of real items of each sample; no column is read."""

    @abstractmethod
    def announce(self, indices: Ints) -> None:
        """Begin to fetch what `read` will need from a server. Does not wait."""

    @abstractmethod
    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        """Samples with an item of any of these spans, sorted. They are numbered in `table`, or else in `span_table`."""

    @abstractmethod
    def _join(self, others: Sequence[Self], data: Data) -> "View": ...

    @abstractmethod
    def _locate(self, index: int) -> list[Location]: ...

    @property
    @abstractmethod
    def sample_bytes(self) -> int:
        """Bytes of columns in a sample, on average."""

    def __getitem__(self, index: int | slice) -> Any:
        """Sample `index`, or a batch of a slice of samples."""
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self)), dtype=np.int64))
        return Sample(self.read(np.array([self._in_range(index)])), 0)

    def _in_range(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise SampleIndexError(f"sample {index} is outside the view, which has {len(self):,} samples")
        return index % len(self)

    def read(self, indices: Sequence[int] | Array, *, allocate: Callable[[int], Bytes] = new_bytes) -> HostBatch:
        """Samples `indices` as a batch; the columns and payloads named in the spec are read now, without the GIL.

        `allocate(bytes)` gives one buffer for all columns.
        """
        rows = self.load(as_indices(indices), allocate)
        return HostBatch(rows, 0, len(rows))

    def load(self, numbers: Ints, allocate: Callable[[int], Bytes] = new_bytes) -> "StoreRows":
        """The rows of `read`, for whoever makes several batches of them."""
        rows = self.rows(numbers)
        rows.load(allocate)
        self._read_payloads(rows)
        return rows

    def _read_payloads(self, rows: "StoreRows") -> None:
        for table in self._payloads_of:
            rows.spans(table).read_payloads()

    def unread(self, indices: Sequence[int] | Array) -> HostBatch:
        """Samples as a batch of which every column and span is read when it is asked for."""
        rows = self.rows(as_indices(indices))
        return HostBatch(rows, 0, len(rows))

    def locate(self, index: int) -> list[Location]:
        """Which items of which shards a sample is made of."""
        return self._locate(self._in_range(index))

    def join(self, others: Sequence["View"]) -> "View":
        """The samples of this view, then those of the others, as one view that reads them by one call."""
        alike = [self]
        for number, other in enumerate(others, 1):
            ours, theirs = (
                (view.spec.sample, view.spec.loss_mask, view.spec.table, view.columns) for view in (self, other)
            )
            if not isinstance(other, type(self)) or ours != theirs:
                raise ArgumentError(
                    f"views 0 and {number} cannot be read together: {self.spec} of {', '.join(self.columns)}, and "
                    f"{other.spec} of {', '.join(other.columns)}"
                )
            alike.append(other)
        return self._join(alike[1:], Data.join([view.data for view in alike], self.columns))

    @property
    def reader(self) -> Reader:
        """Reader of the store's shards."""
        return self.data.reader

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read with every batch."""
        return self.column_set.names

    @property
    def tokenizer(self) -> str | None:
        """What made the tokens."""
        return self.data.tokenizer

    @property
    def mean_length(self) -> Fraction:
        """Mean number of real items in a sample."""
        if self.spec.kind == "windows":
            return Fraction(self.length or 0)
        return Fraction(self.data.num_items, max(1, len(self)))

    @property
    def identity(self) -> str:
        """Checksum of the data."""
        return self.data.identity

    @property
    def paths(self) -> list[str]:
        """Paths that the store was opened from. A hint for finding it again, never its identity."""
        return self.data.paths

    @property
    def span_table(self) -> SpanTable | None:
        """Table that documents are numbered in; None where the store has no such table."""
        return self.data.spans.get(self.spec.table)

    @property
    def documents_table(self) -> SpanTable:
        """As `span_table`, for callers that need one: a MissingError where there is none."""
        return self.data.spans[self.spec.table]

    def _locate_spans(self, numbers: Sequence[int] | Ints, table: str | None) -> tuple[Ints, Ints]:
        """First item and number of items of spans of a table, without the empty ones."""
        first_items, lengths = self.data.spans[table or self.spec.table].locate(as_indices(numbers))
        return first_items[lengths > 0], lengths[lengths > 0]

    def __reduce__(self) -> Any:
        if self.data.opening is None:
            raise ArgumentError(f"{self} joins several stores and cannot be pickled; pickle the views it was made of")
        return _open_again, (self.data.opening, self.spec)

    def __repr__(self) -> str:
        return f"View({len(self):,} samples of {self.spec}: {', '.join(self.columns) or 'payloads'})"


def _open_again(opening: Callable[[], Any], spec: ViewSpec) -> View:
    view: View = opening().view(spec)
    return view


class StoreRows(Rows):
    """Rows of a view. A column or span table that the spec does not name is read when it is asked for."""

    # Making rows is much of the time that a read holds the interpreter lock, so what most never need is not made.
    buffer: Bytes | None = None
    """Memory of the columns that were read together."""

    def __init__(self, view: View, indices: Ints) -> None:
        self.view = view
        self.length = view.length
        self.indices = indices
        self._arrays: dict[str, Array] = {}
        self._spans: dict[str, BatchSpans] = {}

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of a column of scalars."""

    @abstractmethod
    def read_into(self, columns: ColumnSet, buffer: Bytes) -> None:
        """Read the rows of `columns` into `buffer`."""

    @abstractmethod
    def _find_spans(self, table: SpanTable) -> BatchSpans: ...

    @property
    def extra(self) -> int:
        return 1

    @property
    def table(self) -> str:
        return self.view.spec.table

    @property
    def columns(self) -> tuple[str, ...]:
        return self.view.column_set.names

    @property
    def primary(self) -> str | None:
        return self.view.data.primary

    @property
    def tables(self) -> Sequence[str]:
        return list(self.view.data.spans)

    @property
    def offsets(self) -> Ints:
        rows, width = self.shape
        return np.arange(rows + 1) * width

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns that were read together."""
        return 0 if self.buffer is None else self.buffer.size

    def load(self, allocate: Callable[[int], Bytes]) -> None:
        """Read the columns of the view, all in one call, into memory of `allocate(bytes)`."""
        columns = self.view.column_set
        self.buffer = buffer = allocate(columns.buffer_bytes(math.prod(self.shape)))
        self.read_into(columns, buffer)

    def column(self, name: str) -> Array:
        array = self._arrays.get(name)
        if array is None:
            columns, buffer = self.view.column_set, self.buffer
            if buffer is None or name not in columns.names:
                columns = self.view.data.one_column(name)
                buffer = new_bytes(columns.buffer_bytes(math.prod(self.shape)))
                self.read_into(columns, buffer)
            array = self._arrays[name] = columns.array(name, self.shape, buffer)
        return array

    def spans(self, table: str) -> BatchSpans:
        if table not in self._spans:
            self._spans[table] = self._find_spans(self.view.data.spans[table])
        return self._spans[table]

    def loss_mask(self, start: int, stop: int) -> Bools | None:
        column = self.view.spec.loss_mask
        if column is None:
            return None
        learned: Bools = self.column(column)[start:stop, 1 : self.input_length(start, stop) + 1] != 0
        return learned


def as_indices(indices: Any) -> Ints:
    """Sample numbers as a contiguous int64 array; anything but whole numbers in one dimension is refused."""
    array = indices if type(indices) is np.ndarray else np.asarray(indices)
    if array.dtype == _INT64 and array.ndim == 1 and array.flags.carray:
        return array
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise ArgumentError(f"sample numbers must be whole numbers in one dimension, not {array.dtype} {array.shape}")
    if array.dtype == np.uint64 and array.size > 0 and array.max() > np.iinfo(np.int64).max:
        raise SampleIndexError(f"sample {array.max()} is outside any view")
    # A read-only array would be another type to Numba, and every kernel would be compiled once more.
    return np.require(array, np.int64, ["C", "W"])
