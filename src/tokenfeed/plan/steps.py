"""Steps of a run: which samples each takes, for a batch size that may change on the way."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.types import Ints

__all__ = ["BatchSizes", "rows_of"]


class BatchSizes:
    """Rows per rank and step: a number, or a ramp {samples delivered: number from there on}.

    >>> BatchSizes({0: 16, 1_000_000: 32})
    """

    def __init__(self, sizes: int | Mapping[int, int]) -> None:
        stages = dict(sizes) if isinstance(sizes, Mapping) else {0: sizes}
        for start, size in stages.items():
            if not _is_whole(start) or not _is_whole(size) or start < 0 or size < 1:
                raise ArgumentError(f"batch_size is {sizes!r}; it must be at least 1, and a ramp must begin at 0")
        self._stages = sorted((int(start), int(size)) for start, size in stages.items())
        if not self._stages or self._stages[0][0] != 0:
            raise ArgumentError(f"batch_size is {sizes!r}; a ramp must begin at 0")

    @property
    def largest(self) -> int:
        """The largest of them."""
        return max(size for _, size in self._stages)

    def at(self, num_delivered: int) -> int:
        """The batch size of the step that begins after that many samples."""
        return next(size for start, size in reversed(self._stages) if start <= num_delivered)

    def after(self, num_delivered: int, num_steps: int, world_size: int) -> int:
        """Samples delivered after that many further steps. O(stages)."""
        for number, (_, size) in enumerate(self._stages):
            stop = self._stages[number + 1][0] if number + 1 < len(self._stages) else None
            if stop is not None and num_delivered >= stop:
                continue
            wide = size * world_size
            steps = num_steps if stop is None else min(num_steps, -(-(stop - num_delivered) // wide))
            num_delivered += steps * wide
            num_steps -= steps
        return num_delivered

    def steps_between(self, start: int, stop: int, world_size: int) -> int:
        """How many steps lead from `start` samples to `stop` or beyond it. O(stages)."""
        steps = 0
        for number, (_, size) in enumerate(self._stages):
            end = self._stages[number + 1][0] if number + 1 < len(self._stages) else stop
            end = min(end, stop)
            if start < end:
                taken = -(-(end - start) // (size * world_size))
                steps += taken
                start += taken * size * world_size
        return steps

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


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
