"""Steps of a run: which samples each takes, for a batch size that may change on the way."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.types import Ints

__all__ = ["BatchSizes", "Stretch", "rows_of"]


class Stretch(NamedTuple):
    """Steps of one batch size: from `step` on, after `samples` samples, every step has so many rows on each rank."""

    step: int
    samples: int
    batch_size: int


class BatchSizes:
    """Rows per rank and step: a number, or a ramp {samples delivered: number from there on}.

    >>> BatchSizes({0: 16, 1_000_000: 32})
    """

    def __init__(self, sizes: int | Mapping[int, int], *, name: str = "batch_size") -> None:
        """`name` is that of the option that they were given by: `tokens` are counted in the same way."""
        self._name = name
        stages = dict(sizes) if isinstance(sizes, Mapping) else {0: sizes}
        numbers = (*stages, *stages.values())
        whole = all(isinstance(each, int | np.integer) and not isinstance(each, bool) for each in numbers)
        if not whole or min(stages, default=1) != 0 or min(stages.values()) < 1:
            raise ArgumentError(
                f"{name} is {sizes!r}; it must be a whole number of at least 1, or a ramp {{0: 16, 10**6: 32}}, which "
                "begins at 0"
            )
        self._stages = sorted((int(start), int(size)) for start, size in stages.items())

    @property
    def stages(self) -> dict[int, int]:
        """Batch sizes by the number of samples delivered from which on they hold."""
        return dict(self._stages)

    @property
    def largest(self) -> int:
        """The largest of them."""
        return max(size for _, size in self._stages)

    def at(self, num_delivered: int) -> int:
        """The batch size of the step that begins after that many samples."""
        if len(self._stages) == 1:
            return self._stages[0][1]
        return next(size for start, size in reversed(self._stages) if start <= num_delivered)

    def stretches(self, num_delivered: int, world_size: int) -> list[Stretch]:
        """The steps that follow that many samples, counted from 0, by their batch size. O(stages).

        {0: 2, 7: 3}, two ranks:  Stretch(0, 0, 2), Stretch(2, 8, 3): the step that begins with sample 4 ends at 8
        """
        found = [Stretch(0, num_delivered, self.at(num_delivered))]
        for change, size in self._stages:
            step, samples, before = found[-1]
            steps = -(-(change - samples) // (before * world_size))
            if steps > 0 and self.at(samples + steps * before * world_size) == size:
                found.append(Stretch(step + steps, samples + steps * before * world_size, size))
        return found

    def after(self, num_delivered: int, num_steps: int, world_size: int) -> int:
        """Samples delivered after that many further steps. O(stages).

        Steps before (of a negative number) have as many rows as the next one has.
        """
        found = self.stretches(num_delivered, world_size)
        step, samples, size = next((each for each in reversed(found) if each.step <= num_steps), found[0])
        return samples + (num_steps - step) * size * world_size

    def steps_between(self, start: int, stop: int, world_size: int) -> int:
        """How many steps lead from `start` samples to `stop` or beyond it. O(stages)."""
        for step, samples, size in reversed(self.stretches(start, world_size)):
            if samples < stop:
                return step - (samples - stop) // (size * world_size)
        return 0

    def spread(self, before: int, after: int) -> "BatchSizes":
        """The batch sizes with which so many ranks have as many rows together as so many had before."""
        if any(size * before % after for _, size in self._stages):
            wide = next(size * before for _, size in self._stages if size * before % after)
            what = "rows" if self._name == "batch_size" else self._name
            raise ArgumentError(f"{wide} {what} of all ranks cannot be divided among {after}; give {self._name}=")
        return BatchSizes({start: size * before // after for start, size in self._stages}, name=self._name)

    def times(self, count: int) -> "BatchSizes":
        """The rows of so many batches together."""
        return (
            self if count == 1 else BatchSizes({start: size * count for start, size in self._stages}, name=self._name)
        )

    def to_json(self) -> list[list[int]]:
        return [list(stage) for stage in self._stages]

    @classmethod
    def from_json(cls, value: Any) -> "BatchSizes":
        return cls(dict(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchSizes) and self._stages == other._stages

    def __hash__(self) -> int:
        return hash(tuple(self._stages))

    def __repr__(self) -> str:
        return str(self._stages[0][1]) if len(self._stages) == 1 else repr(dict(self._stages))


def rows_of(start: int, batch_size: int, rank: int, world_size: int) -> Ints:
    """The samples of one rank in the step that begins at `start`: row j is start + j·world_size + rank.

    >>> rows_of(100, 3, 1, 4).tolist()
    [101, 105, 109]
    """
    first = start + rank
    return np.arange(first, first + batch_size * world_size, world_size, dtype=np.int64)
