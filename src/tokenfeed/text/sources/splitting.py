"""Which documents are train and which are val: one rule for `stream`, `prepare` and `train-tokenizer`.

`val` is a share of the documents, chosen by a hash of their text; or files, by name or pattern; or "last", the last
file; or None. A file whose name, folder or `files.json` says that it is for validation or for tests is never train, and
where one says val, the share is 0: the data has its split already.
"""

import fnmatch
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenfeed.errors import ArgumentError, NotFoundError, quantity
from tokenfeed.text.sources.finding import ENDINGS, Found, PathLike
from tokenfeed.text.sources.stored import shown

__all__ = ["HASHED_CHARACTERS", "Splits", "Val", "choose_splits", "is_val", "named_split"]

Val = float | PathLike | Sequence[PathLike] | None

HASHED_CHARACTERS = 4096
_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}


class Keyed(Protocol):
    """A document that is no text, such as a conversation."""

    @property
    def key(self) -> str:
        """The text that its split follows from."""


def is_val(text: str | bytes | Keyed, fraction: float, seed: int = 0) -> bool:
    """Whether a document is in `val`. Depends on its first 4,096 characters alone, wherever it lies. About 3 µs."""
    if fraction == 0:
        return False
    if isinstance(text, bytes):
        text = text[: 4 * HASHED_CHARACTERS].decode(errors="ignore")  # the last character may be cut
    data = (text if isinstance(text, str) else text.key)[:HASHED_CHARACTERS].encode("utf8", "surrogatepass")
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "little") < fraction * 2**64


@dataclass(frozen=True)
class Splits:
    """The split of every file, and of the documents in `train` files."""

    files: tuple[str | None, ...]
    """"train", "val" or "test" for each file; None for one that is in no split."""
    fraction: float
    """Share of the documents of `train` files that are val, by `is_val`."""
    takes_train: bool = False
    """Whether `val` names files that would be train without it."""

    def pick(self, found: Sequence[Found], split: str, *, to_prepare: bool = False) -> list[Found]:
        """The files that hold documents of a split: "train", "val" or "all". There must be some.

        `to_prepare` is for advice: `prepare` has no `split`, and takes files of all splits.
        """
        if split not in ("train", "val", "all"):
            raise ArgumentError(f"split is {split!r}; it must be 'train', 'val' or 'all'")
        wanted = {"train" if self.fraction else split, split}
        chosen = [file for file, its in zip(found, self.files, strict=True) if split == "all" or its in wanted]
        if chosen:
            return chosen
        if split == "val":
            raise NotFoundError(
                f"nothing is held out for split 'val': no name of the {quantity(len(found), 'file')} says val. Hold "
                "out a share of the documents (val=0.001), the last file (val='last'), or files by name (val='part-9*')"
            )
        if self.takes_train:
            raise NotFoundError(
                f"no file is left for split 'train': val holds out {shown(found[self.files.index('val')].path)}, and "
                "leaves no other. Hold out a share of the documents (val=0.001), fewer files, or nothing (val=None)"
            )
        way_out = (
            "Leave val out: files are then in the splits that their names say"
            if to_prepare
            else "Rename the files, or give others; for a stream, split='all' reads all files"
        )
        raise NotFoundError(
            f"no file is left for split 'train': {shown(found[0].path)} is not train, by its name, its folder or a "
            f"files.json, whatever val is. {way_out}"
        )


def choose_splits(found: Sequence[Found], val: Val) -> Splits:
    """The splits that `val` makes of these files."""
    said = [file.listed or named_split(file) for file in found]
    if val is None or isinstance(val, int | float):
        fraction = _check_fraction(val or 0)
        return Splits(tuple(split or "train" for split in said), 0.0 if "val" in said else fraction)
    chosen = _matching(found, val)
    others = ("train" if split in (None, "train") else "test" if split == "test" else None for split in said)
    files = tuple("val" if number in chosen else split for number, split in enumerate(others))
    return Splits(files, 0.0, any(said[number] in (None, "train") for number in chosen))


def named_split(file: Found) -> str | None:
    """The split that the first or last word of a file's name is, or all of its folder's name.

    `train-00000-of-00010.parquet`, `c4-validation.0007.json.gz`, `pile.test.jsonl`, `val/part-0.parquet`
    """
    *folders, name = shown(file.path).split("/")
    stem = next((name.removesuffix(one) for one in sorted(ENDINGS, key=len) if name.endswith(one)), Path(name).stem)
    words = [word for word in re.split("[^a-z]+", stem.lower()) if word not in ("", "of")]
    found = {_WORDS.get(word) for word in (words[:1] + words[-1:])}
    for split in ("test", "val", "train"):
        if split in found:
            return split
    inside = len(file.name.split("/"))  # folders below the one that all files share, and that one
    return next((_WORDS[folder] for folder in reversed(folders[-inside:]) if folder in _WORDS), None)


def _check_fraction(value: float) -> float:
    if isinstance(value, bool) or not 0 <= value < 1:
        raise ArgumentError(f"val is {value}; a share of the documents must be at least 0 and below 1")
    return float(value)


def _matching(found: Sequence[Found], val: PathLike | Sequence[PathLike]) -> set[int]:
    """Numbers of the files that `val` names."""
    if val == "last":
        return {len(found) - 1}
    numbers: set[int] = set()
    for pattern in [os.fspath(one) for one in ([val] if isinstance(val, str | os.PathLike) else val)]:
        matches = {number for number, file in enumerate(found) if _matches(file, pattern)}
        if not matches:
            raise ArgumentError(f"val: no file is called {pattern!r}; the first of {len(found):,} is {found[0].name}")
        numbers |= matches
    return numbers


def _matches(file: Found, pattern: str) -> bool:
    names = file.name, file.name.rpartition("/")[2], shown(file.path)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)
