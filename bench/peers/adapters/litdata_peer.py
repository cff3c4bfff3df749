"""litdata: chunks written by `optimize`, read by `StreamingDataset` with `TokensLoader`."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from group import join
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from tokens import Job, Tokens

PACKAGES = ("litdata", "torch")
SETTINGS = (
    "optimize(chunk_size=(T+1)·8012 tokens, TokensLoader), StreamingDataset(shuffle=True, drop_last=True, "
    "TokensLoader(T+1)), StreamingDataLoader"
)
OVERLAP = 0
_CHUNK_BLOCKS = 8012  # of litdata's own example for LLM pre-training


def _documents(path: Path, bounds: tuple[int, int]) -> Any:
    tokens = Tokens(path)
    values, ends = tokens.values, tokens.ends
    starts = np.append(0, ends[:-1])
    for number in range(*bounds):
        yield torch.from_numpy(values[starts[number] : ends[number]].copy())


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    blocks = min(_CHUNK_BLOCKS, tokens.num_windows(job.length, 0) // 12)
    optimize(
        fn=partial(_documents, tokens.path),
        inputs=[(0, tokens.ends.size)],
        output_dir=str(folder / "chunks"),
        chunk_size=blocks * (job.length + 1),
        item_loader=TokensLoader(),
        num_workers=1,
        verbose=False,
    )


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        join(job)
        data = StreamingDataset(
            str(folder / "chunks"),
            item_loader=TokensLoader(block_size=job.length + 1),
            shuffle=True,
            drop_last=True,
            seed=job.seed,
        )
        self.loader = StreamingDataLoader(
            data, batch_size=job.rows, num_workers=job.workers, drop_last=True, persistent_workers=job.workers > 0
        )
        if job.state is not None:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for batch in self.loader:
            wide = batch.to(torch.int64)
            yield wide[:, :-1], wide[:, 1:]

    def state(self) -> Any:
        return self.loader.state_dict()
