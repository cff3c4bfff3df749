"""Rank and world size of this process, as launchers set them."""

import os
from collections.abc import Mapping

from tokenfeed.errors import ArgumentError

__all__ = ["find_rank"]

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and most others
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script alone has no step, and is no rank
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def find_rank(rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, world size): as given, else as the launcher says, else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ArgumentError(f"rank is {rank}, world_size is {world_size}; give both or neither")
    if rank is None or world_size is None:
        names = next((names for names in _LAUNCHERS if environment.keys() >= set(names)), ())
        given = [environment[name] for name in names] or ["0", "1"]
        if not all(text.isdecimal() for text in given):
            raise ArgumentError(f"the launcher set {' and '.join(names)} to {' and '.join(map(repr, given))}")
        rank, world_size = map(int, given)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ArgumentError(f"rank {rank} of {world_size} cannot be; ranks are 0 to world_size - 1")
    return rank, world_size
