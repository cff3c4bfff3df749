"""torch's DataLoader over a memory map, one window a `__getitem__`."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokens import Job, Tokens
from torch.utils.data import DataLoader, Dataset, RandomSampler

PACKAGES = ("torch", "numpy")
SETTINGS = "map-style Dataset over np.memmap, DataLoader(shuffle=True, drop_last=True), default collate"
OVERLAP = 1


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    (folder / "tokens.bin").symlink_to(tokens.path.resolve())


class Windows(Dataset[Any]):
    def __init__(self, folder: Path, job: Job) -> None:
        self.tokens = np.memmap(folder / "tokens.bin", np.uint16, mode="r")
        self.length = job.length

    def __len__(self) -> int:
        return (self.tokens.size - 1) // self.length

    def __getitem__(self, index: int) -> Any:
        start = index * self.length
        return torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        data = Windows(folder, job)
        self.loader = DataLoader(
            data,
            job.rows,
            shuffle=True,
            drop_last=True,
            num_workers=job.workers,
            persistent_workers=job.workers > 0,
            generator=torch.Generator().manual_seed(job.seed),
        )

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield batch[:, :-1], batch[:, 1:]


def order(n: int, epoch: int, count: int) -> Any:
    """As the DataLoader asks for it."""
    sampler = RandomSampler(range(n), generator=torch.Generator().manual_seed(1234 + epoch))
    return list(islice(sampler, count))
