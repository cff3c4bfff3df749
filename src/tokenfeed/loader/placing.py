"""Batches as arrays of a framework, on its devices: what `tokenfeed.torch` and `tokenfeed.jax` share."""

from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Delivery, Stats
from tokenfeed.store.batch import Batch, HostBatch

__all__ = ["PlacedBatch", "PlacedLoader"]

Placed = TypeVar("Placed", bound="PlacedBatch")


class PlacedBatch(Batch):
    """A batch whose inputs, targets, mask and columns are arrays of a framework. The rest stays on the host."""

    def __init__(self, host: HostBatch) -> None:
        self._take_rows_of(host)
        self._host = host
        self._columns: dict[str, Any] = {}

    @property
    def host(self) -> HostBatch:
        return self._host

    @abstractmethod
    def _place_column(self, name: str) -> Any:
        """A column of the host batch as an array of the framework."""

    def column(self, name: str) -> Any:
        """The rows of a column that was read with the batch."""
        if name not in self._columns:
            if name not in self.rows.layout.columns:
                raise ArgumentError(f"column {name!r} was not read with the batch; name it when you make the view")
            self._columns[name] = self._place_column(name)
        return self._columns[name]


class PlacedLoader(ABC, Generic[Placed]):
    """An iterator of placed batches. State, rank and statistics are those of the loader behind it."""

    def __init__(self, loader: Delivery) -> None:
        self.loader = loader

    @abstractmethod
    def __next__(self) -> Placed: ...

    def __iter__(self) -> Self:
        iter(self.loader)
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint after the last batch delivered."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on after a checkpoint."""
        self.loader.load_state_dict(state)

    def stats(self) -> Stats:
        """Counters of the loader. Batches on their way to the device are not among those delivered."""
        return self.loader.stats()

    def close(self) -> None:
        """Stop working ahead, and forget what was not delivered. Iterating goes on where it was."""
        self.loader.close()
