"""torch's DataLoader over a memory map, a whole batch a fetch."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokens import Job
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torch_item import OVERLAP, PACKAGES, write

__all__ = ["OVERLAP", "PACKAGES", "SETTINGS", "Feed", "write"]

SETTINGS = (
    "DataLoader(sampler=BatchSampler(RandomSampler), batch_size=None) over a Dataset that indexes np.memmap by lists"
)


class Windows(Dataset[Any]):
    def __init__(self, folder: Path, job: Job) -> None:
        tokens = np.memmap(folder / "tokens.bin", np.uint16, mode="r")
        n, step = (tokens.size - 1) // job.length, tokens.strides[0]
        self.view = np.lib.stride_tricks.as_strided(tokens, (n, job.length + 1), (step * job.length, step))

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.view[indices].astype(np.int64))


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        data = Windows(folder, job)
        random = RandomSampler(data, generator=torch.Generator().manual_seed(job.seed))
        self.loader = DataLoader(
            data,
            batch_size=None,
            sampler=BatchSampler(random, job.rows, drop_last=True),
            num_workers=job.workers,
            persistent_workers=job.workers > 0,
        )

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield batch[:, :-1], batch[:, 1:]
