"""LanceDB: a table of token rows, `StreamingDataset` and `StreamingDataLoader`."""

import tempfile
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import torch
from lancedb.permutation import permutation_builder
from lancedb.streaming import StreamingDataLoader, StreamingDataset
from tokens import Job, Tokens

PACKAGES = ("lancedb", "pylance", "torch")
SETTINGS = (
    "table of T+1 uint16 a row, StreamingDataset(num_splits=12, so that 1, 2, 3, 4, 6 or 12 ranks fit), "
    "transform to int64 tensors by record batch, StreamingDataLoader"
)
OVERLAP = 0
SPLITS = 12


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    width, n = job.length + 1, tokens.num_windows(job.length, 0)
    values = pa.array(tokens.values[: n * width])
    table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(values, width)})
    lancedb.connect(str(folder / "lance")).create_table("tokens", table)


def to_tensors(batch: pa.RecordBatch) -> Any:
    column = batch.column("tokens")
    return torch.from_numpy(column.flatten().to_numpy().reshape(len(column), -1).astype(np.int64))


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        self.table = lancedb.connect(str(folder / "lance")).open_table("tokens")
        self.job = job
        state = job.state and (
            StreamingDataset.merge_state_dicts(list(job.states)) if len(job.states) > 1 else job.state
        )
        self.epoch = state["epoch"] if state else 0
        self._open()
        if state:
            self.data.load_state_dict(state)

    def _open(self) -> None:
        job = self.job
        self.data = StreamingDataset(
            self.table,
            num_splits=SPLITS,
            shuffle_seed=job.seed,
            epoch=self.epoch,
            rank=job.rank,
            world_size=job.world_size,
            columns=["tokens"],
            transform=to_tensors,
        )
        options = {"multiprocessing_context": "forkserver"} if job.workers else {}
        self.loader = StreamingDataLoader(self.data, batch_size=job.rows, num_workers=job.workers, **options)

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield batch[:, :-1], batch[:, 1:]
        self.epoch += 1
        self._open()

    def state(self) -> Any:
        return self.data.state_dict()


def order(n: int, epoch: int, count: int) -> Any:
    """As `StreamingDataset` plans it: one sample of every split in turn. The table it plans for is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table("rows", pa.table({"x": np.zeros(n, np.uint8)}))
        planned = permutation_builder(table).split_random(fixed=SPLITS, seed=1234 + epoch).execute()
        rows = planned.to_arrow().column("row_id").to_numpy()
    return rows.reshape(SPLITS, -1).T.reshape(-1)[:count]
