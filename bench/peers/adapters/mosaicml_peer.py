"""MosaicML streaming: MDS shards, `StreamingDataset` and `StreamingDataLoader`."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

# Its image classes import torchvision, which does not work with torch for CPUs alone. Tokens need none of it.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
sys.modules["torchvision.datasets"].VisionDataset = object

from group import join  # noqa: E402
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.base.shuffle import get_shuffle  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402
from tokens import LENGTH, Job, Tokens  # noqa: E402

PACKAGES = ("mosaicml-streaming", "torch")
SETTINGS = (
    "MDS, one ndarray:uint16 column of T+1 tokens a sample, StreamingDataset(shuffle=True: py1e), StreamingDataLoader"
)
OVERLAP = 0
_SHARD_BYTES = 1 << 26  # MDSWriter's own


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    width, values = job.length + 1, tokens.values
    with MDSWriter(out=str(folder / "mds"), columns={"tokens": f"ndarray:uint16:{width}"}) as writer:
        for number in range(tokens.num_windows(job.length, 0)):
            writer.write({"tokens": np.array(values[number * width : (number + 1) * width])})


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        join(job)
        clean_stale_shared_memory()
        data = StreamingDataset(
            local=str(folder / "mds"),
            shuffle=True,
            shuffle_seed=job.seed,
            batch_size=job.rows,
            allow_unsafe_types=False,
        )
        self.loader = StreamingDataLoader(data, batch_size=job.rows, num_workers=job.workers, drop_last=True)
        if job.state is not None:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for batch in self.loader:
            wide = batch["tokens"].to(torch.int64)
            yield wide[:, :-1], wide[:, 1:]

    def state(self) -> Any:
        return self.loader.state_dict()


def order(n: int, epoch: int, count: int) -> Any:
    """Of shards as large as its writer makes them."""
    samples = _SHARD_BYTES // (2 * (LENGTH + 1))
    sizes = np.full(-(-n // samples), samples, np.int64)
    sizes[-1] = n - (sizes.size - 1) * samples
    block = max(4_000_000, 1 << 18)  # StreamingDataset's choice for one canonical node
    return get_shuffle("py1e", sizes, 1, 1234, epoch, block)[:count]
