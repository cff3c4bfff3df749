"""grain: documents from Parquet, encoded by map, packed by its first-fit packer."""

from pathlib import Path
from typing import Any

import grain
import numpy as np
from tokens import Job
from vocabulary import load_encoding

PACKAGES = ("grain", "tiktoken", "numpy")
SETTINGS = (
    "grain.experimental.ParquetIterDataset, map(encode and cut to T+1), FirstFitPackIterDataset(length T+1, 32 bins), "
    "batch; rows are padded; NumPy int64"
)
OVERLAP = 0


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        encoding, bos = load_encoding(folder)
        width = job.length + 1

        def encode(row: Any) -> Any:
            ids = encoding.encode_ordinary(row["text"])
            return {"tokens": np.array([bos, *ids][:width], np.int64)}

        data = grain.experimental.ParquetIterDataset(str(folder / "0.parquet")).map(encode)
        packed = grain.experimental.FirstFitPackIterDataset(
            data, length_struct={"tokens": width}, num_packing_bins=job.rows
        )
        self.iterator = iter(packed.batch(job.rows, drop_remainder=True))
        self.data = packed
        self.rows = job.rows
        if job.state is not None:
            self.iterator.set_state(job.state)

    def __iter__(self) -> Any:
        for batch in self.iterator:
            tokens = batch["tokens"]
            yield tokens[:, :-1], tokens[:, 1:]
        self.iterator = iter(self.data.batch(self.rows, drop_remainder=True))

    def state(self) -> Any:
        return self.iterator.get_state()
