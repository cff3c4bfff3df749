"""Rank and world size of this process, as launchers set them; and where torch has put it, if it is a worker."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from tokenfeed.errors import ArgumentError, whole

__all__ = ["find_rank", "find_worker"]

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and most others
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script alone has no step, and is no rank
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def find_rank(rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, world size): as given, else as the launcher says, else as torch.distributed does, else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ArgumentError(f"rank is {rank}, world_size is {world_size}; give both or neither")
    if rank is None or world_size is None:
        worker = find_worker()
        if worker is not None and worker.num_workers > 1:
            raise ArgumentError(
                f"num_workers is {worker.num_workers}: a loader made in each of these processes would deliver "
                "everything there. Use num_workers=0, for a loader reads ahead in threads of its own; or give it rank= "
                "and world_size= that count the workers of all ranks"
            )
        names = next((names for names in _LAUNCHERS if environment.keys() >= set(names)), ())
        alone = [name for name in _LAUNCHERS[0] if name in environment]
        if not names and alone:
            (missing,) = set(_LAUNCHERS[0]) - set(alone)
            raise ArgumentError(
                f"the environment has {alone[0]}={environment[alone[0]]} and no {missing}, so this process cannot tell "
                f"which rank it is. Set both, or give rank= and world_size=; for a single process, unset {alone[0]}"
            )
        given = [environment[name] for name in names] or _find_group() or ["0", "1"]
        if not all(text.isdecimal() for text in given):
            raise ArgumentError(f"the launcher set {' and '.join(names)} to {' and '.join(map(repr, given))}")
        rank, world_size = map(int, given)
    whole("world_size", world_size, 1)
    whole("rank", rank)
    if rank >= world_size:
        raise ArgumentError(f"rank is {rank} and world_size is {world_size}; ranks are 0 to {world_size - 1}")
    return rank, world_size


def _find_group() -> list[str]:
    """Rank and world size of torch's process group, where a program made one by itself, as with `mp.spawn`."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return []
    return [str(group.get_rank()), str(group.get_world_size())]


def find_worker() -> Any:
    """What torch knows of this process if it is a worker of a DataLoader: its id and num_workers. Else None."""
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()
