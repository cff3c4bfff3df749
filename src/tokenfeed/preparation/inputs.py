"""The files that are prepared, and the slices they are cut into: one slice is one task."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError
from tokenfeed.preparation.tokens import TokenFile
from tokenfeed.text.sources.files import open_text
from tokenfeed.text.sources.finding import ENDINGS, find_files
from tokenfeed.text.sources.memory import MemoryDocuments
from tokenfeed.text.sources.portions import Portion, Records, TextFile, TextRules
from tokenfeed.text.sources.splitting import Splits, Val, choose_splits
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["InputFile", "Slice", "cut", "find_inputs", "read_slice", "split_inputs"]


@dataclass(frozen=True)
class InputFile:
    """A file as it was found. The path is not shown, since that of a remote file can hold a signature."""

    path: str = field(repr=False)
    name: str
    """The path relative to the folder that all files have in common."""
    size: int
    digest: str
    """16 hexadecimal digits that stand for the content, wherever the file lies."""
    split: str | None = None
    """Split of its documents; `train` loses some to `val` where that is a share."""
    memory: MemoryDocuments | None = field(default=None, repr=False, compare=False)
    """Documents of this process, in the place of a file."""

    @property
    def stored(self) -> StoredFile | MemoryDocuments:
        return StoredFile(self.path) if self.memory is None else self.memory

    @property
    def fields(self) -> dict[str, Any]:
        """What is recorded: nothing that belongs to this machine or process."""
        return {"name": self.name, "size": self.size, "digest": self.digest, "split": self.split}

    @property
    def content(self) -> tuple[int, str, str | None]:
        """What it adds to a store, whatever it is called."""
        return self.size, self.digest, self.split


@dataclass(frozen=True)
class Slice:
    """A part of a file: row groups [start, stop) of Parquet, bytes [start, stop) of plain JSONL, else all its bytes.

    A line belongs to the slice in which it begins.
    """

    file: int
    number: int
    start: int
    stop: int


def find_inputs(sources: Any) -> list[InputFile]:
    """The files that `tokenfeed.stream` would read, in the same order. Two small reads a file, or one request."""
    return [_describe(file.stored, file.name) for file in find_files(sources)]


def split_inputs(sources: Any, val: Val, endings: tuple[str, ...] = ENDINGS) -> tuple[list[InputFile], Splits]:
    """The files that `find_inputs` gives, each with its split, and what `val` made of all that were found.

    Files that are in no split, because `val` names others instead, are left out. Where `val` is no share, and all files
    are train, there are no splits.
    """
    found = find_files(sources, endings)
    splits = choose_splits(found, val)
    is_share = isinstance(val, int | float)
    if val is not None and not is_share:
        splits.pick(found, "train")  # refuses to hold out everything
    names = [None] * len(found) if not is_share and {*splits.files} == {"train"} else splits.files
    taken = [(file, name) for file, name, split in zip(found, names, splits.files, strict=True) if split is not None]
    return [replace(_describe(file.stored, file.name), split=name) for file, name in taken], splits


def cut(
    file_number: int,
    file: InputFile,
    *,
    text_column: str = "text",
    slice_bytes: int = 64 << 20,
    num_ids: int | None = None,
    records: Records | None = None,
) -> list[Slice]:
    """The slices of a file, which depend on the file and `slice_bytes` alone. Reads the footer of Parquet.

    Plain JSONL is cut into equal parts of at most `slice_bytes`; Parquet into runs of row groups of at most that many
    bytes of columns, uncompressed, or of one row group; all else is one slice. With `num_ids` the column holds tokens;
    with `records`, documents are whole records.
    """
    if slice_bytes < 1:
        raise ArgumentError(f"slice_bytes is {slice_bytes}; it must be at least 1")
    bounds = _open(file.stored, text_column, num_ids, records).cut(slice_bytes)
    return [Slice(file_number, number, *bounds[number : number + 2]) for number in range(len(bounds) - 1)]


def _open(
    stored: StoredFile | MemoryDocuments, column: str, num_ids: int | None, records: Records | None
) -> TextFile | TokenFile:
    return open_text(stored, column, records) if num_ids is None else TokenFile(stored, column, num_ids)


def read_slice(
    file: InputFile,
    slice: Slice,  # noqa: A002
    rules: TextRules,
    num_ids: int | None = None,
    records: Records | None = None,
) -> Iterator[Portion]:
    """The documents of a slice, in order. All slices of a file, one after the other, give those of the file.

    Closing the iterator lets go of the file. A file that is not the one that was found, or changes while it is read, is
    a CorruptionError.
    """
    stored = file.stored
    now = _describe(stored, file.name)
    if (now.size, now.digest) != (file.size, file.digest):
        raise CorruptionError(
            f"{stored.name} has changed since it was found: it had {file.size:,} bytes and digest {file.digest}, now "
            f"{now.size:,} and {now.digest}. Start again with files that do not change."
        )
    before = stored.stamp()
    yield from _open(stored, rules.text_column, num_ids, records).read_slice(slice.start, slice.stop, rules)
    if stored.stamp() != before:
        raise CorruptionError(
            f"{stored.name} was changed while it was being read. Start again with files that do not change."
        )


def _describe(stored: StoredFile | MemoryDocuments, name: str) -> InputFile:
    if isinstance(stored, MemoryDocuments):
        return InputFile(stored.path, name, stored.stamp()[0], stored.digest, memory=stored)
    if not stored.is_remote and not Path(stored.path).exists():
        raise NotFoundError(
            f"there is no file {stored.path} (any more). If a download is to bring it, run `tokenfeed download` again: "
            "it goes on where it stopped."
        )
    return InputFile(stored.path, name, stored.stamp()[0], open_text(stored, "").digest())
