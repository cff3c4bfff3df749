"""What a loader delivers."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from tokenfeed.store.data import Array
from tokenfeed.store.spans import BatchSpans
from tokenfeed.types import Ints

__all__ = ["LoadedBatch", "MasksOf", "Reading", "Rows", "TokenRows"]


class Rows(Protocol):
    """Rows of columns: a `Batch` of the store, or what a stream packed."""

    @property
    def column_names(self) -> tuple[str, ...]: ...

    @property
    def spans(self) -> Mapping[str, BatchSpans]: ...

    def column(self, name: str) -> Array: ...

    def part(self, start: int, stop: int) -> "Rows": ...

    def __len__(self) -> int: ...


@runtime_checkable
class TokenRows(Protocol):
    """Rows of which inputs and targets are parts: items [0, length) and [1, length + 1) of the primary column."""

    length: int
    extra: int

    @property
    def primary(self) -> str | None: ...


class MasksOf(Protocol):
    """What tells which targets of rows count."""

    def of(self, rows: Any, samples: Ints) -> Array: ...


class Reading:
    """The rows of one or several steps that were read by one call."""

    __slots__ = ("epochs", "masks", "rows", "samples", "state")

    def __init__(
        self,
        state: Callable[[int], dict[str, Any]],
        rows: Rows,
        samples: Ints,
        epochs: Ints,
        masks: MasksOf | None = None,
    ) -> None:
        self.state = state
        """The checkpoint after so many samples of the run."""
        self.rows = rows
        self.samples = samples
        self.epochs = epochs
        self.masks = masks
        """Which targets count, where some do not."""


class LoadedBatch:
    """One rank's rows of one step. `inputs, targets = batch`.

    It never changes while it is held. (Steps that were read together share their memory, so holding one of them holds
    all.) `data` is what the collate function made of the rows, where there is one.
    """

    def __init__(self, reading: Reading, start: int, stop: int, num_delivered: int, data: Any) -> None:
        """Rows [start, stop) of what was read."""
        self._reading = reading
        self._start = start
        self._stop = stop
        self.num_delivered = num_delivered
        """How many samples the run has delivered with this step, over all ranks."""
        self.data = data
        self.generation = 0
        """Which of the loader's readings it was fetched from."""

    @cached_property
    def rows(self) -> Rows:
        """The rows as the view, or the packer, gives them."""
        rows = self._reading.rows
        return rows if len(self) == len(rows) else rows.part(self._start, self._stop)

    @property
    def num_items(self) -> int:
        """Items of the rows: of rows of one length their inputs, of documents all."""
        rows = self._reading.rows
        length: int | None = getattr(rows, "length", None)
        if length is not None:
            return length * len(self)
        offsets = getattr(rows, "offsets", None)
        return 0 if offsets is None else int(offsets[self._stop] - offsets[self._start])

    @property
    def samples(self) -> Ints:
        """The number k of each row in the run."""
        return self._reading.samples[self._start : self._stop]

    @property
    def epochs(self) -> Ints:
        """The epoch of each row."""
        return self._reading.epochs[self._start : self._stop]

    @property
    def epoch(self) -> int:
        """The epoch of the first row; of an empty batch, −1."""
        return int(self.epochs[0]) if len(self) else -1

    @property
    def state(self) -> dict[str, Any]:
        """The checkpoint after this batch; on the indexed road the same on every rank."""
        return self._reading.state(self.num_delivered)

    @property
    def inputs(self) -> Array:
        """(rows, length), in the stored dtype unless the view was given another. A view, not a copy."""
        return self.rows.inputs  # type: ignore[attr-defined,no-any-return]

    @property
    def targets(self) -> Array:
        """The items that follow the inputs, one by one. A view, not a copy."""
        return self.rows.targets  # type: ignore[attr-defined,no-any-return]

    def column(self, name: str) -> Array:
        """The rows of one column, in the stored dtype unless the view was given another."""
        return self.rows.column(name)

    @property
    def tokens(self) -> Array:
        """The column of that name."""
        return self.column("tokens")

    @property
    def spans(self) -> Mapping[str, BatchSpans]:
        """The spans that the rows touch, by table."""
        return self.rows.spans

    @property
    def loss_mask(self) -> Array | None:
        """Which targets count: (rows, length); None where all do, as of windows without masked documents."""
        mask: Array | None = getattr(self.rows, "loss_mask", None)
        if self._reading.masks is None:
            return mask
        masked = self._reading.masks.of(self.rows, self.samples)
        return masked if mask is None else mask & masked

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)  # type: ignore[call-overload,no-any-return]

    def __repr__(self) -> str:
        return f"LoadedBatch({len(self)} rows, samples {self.samples[:3].tolist()}…)"
