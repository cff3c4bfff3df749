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
        rank, world_size = _from_launcher(environment)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ArgumentError(f"rank {rank} of {world_size} cannot be; ranks are 0 to world_size - 1")
    return rank, world_size


def _from_launcher(environment: Mapping[str, str]) -> tuple[int, int]:
    for rank, world_size in _LAUNCHERS:
        if rank in environment and world_size in environment:
            try:
                return int(environment[rank]), int(environment[world_size])
            except ValueError as error:
                raise ArgumentError(
                    f"{rank}={environment[rank]!r}, {world_size}={environment[world_size]!r}"
                ) from error
    return 0, 1
