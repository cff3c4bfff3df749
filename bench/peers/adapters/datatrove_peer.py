"""datatrove: a `.ds` file whose windows were shuffled when it was written, read in order, as nanotron does."""

from pathlib import Path
from typing import Any

import numpy as np
from consumed import ConsumedSampler
from datatrove.utils.dataset import DatatroveFolderDataset
from tokens import Job, Tokens
from torch.utils.data import DataLoader

PACKAGES = ("datatrove", "torch")
SETTINGS = (
    "windows shuffled once, on disk (as its context shuffler does), DatatroveFolderDataset(seq_len=T), "
    "read in order by torch's DataLoader; state is the number of samples consumed"
)
OVERLAP = 0


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    n = tokens.num_windows(job.length, 0)
    rows = tokens.values[: n * (job.length + 1)].reshape(n, -1)
    rows[np.random.default_rng(job.seed).permutation(n)].tofile(folder / "tokens.ds")


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        data = DatatroveFolderDataset(str(folder), seq_len=job.length, filename_pattern="*.ds", token_size=2)
        self.job = job
        self.sampler = ConsumedSampler(len(data), job)
        self.loader = DataLoader(
            data, batch_sampler=self.sampler, num_workers=job.workers, persistent_workers=job.workers > 0
        )

    def __iter__(self) -> Any:
        for batch in self.loader:
            self.sampler.consumed += self.job.rows * self.job.world_size
            tokens = batch["input_ids"]
            yield tokens[:, :-1], tokens[:, 1:]
        self.sampler.consumed = 0

    def state(self) -> int:
        return self.sampler.consumed
