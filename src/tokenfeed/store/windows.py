"""`store.windows(length)`: the store as one long array, cut into samples of equal length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.store.batch import Batch, Sample
from tokenfeed.store.data import Array, Bytes, ColumnSet, Data, as_indices, new_bytes
from tokenfeed.store.reader import Ints, Location, Reader
from tokenfeed.store.spans import BatchSpans

__all__ = ["JoinedWindows", "WindowBatch", "Windows"]


class Windows:
    """Sample i is items [i·length, i·length + length + extra) of the store, across shards.

    Eight items, length 3, extra 1:  0 1 2 3 4 5 6 7  →  sample 0 = 0 1 2 3,  sample 1 = 3 4 5 6; len = 2

    With `group`, there are as many windows as fit whole groups of that many items, and those of a group stay together
    when a run is shuffled. A run over `windows(2048, group=8192)` can go on with `windows(8192, group=8192)`.
    """

    def __init__(
        self,
        data: Data,
        length: int,
        *,
        extra: int = 1,
        group: int | None = None,
        columns: Sequence[str] = (),
        spans: Sequence[str] = (),
    ) -> None:
        if length < 1 or extra < 0:
            raise ArgumentError(f"windows of length {length}, extra {extra}; they must be at least 1 and 0")
        if group is not None and (group < length or group % length):
            raise ArgumentError(f"a group of {group} items is no whole number of windows of {length}")
        self.length = length
        self.extra = extra
        self.group = group
        self._data = data
        self._columns = data.column_set(columns)
        self._spans = [data.spans[table].name for table in spans]
        unit = group or length
        self._num_samples = max(0, (data.num_items - extra) // unit) * (unit // length)
        # What every read needs, looked up once: a read holds the interpreter lock for little more than a microsecond.
        self._reader = data.reader
        self._width = length + extra
        self._first_column = self._columns.names[0] if self._columns.names else ""
        self._request = self._request_for(self._columns)

    def _request_for(self, columns: ColumnSet) -> Ints:
        """What the reading kernel must know to read windows of these columns."""
        return self._reader.request(
            columns.forms, stride=self.length, num_items=self._width, num_samples=self._num_samples
        )

    def first_items(self, numbers: Ints) -> Ints:
        """Where samples begin in the store."""
        return numbers * self.length

    def read_rows(self, numbers: Ints, columns: ColumnSet, buffer: Bytes) -> None:
        """Read samples of some columns into a buffer."""
        request = self._request if columns is self._columns else self._request_for(columns)
        self._reader.read_windows(numbers, request, buffer)

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
        every column by name; C-contiguous, and of the dtype that batches have. `batch.column(name)` is then that array.
        Or `allocate(bytes)` gives one buffer for all columns.
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

    def announce(self, indices: Ints) -> None:
        """Begin to fetch what `read` will need, as far as it lies elsewhere. Does not wait."""
        row_offsets = np.arange(indices.size + 1) * self._width
        self._reader.announce(self.first_items(indices), row_offsets, self._request)

    @property
    def reader(self) -> Reader:
        """What it reads by."""
        return self._reader

    def _read_into(self, out: Any, numbers: Ints) -> dict[str, Array]:
        """Read into the caller's arrays; one call where there is only one."""
        shape = (numbers.size, self._width)
        flat = self._columns.flat_out(out, shape)
        if flat is not None:
            self.read_rows(numbers, self._columns, flat)
            return {self._first_column: out}
        arrays = self._columns.check_out(out, shape)
        for name, array in arrays.items():
            self.read_rows(numbers, self._data.one_column(name), array.reshape(-1).view(np.uint8))
        return arrays

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read with every batch."""
        return self._columns.names

    def join(self, others: Sequence["Windows"]) -> "JoinedWindows":
        """The samples of this view, then those of the others, as one view. No window crosses from one to the next."""
        return JoinedWindows([self, *others])

    @property
    def identity(self) -> str:
        """A checksum of the data."""
        return self._data.identity

    @property
    def description(self) -> str:
        """What one sample is."""
        options = [] if self.extra == 1 else [f"extra={self.extra}"]
        options += [] if self.group is None else [f"group={self.group}"]
        return f"windows({', '.join([str(self.length), *options])})"

    @property
    def family(self) -> str | None:
        """What it has in common with windows of other lengths over the same groups."""
        extra = "" if self.extra == 1 else f", extra={self.extra}"
        return None if self.group is None else f"windows(group={self.group}{extra})"

    @property
    def samples_per_group(self) -> int:
        """How many samples stay together, whatever the shuffle."""
        return 1 if self.group is None else self.group // self.length

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


class JoinedWindows(Windows):
    """Windows of several stores, read by one call.

    Two stores of 10 and 9 items, length 4:  samples 0, 1 begin at items 0, 4;  samples 2, 3 at items 10, 14
    """

    def __init__(self, views: Sequence[Windows]) -> None:
        first = views[0]
        for number, view in enumerate(views):
            if (view.description, view.columns) != (first.description, first.columns):
                raise ArgumentError(
                    f"views 0 and {number} cannot be read together: {first.description} of {', '.join(first.columns)}, "
                    f"and {view.description} of {', '.join(view.columns)}"
                )
        data = Data.join([view._data for view in views], first.columns)
        super().__init__(
            data, first.length, extra=first.extra, group=first.group, columns=first.columns, spans=first._spans
        )
        self._first_samples = np.cumsum([0, *map(len, views)])
        self._num_samples = int(self._first_samples[-1])
        first_items = np.cumsum([0, *(view._data.num_items for view in views)])
        self._shifts: Ints = first_items[:-1] - self._first_samples[:-1] * first.length

    def first_items(self, numbers: Ints) -> Ints:
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise SampleIndexError(f"samples {numbers.min()} to {numbers.max()} are asked for; there are {len(self):,}")
        sources = np.searchsorted(self._first_samples, numbers, side="right") - 1
        return numbers * self.length + self._shifts[sources]

    def read_rows(self, numbers: Ints, columns: ColumnSet, buffer: Bytes) -> None:
        row_offsets = np.arange(numbers.size + 1) * self._width
        self._reader.read_ragged(self.first_items(numbers), row_offsets, self._request_for(columns), buffer)


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
        """Inputs in a row."""
        return self._view.length

    @property
    def extra(self) -> int:
        return self._view.extra

    @property
    def shape(self) -> tuple[int, ...]:
        return self.indices.size, self._view.length + self._view.extra

    def _read(self, columns: ColumnSet, buffer: Bytes) -> None:
        self._view.read_rows(self.indices, columns, buffer)

    def _find_spans(self, table: str) -> BatchSpans:
        row_offsets = np.arange(0, (len(self) + 1) * self.shape[1], self.shape[1])
        return self._data.spans[table].find(self._view.first_items(self.indices), row_offsets)

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
