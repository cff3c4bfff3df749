"""What a loader delivers."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Ints
from tokenfeed.store.batch import Batch
from tokenfeed.store.data import Array
from tokenfeed.store.spans import BatchSpans

__all__ = ["LoadedBatch", "Reading"]


class Reading:
    """The rows of one or several steps that were read by one call."""

    __slots__ = ("epochs", "plan", "rows", "samples")

    def __init__(self, plan: Plan, rows: Batch, samples: Ints, epochs: Ints) -> None:
        self.plan = plan
        self.rows = rows
        self.samples = samples
        self.epochs = epochs


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
    def rows(self) -> Batch:
        """The rows as the view gives them."""
        return self._reading.rows.part(self._start, self._stop)

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
        """The checkpoint after this batch: the same on every rank."""
        return self._reading.plan.state(self.num_delivered)

    @property
    def inputs(self) -> Array:
        return self.rows.inputs  # type: ignore[attr-defined,no-any-return]

    @property
    def targets(self) -> Array:
        return self.rows.targets  # type: ignore[attr-defined,no-any-return]

    def column(self, name: str) -> Array:
        """The rows of one column, in the stored dtype."""
        return self.rows.column(name)

    @property
    def tokens(self) -> Array:
        return self.rows.tokens

    @property
    def spans(self) -> Mapping[str, BatchSpans]:
        """The spans that the rows touch, by table."""
        return self.rows.spans

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"LoadedBatch({len(self)} rows, samples {self.samples[:3].tolist()}…)"
