"""Steps of a run: which samples each takes."""

import numpy as np

from tokenfeed.types import Ints

__all__ = ["count_steps", "rows_of"]


def count_steps(num_samples: int, width: int) -> int:
    """How many steps of `width` samples it takes to deliver so many, or more."""
    return max(0, -(-num_samples // width))


def rows_of(start: int, batch_size: int, rank: int, world_size: int) -> Ints:
    """The samples of one rank in the step that begins at `start`: row j is start + j·world_size + rank.

    >>> rows_of(100, 3, 1, 4).tolist()
    [101, 105, 109]
    """
    first = start + rank
    return np.arange(first, first + batch_size * world_size, world_size, dtype=np.int64)
