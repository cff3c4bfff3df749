"""Hugging Face datasets: Arrow rows, torch format, torchdata's StatefulDataLoader."""

from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
from datasets.distributed import split_dataset_by_node
from tokens import Job, Tokens
from torch.utils.data import RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

PACKAGES = ("datasets", "torchdata", "torch", "pyarrow")
SETTINGS = (
    "Arrow rows of T+1 uint16, load_from_disk, split_dataset_by_node, with_format('torch'), "
    "StatefulDataLoader(shuffle=True, drop_last=True); its state is that of one rank: all get that of rank 0"
)
OVERLAP = 0


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    width = job.length + 1
    values = pa.array(tokens.values[: tokens.num_windows(job.length, 0) * width])
    table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(values, width)})
    datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(str(folder / "arrow"))


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        torch.manual_seed(job.seed)
        data = datasets.load_from_disk(str(folder / "arrow")).with_format("torch")
        if job.world_size > 1:
            data = split_dataset_by_node(data, job.rank, job.world_size)
        self.loader = StatefulDataLoader(
            data,
            batch_size=job.rows,
            shuffle=True,
            drop_last=True,
            num_workers=job.workers,
            persistent_workers=job.workers > 0,
        )
        if job.state is not None:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for batch in self.loader:
            tokens = batch["tokens"].to(torch.int64)
            yield tokens[:, :-1], tokens[:, 1:]

    def state(self) -> Any:
        return self.loader.state_dict()


def order(n: int, epoch: int, count: int) -> Any:
    """As the StatefulDataLoader asks for it."""
    sampler = RandomSampler(range(n), generator=torch.Generator().manual_seed(1234 + epoch))
    return list(islice(sampler, count))
