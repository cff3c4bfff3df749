"""Which documents are train and which are val: one rule for `stream`, `prepare` and `train-tokenizer`.

`val` is a share of the documents, chosen by a hash of their text; or files, by name or pattern; or "last", the last
file; or None. A file that is called `val`, `validation`, `test` or the like, or lies in such a folder, is never train,
nor is one that a `files.json` lists as val; where one is val, the share is 0: the data has its split already. A name
that merely ends so may mean anything: it is refused unless `val` names files. With `val=()` no name counts.
"""

import fnmatch
import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn, Protocol

from tokenfeed.errors import ArgumentError, NotFoundError, quantity
from tokenfeed.text.sources.finding import ENDINGS, Found, PathLike
from tokenfeed.text.sources.stored import shown

__all__ = ["HASHED_CHARACTERS", "Splits", "Val", "choose_splits", "is_val", "named_split", "tell_held_out"]

Val = float | PathLike | Sequence[PathLike] | None

HASHED_CHARACTERS = 4096
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
    "test": "test",
}
_SHARD_NUMBER = re.compile(r"(?:[-_.]of[-_.]|[-_. \d])+(?:(?<=\d)-[0-9a-f]{16})?$")
"""-00000-of-00010, .00007-of-00008, _3, and the older -00000-of-00001-<16 digits of a checksum> of the hub."""
_SHARE = re.compile(r"(\d*\.?\d+) ?(%?)")
_LISTED = 3


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
    held_out: str = ""
    """What is not train because of names, in one line for people; empty where nothing is."""

    def pick(self, found: Sequence[Found], split: str) -> list[Found]:
        """The files that hold documents of a split: "train", "val" or "all". There must be some."""
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
        raise NotFoundError(
            f"no file is left for split 'train': {shown(found[0].path)} is held out by its name, its folder or a "
            "files.json. val=() takes all files as data"
        )


def choose_splits(found: Sequence[Found], val: Val, split: str = "train") -> Splits:
    """The splits that `val` makes of these files. Names must be clear, unless `split` is "all"."""
    fraction, chosen = 0.0, set[int]()
    if val is None or isinstance(val, int | float):
        fraction = _check_fraction(val or 0)
    elif not isinstance(val, str | os.PathLike) and not val:
        return Splits(("train",) * len(found), 0.0)
    else:
        chosen = _matching(found, val)
    named = [(file.listed, "") if file.listed or file.memory else named_split(file) for file in found]
    unclear = [number for number, (_, pattern) in enumerate(named) if pattern and number not in chosen]
    if unclear and split != "all" and (not chosen or val == "last"):
        _refuse([found[number].name for number in unclear], list({named[number][1]: None for number in unclear}))
    files = [its or "train" for its, _ in named]
    held_out = [number for number, its in enumerate(files) if its != "train" and number not in chosen]
    takes_train = any(files[number] == "train" for number in chosen)
    lost = fraction if "val" in files else 0.0
    called_val = None if chosen else "val"  # where `val` names others, a file that is called so is in no split
    splits = ("val" if number in chosen else called_val if its == "val" else its for number, its in enumerate(files))
    return Splits(tuple(splits), fraction - lost, takes_train, _tell([found[number] for number in held_out], lost))


def named_split(file: Found) -> tuple[str | None, str]:
    """The split that a file is called, or else the innermost folder that is called one. Shard numbers do not count.

    `train-00000-of-00010.parquet`, `validation.0007.json.gz`, `test_3.jsonl`, `val/part-0.parquet`

    Where a name merely ends so (`c4-validation.0007.json.gz`, `stack-dev/part-0.parquet`), None and the pattern by
    which `val` would name it. What the folder that all files share ends in says nothing about any of them.
    """
    *folders, name = shown(file.path).split("/")
    stem = next((name.removesuffix(one) for one in ENDINGS if name.endswith(one)), Path(name).stem)
    inside = file.name.split("/")  # folders below the one that all files share, and that one
    for number, part in enumerate([stem, *reversed(folders[-len(inside) :])]):
        title = _SHARD_NUMBER.sub("", part)
        *before, last = re.split(r"[\W\d_]+", title.lower())
        its = _WORDS.get(last)
        if its is not None and not before:
            return its, ""
        if its in ("val", "test") and number < len(inside):
            return None, "/".join([*inside[:-number], "*"]) if number else f"{title}{name[len(title) :][:1]}*"
    return None, ""


@cache
def tell_held_out(line: str) -> None:
    """Log what names hold out, once a process: as a warning, since other levels are shown to nobody by default."""
    if line:
        logging.getLogger("tokenfeed").warning(line)


def _tell(held_out: Sequence[Found], lost: float) -> str:
    """What files and a `lost` share are told as."""
    if not held_out:
        return ""
    by = "files.json" if all(file.listed for file in held_out) else "name"
    share = f"; val={lost:g} becomes 0, since the data has its validation files" if lost else ""
    return f"held out by {by}: {_list_some([file.name for file in held_out])}{share}"


def _list_some(names: Sequence[str]) -> str:
    more = f" and {quantity(len(names) - _LISTED, 'more file')}" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _refuse(names: Sequence[str], patterns: list[str]) -> NoReturn:
    """Refuse names that end in a word for held-out files."""
    val = repr(patterns[0] if len(patterns) == 1 else patterns)
    raise ArgumentError(
        f"{_list_some(names)}: a name that ends so may be that of validation or test files, or of data. Hold "
        f"{'it' if len(names) == 1 else 'them'} out with val={val}, or take all files as data with val=()"
    )


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
            advice = f"the first of {len(found):,} is {found[0].name}"
            if share := _SHARE.fullmatch(pattern):
                advice = f"a share is a number: val={float(share[1]) / (100 if share[2] else 1):g}"
            raise ArgumentError(f"val: no file is called {pattern!r}; {advice}")
        numbers |= matches
    return numbers


def _matches(file: Found, pattern: str) -> bool:
    names = file.name, file.name.rpartition("/")[2], shown(file.path)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)
