"""`StreamOptions`: the settings that `stream` and `stream_chat` share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.steps import BatchSizes
from tokenfeed.store.batch import HostBatch

__all__ = ["StreamOptions"]


@dataclass(frozen=True)
class StreamOptions:
    """How batches are made and delivered; which documents they hold is not decided here."""

    batch_sizes: BatchSizes
    rank: int
    world_size: int
    lanes: int | None
    """Number of lanes that was asked for, if one was."""
    epochs: int | None
    """Number of epochs after which the stream ends; None without end."""
    threads: int
    prefetch: int
    collate: Callable[[HostBatch], Any] | None
    run: str | Path | None

    def __post_init__(self) -> None:
        numbers = {"threads": (self.threads, 1), "prefetch": (self.prefetch, 0), "epochs": (self.epochs, 1)}
        for name, (value, least) in numbers.items():
            if value is not None and (type(value) is not int or value < least):
                raise ArgumentError(f"{name} is {value!r}; it must be a whole number, at least {least}")
        lanes, world_size = self.lanes, self.world_size
        if lanes is not None and (lanes < 1 or lanes % world_size):
            raise ArgumentError(f"{lanes} lanes cannot be shared by {world_size} ranks: it must be a multiple of them")
        if lanes is not None and self.epochs is not None:
            raise ArgumentError(f"lanes is {lanes}, but a stream with epochs= has one lane, which every rank packs")

    @property
    def wanted_lanes(self) -> int | None:
        """Number of lanes that there must be; None where those of a checkpoint may stay."""
        return 1 if self.epochs is not None else self.lanes

    @property
    def num_lanes(self) -> int:
        """Number of lanes of a stream that begins."""
        return self.wanted_lanes or self.world_size

    def owned(self, num_rows: int, num_lanes: int) -> range:
        """Lanes that this rank packs once `num_rows` rows are delivered.

        Row num_rows + rank is its next, and every world_size-th from there. With `epochs`, every rank packs everything.
        """
        if self.epochs is not None:
            return range(num_lanes)
        return range((num_rows + self.rank) % self.world_size, num_lanes, self.world_size)
