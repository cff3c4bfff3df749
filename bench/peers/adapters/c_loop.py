"""The limit: a loop in C that does nothing but copy and widen, into memory that it uses again."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokens import Job, Tokens

PACKAGES = ("numpy", "torch")
SETTINGS = (
    "gcc -O3 -march=native over a mapped file, a batch a call (16 for threads, which workers are) into the same "
    "memory, order made beforehand"
)
OVERLAP = 1
_BATCHES = 16  # what starting threads is worth


def write(tokens: Tokens, folder: Path, job: Job) -> None:
    (folder / "tokens.bin").symlink_to(tokens.path.resolve())
    gcc = shutil.which("gcc")
    if gcc is None:
        raise OSError("gcc is needed for the C loop, and is not there")
    source = Path(__file__).with_name("limit.c")
    library = folder / "limit.so"
    command = [gcc, "-O3", "-march=native", "-shared", "-fPIC", "-pthread", str(source), "-o", str(library)]
    subprocess.run(command, check=True)


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        self.fill = ctypes.CDLL(str(folder / "limit.so")).fill
        self.tokens = np.memmap(folder / "tokens.bin", np.uint16, mode="r")
        n = (self.tokens.size - 1) // job.length
        self.starts = np.random.default_rng(job.seed).permutation(n) * job.length
        self.job = job
        batches = _BATCHES if job.workers > 1 else 1
        self.out = np.zeros((batches * job.rows, job.length + 1), np.int64)

    def __iter__(self) -> Any:
        job, rows = self.job, len(self.out)
        batches = torch.from_numpy(self.out).split(job.rows)
        for at in range(0, self.starts.size - rows + 1, rows):
            failed = self.fill(
                ctypes.c_void_p(self.tokens.ctypes.data),
                ctypes.c_void_p(self.starts[at:].ctypes.data),
                ctypes.c_int64(rows),
                ctypes.c_int64(job.length + 1),
                ctypes.c_int(max(1, job.workers)),
                ctypes.c_void_p(self.out.ctypes.data),
            )
            if failed:
                raise OSError("the C loop could not start its threads")
            for batch in batches:
                yield batch[:, :-1], batch[:, 1:]
