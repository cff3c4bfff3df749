"""`Batch`: the one interface of everything that is delivered; and `HostBatch`, a batch in host memory.

A batch is a range of `Rows` that one call read, and which samples of the run they are; a `Sample` is one of its rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError, quantity
from tokenfeed.store.forms import Arrays, ContextParallel, Cut, arrange, cut_flat
from tokenfeed.store.rows import Rows
from tokenfeed.store.spans import BatchSpans, Span
from tokenfeed.types import Array, Bools, Ints

__all__ = ["Batch", "Draw", "HostBatch", "Sample"]


class Draw(NamedTuple):
    """Which samples of a run rows are."""

    samples: Ints
    epochs: Ints
    sources: Ints
    indices: Ints
    """Number of each row in the view of its source."""
    source_names: tuple[str, ...]
    state: Callable[[int], dict[str, Any]]
    """Checkpoint after so many samples of the run."""
    mask: Callable[[Rows, Ints, int, int], Bools] | None = None
    """Called with (rows, samples, start, stop): which targets of rows [start, stop) count."""
    count_targets: Callable[[int, int], int] | None = None
    """Called with (start, stop): how many targets of samples [start, stop) of the run count."""


class Batch(ABC):
    """Rows for one step of training. `inputs, targets = batch`, and `loss_mask` says which targets count.

    `flat` has the same without padding, and `slice(…)` the part of one context-parallel rank.

    Host memory or a device, NumPy, torch or JAX, the indexed or the streaming road: every batch has these members. What
    describes rows (`samples`, `epochs`, `sources`, `lengths`, `spans`) stays on the host.
    """

    # What most batches never need is made on first use: making a batch holds the interpreter lock.

    data: Any = None
    """Result of the collate function, where there is one."""
    step: tuple[int, int] | None = None
    """Samples [start, stop) of the run that all ranks together take in this step."""
    _flat: Arrays | None = None

    def __init__(self, rows: Rows, start: int, stop: int, draw: Draw | None = None, num_delivered: int = 0) -> None:
        """Rows [start, stop) of what one call read. Without a `draw`, they were read by number, outside any run.

        Loaders pass all by position: a third of the time that making a batch takes.
        """
        self.rows = rows
        self._start = start
        self._stop = stop
        self._draw = draw
        self.num_delivered = num_delivered
        """Samples of the run delivered with this step, over all ranks."""

    def _take_rows_of(self, other: "Batch") -> None:
        """Be the rows of another batch, in other memory."""
        Batch.__init__(self, other.rows, other._start, other._stop, draw=other._draw, num_delivered=other.num_delivered)
        self.step = other.step

    @property
    @abstractmethod
    def inputs(self) -> Any:
        """(rows, length)."""

    @property
    @abstractmethod
    def targets(self) -> Any:
        """(rows, length): the items that follow the inputs."""

    @property
    @abstractmethod
    def loss_mask(self) -> Any:
        """(rows, length): which targets count. None where all do."""

    @property
    @abstractmethod
    def loss_weights(self) -> Any:
        """(rows, length): weight of each target, float32; 0 where it does not count. None where all count as 1."""

    @abstractmethod
    def _arrange(self, cut: Cut) -> Arrays:
        """The batch in another form, in this batch's kind of arrays."""

    @property
    def flat(self) -> Arrays:
        """The batch without padding: rows laid end to end, (total,), with `cu_seqlens` for varlen attention."""
        if self._flat is None:
            self._flat = self._arrange(cut_flat(self.host))
        return self._flat

    def slice(self, cp: ContextParallel) -> Arrays:
        """The part of the batch that one context-parallel rank works on."""
        return self._arrange(cp.cut(self.host))

    @property
    def num_targets(self) -> int:
        """Number of targets of this batch that count."""
        if self._draw is None or self._draw.mask is None:
            return int(self.rows.num_targets(self._start, self._stop).sum())
        mask = self.host.loss_mask
        return 0 if mask is None else int(np.count_nonzero(mask))

    @property
    def step_targets(self) -> int:
        """Number of targets that count in this step, over all ranks. Nothing is sent: every rank computes the same.

        Lengths are looked up; where a column is the mask, that column is read for the samples of all ranks.
        """
        if self._draw is None or self._draw.count_targets is None or self.step is None:
            raise ArgumentError(
                "only batches of a Loader know what other ranks take in the same step; sum batch.num_targets over ranks"
            )
        return self._draw.count_targets(*self.step)

    @property
    @abstractmethod
    def host(self) -> "HostBatch":
        """The same batch in host memory."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """The rows of one column."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """Columns that were read with the batch, by name."""
        return {name: self.column(name) for name in self.rows.layout.columns}

    @property
    def tokens(self) -> Any:
        """The column `tokens`."""
        return self.column("tokens")

    @property
    def has_inputs(self) -> bool:
        return self.rows.layout.primary is not None

    @property
    def has_targets(self) -> bool:
        return self.has_inputs and self.rows.layout.extra > 0

    @property
    def samples(self) -> Ints:
        """Number k of each row in the run."""
        return (self.rows.own if self._draw is None else self._draw.samples)[self._start : self._stop]

    @property
    def epochs(self) -> Ints:
        """Epoch of each row, within its source."""
        return np.zeros(len(self), np.int64) if self._draw is None else self._draw.epochs[self._start : self._stop]

    @property
    def epoch(self) -> int:
        """Epoch of the first row; −1 for an empty batch."""
        return int(self.epochs[0]) if len(self) else -1

    @property
    def sources(self) -> Ints:
        """Number of the source that each row comes from: a place in `source_names`."""
        return np.zeros(len(self), np.int64) if self._draw is None else self._draw.sources[self._start : self._stop]

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources of a mixture; a run over one view has one source, named ""."""
        return ("",) if self._draw is None else self._draw.source_names

    @property
    def indices(self) -> Ints:
        """Number of each row in the view of its source; on the streaming road, in the run."""
        return (self.rows.own if self._draw is None else self._draw.indices)[self._start : self._stop]

    @property
    def lengths(self) -> Ints:
        """Number of real items of each row: padding does not count."""
        return self.rows.lengths[self._start : self._stop]

    @property
    def length(self) -> int:
        """Inputs in a row; of documents, those of the longest."""
        return self.rows.input_length(self._start, self._stop)

    @property
    def spans(self) -> Mapping[str, BatchSpans]:
        """Spans that the rows touch, by table."""
        return _SpansByTable(self)

    def spans_of(self, table: str | None = None, *, length: int | None = None) -> BatchSpans:
        """Spans of one table that the rows touch; of documents, unless it is named. Rows have `length` inputs."""
        table = self.rows.layout.table if table is None else table
        length = self.length if length is None else length
        return self.rows.spans(table).part(self._start, self._stop, length=length)

    @property
    def cu_seqlens(self) -> Any:
        """Where documents begin in the inputs of all rows laid end to end, and the end: int32, for varlen attention."""
        return self.spans_of().cu_seqlens()

    @property
    def cu_seqlens_padded(self) -> Any:
        """`cu_seqlens` with the padding of parts: another only where documents are padded to be divided among ranks."""
        return self.cu_seqlens

    @property
    def max_seqlen(self) -> int:
        """Length of the longest part in `cu_seqlens`."""
        return int(np.diff(self.spans_of().cu_seqlens()).max(initial=0))

    @property
    def position_ids(self) -> Any:
        """(rows, length): place of every input within its document's part of the row."""
        return self.spans_of().position_ids()

    @property
    def state(self) -> dict[str, Any]:
        """Checkpoint after this batch; on the indexed road the same on every rank."""
        if self._draw is None:
            raise ArgumentError("this batch was read from a view by number and has no state; a Loader's batches have")
        return self._draw.state(self.num_delivered)

    def as_dict(self) -> dict[str, Any]:
        """Everything but spans, as a dictionary: columns by name, and the members of a batch under their own names.

        `loss_mask` and `loss_weights` are None where every target counts as 1; `inputs` and `targets` are missing where
        the rows have none.
        """
        values = dict(self.columns)
        if self.has_inputs:
            values["inputs"] = self.inputs
        if self.has_targets:
            values |= {"targets": self.targets, "loss_mask": self.loss_mask, "loss_weights": self.loss_weights}
        numbers = {"samples": self.samples, "epochs": self.epochs, "sources": self.sources, "lengths": self.lengths}
        values |= {name: self._as_array(each) for name, each in numbers.items()} | {"state": self.state}
        return values if self.data is None else values | {"data": self.data}

    def _as_array(self, numbers: Ints) -> Any:
        """Numbers of the host as the kind of array that this batch holds."""
        return numbers

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        yield self.inputs
        yield self.targets

    def __repr__(self) -> str:
        samples = f"{self.samples[:3].tolist()}{'…' if len(self) > 3 else ''}"
        columns = ", ".join(self.rows.layout.columns)
        return f"{type(self).__name__}({quantity(len(self), 'row')} of {columns}; samples {samples})"


class HostBatch(Batch):
    """A batch in host memory. It never changes while it is held.

    (Steps that were read together share their memory, so holding one of them holds all.)
    """

    generation = 0
    """Which of the loader's readings the batch was fetched from."""

    @property
    def host(self) -> "HostBatch":
        return self

    @property
    def inputs(self) -> Array:
        """(rows, length), in the stored dtype unless the view was given another. A view where rows have one length."""
        return self.rows.inputs(self._start, self._stop)

    @property
    def targets(self) -> Array:
        """(rows, length): the items that follow the inputs. A view where rows have one length."""
        return self.rows.targets(self._start, self._stop)

    @property
    def loss_mask(self) -> Bools | None:
        if not self.has_targets:
            return None
        mask = self.rows.loss_mask(self._start, self._stop)
        if self._draw is None or self._draw.mask is None:
            return mask
        masked = self._draw.mask(self.rows, self._draw.samples, self._start, self._stop)
        return masked if mask is None else mask & masked

    @property
    def loss_weights(self) -> Array | None:
        mask = self.loss_mask
        weights = self.rows.loss_weights(self._start, self._stop) if self.has_targets else None
        if mask is None or weights is None:
            return None if mask is None else mask.astype(np.float32)
        return weights * mask

    @property
    def learned(self) -> Array | None:
        """Weight of every item as a target, or whether it is one, in the shape of a column. None where no column says.

        This is what columns say: what a packed row or a skip leaves out is left out of `loss_mask` alone.
        """
        return self.rows.learned(self._start, self._stop)

    def _arrange(self, cut: Cut) -> Arrays:
        return arrange(self, cut)

    @property
    def items(self) -> Array:
        """The primary column, its rows laid end to end."""
        return self.rows.primary()[self.rows.places(self._start, self._stop)].reshape(-1)

    def column(self, name: str) -> Array:
        """The rows of one column: a view. A column that was not read with the batch is read now."""
        return self.rows.column(name)[self.rows.places(self._start, self._stop)]

    def span_numbers(self, table: str | None = None) -> Ints:
        """For every item of every row, the number of the span that covers it; −1 where none does."""
        numbers = self.spans_of(table).span_numbers(self.offsets)
        length, extra = self.rows.layout[:2]
        return numbers if length is None else numbers.reshape(len(self), length + extra)

    @property
    def offsets(self) -> Ints:
        """Where each row begins in the items of all rows laid end to end, and the end."""
        offsets = self.rows.offsets[self._start : self._stop + 1]
        shifted: Ints = offsets - offsets[0]
        return shifted

    @property
    def num_items(self) -> int:
        """Number of inputs of all rows; of ragged documents, of all items."""
        length = self.rows.layout.length
        return len(self) * length if length is not None else int(self.offsets[-1])

    def part(self, start: int, stop: int) -> "HostBatch":
        """Rows [start, stop) as a batch of their own, without a copy."""
        first = self._start
        part = HostBatch(self.rows, first + start, first + stop, draw=self._draw, num_delivered=self.num_delivered)
        part.step = self.step
        return part

    def __getitem__(self, row: int) -> "Sample":
        if not isinstance(row, int | np.integer):
            raise ArgumentError(
                f"the row of a batch is {row!r}; expected one whole number. For several rows, slice its arrays: "
                "batch.inputs[:2]; or batch.part(0, 2) is a batch of them"
            )
        if not -len(self) <= row < len(self):
            raise SampleIndexError(f"row {row} is outside the batch, which has {len(self)} rows")
        return Sample(self, row % len(self))

    @property
    def payloads(self) -> list[Any]:
        """Payload of each row's document, decoded now. For batches of documents."""
        return [self[row].payload for row in range(len(self))]


class Sample:
    """One row of a batch."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: HostBatch, row: int) -> None:
        self._batch = batch
        self._row = row

    @property
    def index(self) -> int:
        """Number of the sample in its view."""
        return int(self._batch.indices[self._row])

    def column(self, name: str) -> Array:
        """Items of one column: a view."""
        rows: Array = self._batch.part(self._row, self._row + 1).column(name)
        return rows if self._batch.rows.layout.length is None else rows[0]

    @property
    def tokens(self) -> Array:
        """The column `tokens`."""
        return self.column("tokens")

    @property
    def spans(self) -> Mapping[str, list[Span]]:
        """Spans that the sample touches, by table."""
        return _SpansByTable(self._batch, self._row)

    @property
    def payload(self) -> Any:
        """Payload of the sample's document, decoded now; None where it was written without."""
        spans = self._batch.spans_of()[self._row]
        if len(spans) != 1:
            raise ArgumentError(f"the sample touches {len(spans)} documents; use sample.spans")
        return spans[0].payload

    def __repr__(self) -> str:
        batch = self._batch
        items = quantity(int(batch.lengths[self._row]), "item")
        return f"Sample({self.index}: {items} of {', '.join(batch.rows.layout.columns) or 'no column'})"


class _SpansByTable(Mapping[str, Any]):
    """Span tables by name, looked up when they are asked for: those of a batch, or of one of its rows."""

    def __init__(self, batch: Batch, row: int | None = None) -> None:
        self._batch = batch
        self._row = row

    def __getitem__(self, table: str) -> Any:
        spans = self._batch.spans_of(table)
        return spans if self._row is None else spans[self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.rows.layout.tables)

    def __len__(self) -> int:
        return len(self._batch.rows.layout.tables)

    def __repr__(self) -> str:
        return repr({table: self[table] for table in self})
