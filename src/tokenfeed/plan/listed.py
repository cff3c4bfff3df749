"""`Listed`: an order that lies in a file: a curriculum, or the order of another system."""

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, PlanMismatchError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.local import replace_bytes
from tokenfeed.types import Ints

__all__ = ["Listed"]

_PROBES = 64
"""Entries by which a file is known again: all of them would be read otherwise."""


class Listed:
    """Samples in the order in which a `.npy` lists their numbers: `Loader(view, 32, shuffle=Listed("order.npy"))`.

    Every epoch has this order, and the samples that are not listed never come. `Listed.write` makes the file, and
    beside it the same numbers sorted (`order.sorted.npy`), their places (`order.places.npy`) and what checks them
    (`order.json`). All are memory-mapped: opening takes a millisecond at any size, `place` a binary search.

    >>> Listed.write("order.npy", np.argsort(difficulty))  # a curriculum
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _check_name(path)
        try:
            known = json.loads(_beside(self.path, ".json").read_bytes())
            self.size, self.most, self.digest = int(known["samples"]), int(known["most"]), str(known["digest"])
            """How many samples are listed, the largest number among them, and a checksum of all."""
            probe = known["probe"]
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{self.path} has no index beside it: Listed.write({str(self.path)!r}, np.load(…)) makes it",
                filename=str(self.path),
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"its .json ({error})") from error
        if _probe(self._samples) != probe:
            raise self._damaged("its numbers, which are others")

    @classmethod
    def write(cls, path: str | os.PathLike[str], samples: npt.ArrayLike) -> "Listed":
        """Write sample numbers and their index. O(n log n), in memory; a sample that is listed twice is refused."""
        path, given = _check_name(path), np.asarray(samples)
        if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size or given.min() < 0:
            raise ArgumentError(
                f"samples is an array of {given.dtype} with shape {given.shape}; expected the numbers of samples, at "
                "least one, from 0 on"
            )
        most = int(given.max())
        listed = given.astype(np.min_scalar_type(most))
        places = np.argsort(listed, kind="stable").astype(np.min_scalar_type(listed.size))
        ordered = listed[places]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if twice.size:
            first, second = places[twice[0]], places[twice[0] + 1]
            raise ArgumentError(f"sample {ordered[twice[0]]} is listed twice, at {first} and {second}")
        digest = checksum(f"{most}:".encode() + listed.astype("<i8").tobytes())
        known = {"samples": int(listed.size), "most": most, "digest": digest, "probe": _probe(listed)}
        for end, array in ((".sorted.npy", ordered), (".places.npy", places), (".npy", listed)):
            _save(_beside(path, end), array)
        replace_bytes(_beside(path, ".json"), json.dumps(known).encode())
        return cls(path)

    @cached_property
    def _samples(self) -> npt.NDArray[Any]:
        return self._open(".npy")

    @cached_property
    def _sorted(self) -> npt.NDArray[Any]:
        return self._open(".sorted.npy")

    @cached_property
    def _places(self) -> npt.NDArray[Any]:
        return self._open(".places.npy")

    def _open(self, end: str) -> npt.NDArray[Any]:
        path = _beside(self.path, end)
        try:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        except FileNotFoundError as error:
            raise NotFoundError(f"{path} is gone: Listed.write makes it again", filename=str(path)) from error
        except (ValueError, OSError) as error:
            raise self._damaged(f"{path} ({error})") from error
        if array.shape != (self.size,) or array.dtype.kind not in "iu":
            raise self._damaged(f"{path}, which holds {array.dtype} with shape {array.shape}")
        return array

    def at(self, places: Ints) -> Ints:
        samples = self._samples[places].astype(np.int64)
        if samples.size and not (samples.min() >= 0 and samples.max() <= self.most):
            raise self._damaged("a number in it")
        return samples

    def place(self, samples: Ints) -> Ints:
        ordered = self._sorted
        is_there = (samples >= 0) & (samples <= self.most)
        known = np.where(is_there, samples, 0).astype(ordered.dtype)  # NumPy would copy the file to another dtype
        rows = np.minimum(np.searchsorted(ordered, known), self.size - 1)
        is_there &= ordered[rows] == known
        places = np.where(is_there, self._places[rows].astype(np.int64), 0)
        if places.size and not (places.min() >= 0 and places.max() < self.size):
            raise self._damaged("a place in its index")
        if (self._samples[places][is_there] != known[is_there]).any():
            raise self._damaged("its index, which is of other numbers")
        places[~is_there] = -1
        return places

    def check_fits(self, num_samples: int) -> None:
        """Refuse a list of samples that a source does not have."""
        if self.most >= num_samples:
            raise ArgumentError(f"{self.path} lists sample {self.most:,}; the view has {num_samples:,}")

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"the order in {self.path} cannot be used for {what}: Listed.write makes it again")

    def __reduce__(self) -> Any:
        return Listed, (self.path,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Listed({str(self.path)!r})"

    def to_json(self) -> dict[str, str]:
        return {"path": str(self.path.absolute()), "digest": self.digest}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> "Listed":
        found = cls(value["path"])
        if found.digest != value["digest"]:
            raise PlanMismatchError(
                f"{found.path} lists another order than when the run began; put that one there again"
            )
        return found


def _check_name(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    if found.suffix != ".npy":
        raise ArgumentError(f"the file of an order is a .npy, not {str(path)!r}")
    return found


def _beside(path: Path, end: str) -> Path:
    return path.with_suffix(end)


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    """Whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _probe(samples: npt.NDArray[Any]) -> str:
    chosen = samples[:: max(1, samples.size // _PROBES)]
    return checksum(np.concatenate([chosen, samples[-1:]]).astype("<i8").tobytes())
