"""`View`: everything that a plan, a loader, a mask, a trace or the page asks of samples; and the rows a view reads."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import zip_longest
from typing import Any, ClassVar, Self

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.store.batch import HostBatch, Sample
from tokenfeed.store.data import ColumnSet, Data, new_bytes
from tokenfeed.store.numbers import as_indices, outside
from tokenfeed.store.reader import Location
from tokenfeed.store.rows import Layout, Rows
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.store.spec import ViewSpec
from tokenfeed.types import Array, Bytes, Ints

__all__ = ["AS_DATASET", "TO_TORCH", "Delivered", "StoreRows", "View"]

AS_DATASET = (
    "Where torch wants a dataset: DataLoader(tokenfeed.torch.as_dataset(loader), batch_size=None); for a Trainer of "
    "transformers or TRL, take the one in tokenfeed.integrations"
)
"""What to do instead of giving a loader to torch as a dataset."""
TO_TORCH = (
    f"loader = tokenfeed.Loader(view, batch_size=32) shuffles, makes batches in threads and resumes. {AS_DATASET}"
)
"""What to do instead of giving a view to torch as a dataset."""


class View(ABC):
    """Samples of a store, numbered 0, 1, 2, …: `len(view)`, `view[i]`, `view[-1]`, `view[10:20]`, `view.read(indices)`.

    A view pickles by its spec and the paths of its store.
    """

    spec: ViewSpec
    length: int | None
    """Inputs in a row; None for documents, which have lengths of their own."""
    width: int
    """Items in a row; of documents, on average."""
    kinds: ClassVar[dict[type[ViewSpec], Callable[[Data, Any], "View"]]] = {}
    """View that opens each kind of spec."""

    def __init_subclass__(cls, *, opens: type[ViewSpec] | None = None) -> None:
        if opens is not None:
            View.kinds[opens] = cls

    def __init__(self, data: Data, spec: ViewSpec, length: int | None, *, extra: int = 1, **windows: int) -> None:
        """`windows` says what windows are, for a kernel that knows them by number."""
        self.data = data
        """Content of the store."""
        self.reader = data.reader
        self.tokenizer = data.tokenizer
        """A name for what made the tokens, as in `Store.tokenizer`; None where it was not recorded."""
        self.paths = data.paths
        """Paths that the store was opened from. A hint for finding it again, never its identity."""
        self._parts: tuple[View, ...] = ()
        self.spec = spec
        masks = {"loss_mask": spec.loss_mask, "loss_weights": spec.loss_weights}
        self.masks = {name: column for name, column in masks.items() if column is not None}
        """Columns that say which items are learned, and with which weights, by the options that name them."""
        always = data.columns if data.primary is None else (data.primary,)
        self._windows = windows
        self._chosen: dict[tuple[str, ...], ColumnSet] = {}
        self.column_set = self.choose((*always, *spec.columns, *self.masks.values()))
        self.columns = self.column_set.names
        """Names of the columns that are read with every batch."""
        for option, name in self.masks.items():
            column = data.columns[name]
            if column.shape or column.dtype.kind not in "biuf":
                raise ArgumentError(f"{option} is {name!r}, a column of {column}; expected one number for each item")
        if self.reader.blocks is not None and self.columns:
            table = data.spans.get(spec.table)  # packed rows are made of spans
            row_items = windows.get("num_items") or data.num_items // max(1, 0 if table is None else len(table))
            self.reader.blocks.expect_rows(min(data.columns[name].item_bytes * row_items for name in self.columns))
        self._payloads_of = [data.spans[name].name for name in spec.spans]
        names, is_weighted = self.column_set.names, spec.loss_weights is not None
        self.layout = Layout(length, extra, names, data.primary, spec.table, tuple(data.spans), is_weighted)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, numbers: Ints) -> "StoreRows":
        """Samples by number, of which nothing is read yet."""

    @abstractmethod
    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        """Samples with an item of any of these spans, sorted. They are numbered in `table`, or else in `span_table`."""

    @abstractmethod
    def _join(self, others: Sequence[Self], data: Data) -> "View": ...

    def lengths(self, indices: Ints) -> Ints:
        """Number of real items of each sample; no column is read."""
        return self.rows(as_indices(indices)).lengths

    def num_targets(self, indices: Ints) -> Ints:
        """Number of targets of each sample that count. Of columns, only `loss_mask` and `loss_weights` are read."""
        rows = self.rows(as_indices(indices))
        return rows.num_targets(0, len(rows))

    def announce(self, indices: Ints, *, block_bytes: int = 0) -> None:
        """Begin to fetch what `read` will need from a server, in blocks of that size. Does not wait."""
        self.reader.announce(*self.rows(indices).extents, self.column_set.request, block_bytes)

    def locate(self, index: int) -> list[Location]:
        """Which items of which shards a sample is made of."""
        first_items, offsets = self.rows(np.array([self._in_range(index)])).extents
        bounds = zip(first_items.tolist(), (first_items + np.diff(offsets)).tolist(), strict=True)
        return [place for start, stop in bounds if start >= 0 for place in self.reader.locate(start, stop)]

    @property
    def parts(self) -> "tuple[View, ...]":
        """The views that this one joins, end to end; itself where it joins none."""
        return self._parts or (self,)

    @property
    def mean_length(self) -> Fraction:
        """Exact mean number of tokens of a sample: the inputs of a window; the items of a document, or of a packed row
        without its padding. O(1).
        """
        return Fraction(self.data.num_items, max(1, len(self)))  # every item is in one document, and in one row

    @property
    def stored_bytes(self) -> int:
        """Bytes of columns in a sample as they are stored, on average."""
        return self.width * sum(self.data.columns[name].item_bytes for name in self.columns)

    @property
    def sample_bytes(self) -> int:
        """Bytes of columns in a sample, on average."""
        return self.column_set.buffer_bytes(self.width)

    def __getitem__(self, index: int | slice) -> Any:
        """Sample `index`, or a batch of a slice of samples."""
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self)), dtype=np.int64))
        return Sample(self.read(np.array([self._in_range(index)])), 0)

    def __getitems__(self, _: object) -> Any:
        """Refused, with the way out: torch's DataLoader asks a dataset of samples for those of a batch by this name."""
        raise ArgumentError(f"a view is no dataset for torch's DataLoader: {TO_TORCH}")

    def _in_range(self, index: int) -> int:
        if not isinstance(index, int | np.integer):
            raise ArgumentError(f"the number of a sample is {index!r}; expected a whole number, or a slice")
        if not -len(self) <= index < len(self):
            raise outside(index, len(self))
        return index % len(self)

    def read(self, indices: Sequence[int] | Array, *, allocate: Callable[[int], Bytes] = new_bytes) -> HostBatch:
        """Samples `indices` as a batch; the columns and payloads named in the spec are read now, without the GIL.

        `allocate(bytes)` gives one buffer for all columns.
        """
        rows = self.load(as_indices(indices), allocate)
        return HostBatch(rows, 0, len(rows))

    def load(self, numbers: Ints, allocate: Callable[[int], Bytes] = new_bytes) -> "StoreRows":
        """The rows of `read`, for whoever makes several batches of them."""
        rows, columns = self.rows(numbers), self.column_set
        rows.buffer = buffer = allocate(columns.buffer_bytes(math.prod(rows.shape)))
        rows.read_into(columns, buffer)
        self._read_payloads(rows)
        return rows

    def _read_payloads(self, rows: "StoreRows") -> None:
        for table in self._payloads_of:
            rows.spans(table).read_payloads()

    def unread(self, indices: Sequence[int] | Array) -> HostBatch:
        """Samples as a batch of which every column and span is read when it is asked for."""
        rows = self.rows(as_indices(indices))
        return HostBatch(rows, 0, len(rows))

    def join(self, others: Sequence["View"]) -> "View":
        """The samples of this view, then those of the others, as one view that reads them by one call."""
        alike = [view for view in others if isinstance(view, type(self))]
        for number, other in enumerate(others, 1):
            ours, theirs = (
                [view.spec.unit, view.masks or "no loss mask", view.spec.table, *view.column_set.kinds]
                for view in (self, other)
            )
            for mine, its in zip_longest(ours, theirs, fillvalue="nothing"):
                if mine != its:
                    raise ArgumentError(
                        f"views 0 and {number} cannot be read together: {mine} in one, and {its} in the other"
                    )
        joined = self._join(alike, Data.join([view.data for view in (self, *alike)], self.columns))
        joined._parts = tuple(part for view in (self, *alike) for part in view.parts)
        return joined

    def unseen(self, run: "Delivered", *, step: int | None = None, source: str | None = None) -> "View":
        """The samples that a run has never delivered, in any epoch: all it is known to have, or the first `step` steps.

        `run` is a `tokenfeed.Run`; `source` names the source of a mixture, where several are over this view. A view
        of a later version of the store has its new samples, too.
        """
        return _check_run(run).select(self, step=step, source=source, seen=False)

    def seen(self, run: "Delivered", *, step: int | None = None, source: str | None = None) -> "View":
        """The samples that a run has delivered at least once; otherwise as `unseen`."""
        return _check_run(run).select(self, step=step, source=source, seen=True)

    def choose(self, names: Iterable[str]) -> ColumnSet:
        """Columns to be read together."""
        key = tuple(dict.fromkeys(names))
        if key not in self._chosen:
            self._chosen[key] = ColumnSet(self.data, key, self._windows)
        return self._chosen[key]

    @property
    def identity(self) -> str:
        """Checksum of the data."""
        return self.data.identity

    @property
    def span_table(self) -> SpanTable | None:
        """Table that documents are numbered in; None where the store has no such table."""
        return self.data.spans.get(self.spec.table)

    def _locate_spans(self, numbers: Sequence[int] | Ints, table: str | None) -> tuple[Ints, Ints]:
        """First item and end of spans of a table, in the order of the store, without the empty ones."""
        first_items, lengths = self.data.spans[table or self.spec.table].locate(np.unique(as_indices(numbers)))
        return first_items[lengths > 0], (first_items + lengths)[lengths > 0]

    def __reduce__(self) -> Any:
        if self._parts:
            return _join_again, self._parts
        return _open_again, (self.data.opening, self.spec)

    def __repr__(self) -> str:
        return f"View({len(self):,} samples of {self.spec}: {', '.join(self.columns) or 'payloads'})"


class Delivered(ABC):
    """Something that knows which samples of a view were delivered."""

    @abstractmethod
    def select(self, view: View, *, step: int | None, source: str | None, seen: bool) -> View: ...


def _check_run(run: Any) -> Delivered:
    if not isinstance(run, Delivered):
        raise ArgumentError(f"run is {run!r:.100}; expected a run: view.unseen(tokenfeed.Run('run.jsonl'))")
    return run


def _open_again(opening: Callable[[], Any], spec: ViewSpec) -> View:
    view: View = opening().view(spec)
    return view


def _join_again(first: View, *others: View) -> View:
    return first.join(others)


class StoreRows(Rows):
    """Rows of a view. A column or span table that the spec does not name is read when it is asked for."""

    # Making rows is much of the time that a read holds the interpreter lock, so what most never need is not made.
    buffer: Bytes | None = None
    """Memory of the columns that were read together."""
    _extents: tuple[Ints, Ints]
    _spans: dict[str, BatchSpans] | None = None

    def __init__(self, view: View, indices: Ints) -> None:
        self.view = view
        self.layout = view.layout
        self.indices = indices
        self.arrays: dict[str, Array] = {}

    @property
    def extents(self) -> tuple[Ints, Ints]:
        """(first items, offsets) of the runs of items that the rows are made of.

        Run i is the items of the store from first_items[i] on, at positions [offsets[i], offsets[i + 1]) of the rows
        laid end to end; `items.PADDING` as first item, which is negative, marks empty positions.
        """
        return self._extents

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a column of scalars."""
        return self.indices.size, self.view.width

    @property
    def offsets(self) -> Ints:
        width = self.view.width
        return np.arange(0, (self.indices.size + 1) * width, width)

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns that were read together."""
        return 0 if self.buffer is None else self.buffer.size

    def read_into(self, columns: ColumnSet, buffer: Bytes) -> None:
        """Read the rows of `columns` into `buffer`."""
        self.view.reader.read_ragged(*self.extents, columns.request, buffer)

    def column(self, name: str) -> Array:
        array = self.arrays.get(name)
        if array is None:
            columns, buffer = self.view.column_set, self.buffer
            if buffer is None or name not in columns.names:
                columns = self.view.choose([name])
                buffer = new_bytes(columns.buffer_bytes(math.prod(self.shape)))
                self.read_into(columns, buffer)
            array = self.arrays[name] = columns.array(name, self.shape, buffer)
        return array

    def spans(self, table: str) -> BatchSpans:
        if self._spans is None:
            self._spans = {}
        if table not in self._spans:
            self._spans[table] = self._find_spans(self.view.data.spans[table])
        return self._spans[table]

    def _find_spans(self, table: SpanTable) -> BatchSpans:
        return table.find(*self.extents)

    def learned(self, start: int, stop: int) -> Array | None:
        masks, places = self.view.masks, self.places(start, stop)
        mask = self.column(masks["loss_mask"])[places] != 0 if "loss_mask" in masks else None
        if "loss_weights" not in masks:
            return mask
        weights = self.column(masks["loss_weights"])[places].astype(np.float32)
        if not (weights.min(initial=0) >= 0 and weights.max(initial=0) < np.inf):
            raise self._wrong_weight(weights, start)
        return weights if mask is None else weights * mask

    def _wrong_weight(self, weights: Array, start: int) -> ArgumentError:
        found = int(np.argmax(~((weights >= 0) & (weights < np.inf))))
        place = int(self.offsets[start]) + found
        row = int(np.searchsorted(self.offsets, place, side="right")) - 1
        first_items, offsets = self.extents
        run = int(np.searchsorted(offsets, place, side="right")) - 1
        item = int(first_items[run] + place - offsets[run])
        (where,) = self.view.reader.locate(item, item + 1)
        weight, within = weights.reshape(-1)[found], place - int(self.offsets[row])
        return ArgumentError(
            f"loss_weights={self.view.masks['loss_weights']!r} is {weight} at item {within:,} of sample "
            f"{self.own[row]:,} (item {where.start:,} of shard {where.shard!r}); weights are finite, and not negative"
        )
