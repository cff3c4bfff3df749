"""tokenfeed's streaming road with its default engine."""

from pathlib import Path
from typing import Any

import torch
from tokens import Job

import tokenfeed
import tokenfeed.torch

PACKAGES = ("tokenfeed", "torch")
SETTINGS = (
    "stream(packing='best_fit', overflow='split', threads=2), to_device('cpu') with int64 inputs, engine tokenfeed"
)
OVERLAP = 0
ENGINE = "tokenfeed"


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        tokenizer = tokenfeed.Tokenizer.load(folder / "tokenizer.json", engine=ENGINE)
        self.feed = tokenfeed.stream(
            folder,
            tokenizer,
            batch_size=job.rows,
            length=job.length,
            threads=2,
            rank=job.rank,
            world_size=job.world_size,
        )
        if job.state is not None:
            self.feed.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for batch in tokenfeed.torch.to_device(self.feed, "cpu", dtypes={"inputs": torch.int64}):
            yield batch.inputs, batch.targets

    def state(self) -> Any:
        return self.feed.state_dict()

    def close(self) -> None:
        self.feed.close()
