"""grain: a random-access source over a memory map, globally shuffled, batched, iterated."""

from pathlib import Path
from typing import Any

import grain
import numpy as np
from grain.experimental import ElasticIterator, index_shuffle
from tokens import Job, Tokens

PACKAGES = ("grain", "numpy")
SETTINGS = (
    "MapDataset.source(memmap).seed().shuffle().repeat(), ElasticIterator(global batch, shards), "
    "with multiprocessing where there are workers; NumPy int64"
)
OVERLAP = 1


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    (folder / "tokens.bin").symlink_to(tokens.path.resolve())


class Windows:
    """grain's RandomAccessDataSource."""

    def __init__(self, path: Path, length: int) -> None:
        self._tokens = np.memmap(path, np.uint16, mode="r")
        self._length = length

    def __len__(self) -> int:
        return (self._tokens.size - 1) // self._length

    def __getitem__(self, index: Any) -> Any:
        start = int(index) * self._length
        return self._tokens[start : start + self._length + 1].astype(np.int64)

    def __repr__(self) -> str:
        return "Windows"


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        data = grain.MapDataset.source(Windows(folder / "tokens.bin", job.length)).seed(job.seed).shuffle().repeat()
        self.iterator = iter(
            ElasticIterator(
                data,
                job.rows * job.world_size,
                grain.sharding.ShardOptions(job.rank, job.world_size),
                multiprocessing_options=grain.MultiprocessingOptions(num_workers=job.workers) if job.workers else None,
            )
        )
        if job.state is not None:
            self.iterator.set_state(job.state)

    def __iter__(self) -> Any:
        for batch in self.iterator:
            yield batch[:, :-1], batch[:, 1:]

    def state(self) -> Any:
        return self.iterator.get_state()


def order(n: int, epoch: int, count: int) -> Any:
    """As `ShuffleMapDataset` computes it."""
    return [index_shuffle(i, max_index=n - 1, seed=1234 + epoch, rounds=4) for i in range(count)]
