"""torchtitan's own text dataset: a token buffer a rank, behind its stateful data loader."""

from pathlib import Path
from typing import Any

from datasets import load_dataset
from tokens import Job
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataset
from vocabulary import load_encoding

PACKAGES = ("torchtitan", "datasets", "tiktoken", "torch")
SETTINGS = "HuggingFaceTextDataset over streaming Parquet, one document a call of the tokenizer, StatefulDataLoader"
OVERLAP = 0


class Tokenizer:
    """What torchtitan asks of a tokenizer, done by tiktoken."""

    def __init__(self, folder: Path) -> None:
        self.encoding, self.bos = load_encoding(folder)

    def encode(self, text: str, *, add_bos: bool, add_eos: bool) -> list[int]:
        return [self.bos, *self.encoding.encode_ordinary(text), self.bos]


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        path = str(folder / "0.parquet")
        DATASETS["bench"] = DatasetConfig(
            path=path,
            loader=lambda path: load_dataset("parquet", data_files=path, split="train", streaming=True),
            sample_processor=lambda sample: sample["text"],
        )
        data = HuggingFaceTextDataset(
            "bench", path, Tokenizer(folder), job.length, job.rank, job.world_size, infinite=True
        )
        self.loader = StatefulDataLoader(data, batch_size=job.rows, num_workers=job.workers)
        if job.state is not None:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for inputs, labels in self.loader:
            yield inputs["input"], labels

    def state(self) -> Any:
        return self.loader.state_dict()
