"""OLMo-core: a raw `.npy` file, NumpyFSLDataset, its data loader."""

from pathlib import Path
from typing import Any

import numpy as np
from group import join
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.data.utils import get_rng
from tokens import EOS, Job, Tokens

PACKAGES = ("ai2-olmo-core", "torch")
SETTINGS = (
    "raw uint16 file, NumpyFSLDatasetConfig(sequence_length=T+1), NumpyDataLoaderConfig with its own number "
    "of threads, "
    "order file on disk by reshuffle()"
)
OVERLAP = 0


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    (folder / "tokens.npy").symlink_to(tokens.path.resolve())


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        join(job)
        width = job.length + 1
        data = NumpyFSLDatasetConfig(
            tokenizer=TokenizerConfig(vocab_size=65_536, eos_token_id=EOS, pad_token_id=EOS),
            paths=[str(folder / "tokens.npy")],
            sequence_length=width,
            dtype=NumpyDatasetDType.uint16,
            work_dir=str(folder / "work"),
        ).build()
        self.loader = NumpyDataLoaderConfig(
            global_batch_size=job.rows * job.world_size * width,
            seed=job.seed,
            num_workers=job.workers,
            work_dir=str(folder / "work"),
            target_device_type="cpu",
        ).build(data)
        self.resumed = job.state is not None
        if self.resumed:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        self.loader.reshuffle(self.loader.epoch if self.resumed else None)
        self.resumed = False
        for batch in self.loader:
            tokens = batch["input_ids"]
            yield tokens[:, :-1], tokens[:, 1:]
        self.loader.reset()

    def state(self) -> Any:
        return self.loader.state_dict()


def order(n: int, epoch: int, count: int) -> Any:
    """As its loader makes the order, without the file it then writes."""
    indices = np.arange(n, dtype=np.uint32)
    get_rng(1234 + 1 + epoch).shuffle(indices)
    return indices[:count]
