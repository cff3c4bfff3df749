"""tokenfeed, by its public API."""

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokens import LENGTH, ROWS, Job, Tokens

import tokenfeed

PACKAGES = ("tokenfeed", "torch", "numba")
SETTINGS = "store of uint16, windows(T), Loader(prefetch=0 without workers; workers are threads)"
OVERLAP = 1
BACKEND = "pread"


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    with tokenfeed.Writer(folder / "store", columns={"tokens": "uint16"}, spans={"documents": "bytes"}) as writer:
        starts = np.append(0, tokens.ends)
        writer.append({"tokens": tokens.values}, lengths=np.diff(starts).tolist(), documents=[b""] * tokens.ends.size)


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        view = tokenfeed.open(folder / "store", backend=BACKEND).windows(job.length)
        self.loader = tokenfeed.Loader(
            view,
            job.rows,
            seed=job.seed,
            rank=job.rank,
            world_size=job.world_size,
            **({"threads": job.workers} if job.workers else {"prefetch": 0}),
        )
        if job.state is not None:
            self.loader.load_state_dict(job.state)

    def __iter__(self) -> Any:
        for batch in self.loader:
            tokens = torch.from_numpy(batch.tokens).long()
            yield tokens[:, :-1], tokens[:, 1:]

    def state(self) -> Any:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()


def order(n: int, epoch: int, count: int) -> Any:
    return tokenfeed.Permutation(n, seed=1234, epoch=epoch)(np.arange(count))


def breakdown(folder: str) -> dict[str, float]:
    """Where the time of a batch goes, in µs, and that of the first, in s: what our place in the tables is due to."""
    began = time.perf_counter()
    view = tokenfeed.open(Path(folder) / "store", backend=BACKEND).windows(LENGTH)
    opened = time.perf_counter() - began
    first, again = _first_batch(view), _first_batch(view)
    order = tokenfeed.Permutation(len(view))(np.arange(len(view)))
    batches = [order[at : at + ROWS] for at in range(0, len(view) - ROWS, ROWS)]
    buffer = np.zeros(ROWS * view.sample_bytes, np.uint8)
    read = _microseconds(lambda indices: view.read(indices, allocate=lambda _: buffer), batches)
    loader = iter(tokenfeed.Loader(view, ROWS, prefetch=0))
    whole = _microseconds(lambda _: next(loader), batches)
    return {"open": opened, "first": first, "again": again, "read": read, "whole": whole}


def _first_batch(view: Any) -> float:
    began = time.perf_counter()
    next(tokenfeed.Loader(view, ROWS, prefetch=0))
    return time.perf_counter() - began


def _microseconds(call: Any, batches: list[Any]) -> float:
    times = []
    for batch in [*batches, *batches]:  # the first time, pages of a map are found
        began = time.perf_counter()
        call(batch)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[len(batches) :])
