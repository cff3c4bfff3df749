"""Megatron-core: `.idx` and `.bin`, GPTDataset by its builder, sampled as Megatron-LM's training loop does."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from consumed import ConsumedSampler
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, _build_shuffle_index
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tokens import EOS, Job, Tokens
from torch.utils.data import DataLoader

PACKAGES = ("megatron-core", "torch")
SETTINGS = (
    "IndexedDatasetBuilder(uint16), GPTDataset of one epoch by BlendedMegatronDatasetBuilder, "
    "create_attention_mask=False, "
    "index cached on disk, torch's DataLoader in order of consumed samples"
)
OVERLAP = 1


class Tokenizer:
    """What GPTDataset asks of a tokenizer."""

    vocab_size = 65_536
    eod = EOS
    pad = None

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"class": "bench"}


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    values = tokens.values
    builder = IndexedDatasetBuilder(str(folder / "tokens.bin"), dtype=np.uint16)
    start = 0
    for end in tokens.ends.tolist():
        builder.add_document(torch.from_numpy(values[start:end].astype(np.int32)), [end - start])
        start = end
    builder.finalize(str(folder / "tokens.idx"))


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        config = GPTDatasetConfig(
            random_seed=job.seed,
            sequence_length=job.length,
            blend=([str(folder / "tokens")], None),
            split="1,0,0",
            path_to_cache=str(folder / "cache"),
            tokenizer=Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        builder = BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config)
        data = builder.build()[0]
        self.job = job
        self.sampler = ConsumedSampler(len(data), job)
        self.loader = DataLoader(
            data, batch_sampler=self.sampler, num_workers=job.workers, persistent_workers=job.workers > 0
        )

    def __iter__(self) -> Any:
        for batch in self.loader:
            self.sampler.consumed += self.job.rows * self.job.world_size
            yield batch["tokens"], batch["labels"]
        self.sampler.consumed = 0

    def state(self) -> int:
        return self.sampler.consumed


def order(n: int, epoch: int, count: int) -> Any:
    """The shuffle index alone: documents are shuffled, and samples cut from them, before."""
    return _build_shuffle_index(n, n, np.random.RandomState(1234 + epoch))[:count]
