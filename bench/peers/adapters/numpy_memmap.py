"""A page of NumPy: what somebody writes who needs no library. A permutation an epoch, whole batches by one index."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokens import Job, Tokens

PACKAGES = ("numpy", "torch")
SETTINGS = (
    "np.memmap, default_rng(seed + epoch).permutation(n), view[indices].astype(int64); state is the sample number"
)
OVERLAP = 1


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    (folder / "tokens.bin").symlink_to(tokens.path.resolve())


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        tokens = np.memmap(folder / "tokens.bin", np.uint16, mode="r")
        n = (tokens.size - 1) // job.length
        step = tokens.strides[0]
        self.view = np.lib.stride_tricks.as_strided(tokens, (n, job.length + 1), (step * job.length, step))
        self.job = job
        self.done = job.state or 0

    def __iter__(self) -> Any:
        job, n = self.job, len(self.view)
        step = job.rows * job.world_size
        while True:
            epoch, at = divmod(self.done, n)
            permutation = np.random.default_rng(job.seed + epoch).permutation(n)
            while at + step <= n:
                indices = permutation[at + job.rank : at + step : job.world_size]
                batch = torch.from_numpy(self.view[indices].astype(np.int64))
                at += step
                self.done += step
                yield batch[:, :-1], batch[:, 1:]
            self.done = (epoch + 1) * n

    def state(self) -> int:
        return self.done


def order(n: int, epoch: int, count: int) -> Any:
    return np.random.default_rng(1234 + epoch).permutation(n)[:count]
