"""`store.windows(length)`: the store as one long array, cut into samples of equal length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.store.batch import Batch, Sample
from tokenfeed.store.data import Array, Bytes, ColumnSet, Data, as_indices, new_bytes
from tokenfeed.store.reader import Ints, Location
from tokenfeed.store.spans import BatchSpans

__all__ = ["WindowBatch", "Windows"]


class Windows:
    """Sample i is items [i·length, i·length + length + extra) of the store, across shards.

    Eight items, length 3, extra 1:  0 1 2 3 4 5 6 7  →  sample 0 = 0 1 2 3,  sample 1 = 3 4 5 6; len = 2
    """

    def __init__(
        self, data: Data, length: int, *, extra: int = 1, columns: Sequence[str] = (), spans: Sequence[str] = ()
    ) -> None:
        if length < 1 or extra < 0:
            raise ArgumentError(f"windows of length {length}, extra {extra}; they must be at least 1 and 0")
        self.length = length
        self.extra = extra
        self._data = data
        self._columns = data.column_set(columns)
        self._spans = [data.spans[table].name for table in spans]
        self._num_samples = max(0, (data.num_items - extra) // length)
        # What every read needs, looked up once: a read holds the interpreter lock for little more than a microsecond.
        self._reader = data.reader
        self._width = length + extra
        self._first_column = self._columns.names[0] if self._columns.names else ""
        self.request = self.request_for(self._columns)

    def request_for(self, columns: ColumnSet) -> Ints:
        """What the reading kernel must know to read windows of these columns."""
        return self._reader.request(
            columns.sizes, stride=self.length, num_items=self._width, num_samples=self._num_samples
        )

    def __len__(self) -> int:
        return self._num_samples

    def __repr__(self) -> str:
        return f"Windows({len(self):,} samples of {self.length} + {self.extra} items: {', '.join(self._columns.names)})"

    def __getitem__(self, index: int) -> Sample:
        return self.read([index])[0]

    def read(
        self,
        indices: Sequence[int] | Array,
        *,
        out: Array | Mapping[str, Array] | None = None,
        allocate: Callable[[int], Bytes] = new_bytes,
    ) -> "WindowBatch":
        """Samples `indices` as a batch; columns and spans named when the view was made are read now, without the GIL.

        `out` may give the memory: an array of shape (len(indices), length + extra, …) for the only column, or one for
        every column by name; C-contiguous and of the stored dtype. `batch.column(name)` is then that array. Or
        `allocate(bytes)` gives one buffer for all columns.
        """
        numbers = as_indices(indices)
        if out is None:
            batch = WindowBatch(self, numbers, {})
            batch.load(allocate)
        else:
            batch = WindowBatch(self, numbers, self._read_into(out, numbers))
        if self._spans:
            for table in self._spans:
                batch.spans_of(table).read_payloads()
        return batch

    def _read_into(self, out: Any, numbers: Ints) -> dict[str, Array]:
        """Read into the caller's arrays; one call where there is only one."""
        shape = (numbers.size, self._width)
        flat = self._columns.flat_out(out, shape)
        if flat is not None:
            self._reader.read_windows(numbers, self.request, flat)
            return {self._first_column: out}
        arrays = self._columns.check_out(out, shape)
        for name, array in arrays.items():
            request = self.request_for(self._data.one_column(name))
            self._reader.read_windows(numbers, request, array.reshape(-1).view(np.uint8))
        return arrays

    @property
    def identity(self) -> str:
        """A checksum of the data."""
        return self._data.identity

    @property
    def description(self) -> str:
        """What one sample is."""
        return f"windows({self.length})" if self.extra == 1 else f"windows({self.length}, extra={self.extra})"

    @property
    def sample_bytes(self) -> int:
        """How many bytes of columns a sample has."""
        return self._columns.buffer_bytes(self.length + self.extra)

    def samples_touching(self, documents: Sequence[int], *, table: str = "documents") -> Ints:
        """The samples with an item of any of these documents, sorted."""
        first_items, lengths = self._data.spans[table].locate(as_indices(documents))
        filled = lengths > 0
        # Sample i holds items [i·length, (i + 1)·length + extra).
        first = np.maximum(0, -(-(first_items[filled] - self.length - self.extra + 1) // self.length))
        last = np.minimum(len(self) - 1, (first_items + lengths - 1)[filled] // self.length)
        runs = [np.arange(begin, end + 1) for begin, end in zip(first, last, strict=True)]
        return np.unique(np.concatenate([np.empty(0, np.int64), *runs]))

    def locate(self, index: int) -> list[Location]:
        """Which items of which shards sample `index` is made of."""
        if not 0 <= index < len(self):
            raise SampleIndexError(f"sample {index} is outside the view, which has {len(self):,} samples")
        start = index * self.length
        return self._data.reader.locate(start, start + self.length + self.extra)


class WindowBatch(Batch):
    """Rows of equal length. `inputs, targets = batch` is next-token prediction."""

    def __init__(self, view: Windows, indices: Ints, arrays: dict[str, Array]) -> None:
        self.indices = indices  # as Batch does, without the call
        self._arrays = arrays
        self._view = view

    @property
    def _data(self) -> Data:
        return self._view._data

    @property
    def _columns(self) -> ColumnSet:
        return self._view._columns

    @property
    def length(self) -> int:
        return self._view.length

    @property
    def extra(self) -> int:
        return self._view.extra

    @property
    def shape(self) -> tuple[int, ...]:
        return self.indices.size, self._view.length + self._view.extra

    def _read(self, columns: ColumnSet, buffer: Bytes) -> None:
        view = self._view
        request = view.request if columns is self._columns else view.request_for(columns)
        self._data.reader.read_windows(self.indices, request, buffer)

    def _find_spans(self, table: str) -> BatchSpans:
        row_offsets = np.arange(0, (len(self) + 1) * self.shape[1], self.shape[1])
        return self._data.spans[table].find(self.indices * self.length, row_offsets)

    def _place(self, row: int) -> Any:
        return row

    def _places(self, start: int, stop: int) -> slice:
        return slice(start, stop)

    def part(self, start: int, stop: int) -> "WindowBatch":
        indices = self.indices[start:stop]
        return WindowBatch(self._view, indices, {})._share(self, start, stop)

    @property
    def primary(self) -> str | None:
        """The column that inputs and targets are taken from, if there is one."""
        return self._data.primary if self._data.has_primary else None

    @property
    def inputs(self) -> Array:
        """The first `length` items of each row of the primary column. A view, not a copy."""
        return self.column(self._data.primary)[:, : self.length]

    @property
    def targets(self) -> Array:
        """The items that follow the inputs, one by one. A view, not a copy."""
        if self.extra == 0:
            raise ArgumentError("windows(…, extra=0) have no targets; extra=1 reads the item that follows")
        return self.column(self._data.primary)[:, 1 : self.length + 1]

    def __iter__(self) -> Iterator[Array]:
        yield self.inputs
        yield self.targets
