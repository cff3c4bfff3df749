"""The tokens that every contender is fed, and what it is asked to do with them. NumPy alone: peers import this."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EOS", "LENGTH", "ROWS", "Job", "Tokens", "make_numbered", "make_tokens"]

EOS = 50256
ROWS, LENGTH = 32, 2048
_MEAN_LOG, _SPREAD_LOG = 6.0, 1.2  # documents of 400 tokens in the median, 830 in the mean


@dataclass(frozen=True, slots=True)
class Job:
    """One contender's task: rows of `length` + 1 tokens, `rows` at a time, shuffled."""

    rows: int = ROWS
    length: int = LENGTH
    workers: int = 0
    rank: int = 0
    world_size: int = 1
    seed: int = 1234
    state: Any = None
    """What `Feed.state` gave in another process, or None for a fresh start."""
    states: tuple[Any, ...] = ()
    """The states of all ranks, where the world size has changed since; `state` is that of rank 0 then."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A raw uint16 file, and the end of every document in it. Documents end with EOS."""

    path: Path

    @property
    def values(self) -> npt.NDArray[np.uint16]:
        return np.memmap(self.path, np.uint16, mode="r")

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        return np.load(self.path.with_suffix(".ends.npy"))

    def num_windows(self, length: int, overlap: int) -> int:
        """How many rows of `length` + 1 tokens there are, if each shares `overlap` tokens with the next."""
        return (self.values.size - overlap) // (length + 1 - overlap)


def make_tokens(folder: Path, count: int) -> Tokens:
    """Random tokens in documents of log-normal lengths. Made once."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(_MEAN_LOG, _SPREAD_LOG, count // 200).astype(np.int64) + 2
    ends = np.cumsum(lengths)
    ends = np.append(ends[ends < count - 2], count)
    return _write(folder / f"tokens-{count}.bin", ends, lambda: rng.integers(0, EOS, count, np.uint16), eos=True)


def make_numbered(folder: Path, count: int) -> Tokens:
    """Token i is i, so that every row tells where it is from. Documents of 50 tokens."""
    ends = np.append(np.arange(50, count - 2, 50), count)
    return _write(folder / f"numbered-{count}.bin", ends, lambda: np.arange(count, dtype=np.uint16), eos=False)


def _write(path: Path, ends: npt.NDArray[np.int64], make: Any, *, eos: bool) -> Tokens:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        values = make()
        if eos:
            values[ends - 1] = EOS
        np.save(path.with_suffix(".ends.npy"), ends)
        unfinished = path.with_suffix(".part")
        values.tofile(unfinished)
        unfinished.rename(path)
    return Tokens(path)
