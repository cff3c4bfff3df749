"""`store.windows(length)`: the store as one long array, cut into samples of equal length."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import SampleIndexError
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.data import ColumnSet, Data, new_bytes
from tokenfeed.store.reader import Location
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.store.spec import WindowsSpec
from tokenfeed.store.view import StoreRows, View, as_indices
from tokenfeed.types import Array, Bytes, Ints

__all__ = ["Windows"]


class Windows(View):
    """Sample i is items [i·length, i·length + length + extra) of the store, across shards.

    Eight items, length 3, extra 1:  0 1 2 3 4 5 6 7  →  sample 0 = 0 1 2 3,  sample 1 = 3 4 5 6; len = 2

    With `group`, there are as many windows as fit whole groups of that many items, and the windows of a group stay
    together in every shuffle. A run over `windows(2048, group=8192)` can go on with `windows(8192, group=8192)`.

    Several stores may be joined; no window crosses from one to the next. Stores of 10 and 9 items, length 4: samples 0,
    1 begin at items 0, 4;  samples 2, 3 at items 10, 14.
    """

    spec: WindowsSpec
    length: int

    def __init__(self, data: Data, spec: WindowsSpec, *, part_items: Sequence[int] = ()) -> None:
        """`part_items` are the items of every store that was joined."""
        super().__init__(data, spec)
        counts = np.array(part_items or [data.num_items], np.int64)
        unit = spec.group or spec.length
        samples = np.maximum(0, (counts - spec.extra) // unit) * (unit // spec.length)
        self._first_samples = np.concatenate(([0], np.cumsum(samples)))
        self._part_items = np.concatenate(([0], np.cumsum(counts)))
        self._shifts: Ints | None = None
        """Item of sample i minus i·length, in every part; None for one part."""
        if counts.size > 1:
            self._shifts = self._part_items[:-1] - self._first_samples[:-1] * spec.length
        # What every read needs, looked up once: a read holds the interpreter lock for little more than a microsecond.
        self._num_samples = int(self._first_samples[-1])
        self._reader = self.data.reader
        self._stride = spec.length
        self._width = spec.length + spec.extra
        self.length = spec.length
        self._request = self._request_for(self.column_set)

    def _request_for(self, columns: ColumnSet) -> Any:
        """What the reading kernel must know to read windows of these columns."""
        return self._reader.request(
            columns.forms, stride=self._stride, num_items=self._width, num_samples=self._num_samples
        )

    def __len__(self) -> int:
        return self._num_samples

    @property
    def extra(self) -> int:
        """Number of items of a window after its inputs."""
        return self.spec.extra

    @property
    def width(self) -> int:
        """Number of items of a window."""
        return self._width

    def first_items(self, numbers: Ints) -> Ints:
        """First item of every sample, in the store."""
        if self._shifts is None:
            return numbers * self._stride
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self._num_samples):
            raise SampleIndexError(f"samples {numbers.min()} to {numbers.max()} are asked for; there are {len(self):,}")
        parts = np.searchsorted(self._first_samples, numbers, side="right") - 1
        return numbers * self._stride + self._shifts[parts]

    def read_rows(self, numbers: Ints, columns: ColumnSet, buffer: Bytes) -> None:
        """Read samples of some columns into a buffer."""
        request = self._request if columns is self.column_set else self._request_for(columns)
        if self._shifts is None:
            self._reader.read_windows(numbers, request, buffer)
        else:
            row_offsets = np.arange(numbers.size + 1) * self._width
            self._reader.read_ragged(self.first_items(numbers), row_offsets, request, buffer)

    def rows(self, numbers: Ints) -> "_WindowRows":
        return _WindowRows(self, numbers)

    def load(self, numbers: Ints, allocate: Callable[[int], Bytes] = new_bytes) -> "_WindowRows":
        # As View.load, with six calls fewer: 0.5 µs of the 13 that a mapped batch of 32 × 2,048 takes.
        rows = _WindowRows(self, numbers)
        rows.buffer = buffer = allocate(self.column_set.buffer_bytes(numbers.size * self._width))
        if self._shifts is None:
            self._reader.read_windows(numbers, self._request, buffer)
        else:
            self.read_rows(numbers, self.column_set, buffer)
        if self._payloads_of:
            self._read_payloads(rows)
        return rows

    def read(
        self,
        indices: Sequence[int] | Array,
        *,
        out: Array | Mapping[str, Array] | None = None,
        allocate: Callable[[int], Bytes] = new_bytes,
    ) -> HostBatch:
        """As `View.read`. `out` may give the memory: an array of shape (len(indices), length + extra, …) for the only
        column, or one for every column by name; C-contiguous, and of the dtype that batches have.
        """
        numbers = as_indices(indices)
        if out is None:
            return HostBatch(self.load(numbers, allocate), 0, numbers.size)
        rows = _WindowRows(self, numbers)
        rows.provide(self._read_into(out, numbers))
        self._read_payloads(rows)
        return HostBatch(rows, 0, numbers.size)

    def _read_into(self, out: Any, numbers: Ints) -> dict[str, Array]:
        """Read into the caller's arrays; one call where there is only one."""
        shape = (numbers.size, self._width)
        flat = self.column_set.flat_out(out, shape)
        if flat is not None:
            self.read_rows(numbers, self.column_set, flat)
            return {self.columns[0]: out}
        arrays = self.column_set.check_out(out, shape)
        for name, array in arrays.items():
            self.read_rows(numbers, self.data.one_column(name), array.reshape(-1).view(np.uint8))
        return arrays

    def lengths(self, indices: Ints) -> Ints:
        return np.full(indices.size, self._width, np.int64)

    def announce(self, indices: Ints) -> None:
        row_offsets = np.arange(indices.size + 1) * self._width
        self._reader.announce(self.first_items(indices), row_offsets, self._request)

    def _join(self, others: Sequence["Windows"], data: Data) -> "Windows":
        return Windows(data, self.spec, part_items=[view.data.num_items for view in (self, *others)])

    @property
    def sample_bytes(self) -> int:
        return self.column_set.buffer_bytes(self._width)

    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        first_items, counts = self._locate_spans(documents, table)
        found = [np.empty(0, np.int64)]
        for first, stop in zip(first_items, first_items + counts, strict=True):
            # A document lies in one part. Its sample i holds items [i·length, (i + 1)·length + extra) of the part.
            part = int(np.searchsorted(self._part_items, first, side="right")) - 1
            begin, end = first - self._part_items[part], stop - self._part_items[part]
            num_samples = self._first_samples[part + 1] - self._first_samples[part]
            low = max(0, -(-(begin - self._width + 1) // self._stride))
            high = min(num_samples - 1, (end - 1) // self._stride)
            found.append(np.arange(low, high + 1) + self._first_samples[part])
        return np.unique(np.concatenate(found))

    def _locate(self, index: int) -> list[Location]:
        start = int(self.first_items(np.array([index]))[0])
        return self._reader.locate(start, start + self._width)


class _WindowRows(StoreRows):
    """Rows of equal length."""

    view: Windows

    def __init__(self, view: Windows, indices: Ints) -> None:
        self.view = view  # as StoreRows does, without the call
        self.length = view.length
        self.indices = indices
        self._arrays = {}
        self._spans = {}

    @property
    def extra(self) -> int:
        return self.view.extra

    @property
    def shape(self) -> tuple[int, ...]:
        return self.indices.size, self.view.width

    def provide(self, arrays: dict[str, Array]) -> None:
        """Take arrays that columns were read into."""
        self._arrays = arrays

    def read_into(self, columns: ColumnSet, buffer: Bytes) -> None:
        self.view.read_rows(self.indices, columns, buffer)

    def _find_spans(self, table: SpanTable) -> BatchSpans:
        return table.find(self.view.first_items(self.indices), self.offsets)
