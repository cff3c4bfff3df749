"""Hugging Face datasets: streaming Parquet, map to tokens, map to blocks, as its guides for language models do."""

from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets.distributed import split_dataset_by_node
from tokens import Job
from torchdata.stateful_dataloader import StatefulDataLoader
from vocabulary import load_encoding

PACKAGES = ("datasets", "tiktoken", "torchdata", "torch")
SETTINGS = (
    "load_dataset('parquet', streaming=True), map(encode_ordinary_batch on 2 threads, batched), "
    "map(concatenate and cut into T+1, batched), StatefulDataLoader; the rest of every 1,000 documents is "
    "dropped, as in its guide"
)
OVERLAP = 0


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        encoding, bos = load_encoding(folder)
        width = job.length + 1

        def tokenize(rows: Any) -> Any:
            return {"ids": [[bos, *ids] for ids in encoding.encode_ordinary_batch(rows["text"], num_threads=2)]}

        def group(rows: Any) -> Any:
            ids = list(chain.from_iterable(rows["ids"]))
            return {"tokens": [ids[at : at + width] for at in range(0, len(ids) - width + 1, width)]}

        data = datasets.load_dataset("parquet", data_files=str(folder / "0.parquet"), split="train", streaming=True)
        if job.world_size > 1:
            data = split_dataset_by_node(data, job.rank, job.world_size)
        data = data.map(tokenize, batched=True, remove_columns=["text"])
        data = data.map(group, batched=True, remove_columns=["ids"]).with_format("torch")
        self.loader = StatefulDataLoader(data, batch_size=job.rows, num_workers=job.workers, drop_last=True)
        if job.state is not None:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for batch in self.loader:
            tokens = batch["tokens"].to(torch.int64)
            yield tokens[:, :-1], tokens[:, 1:]

    def state(self) -> Any:
        return self.loader.state_dict()
