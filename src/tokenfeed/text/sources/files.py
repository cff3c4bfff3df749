"""`TextFiles`: an ordered list of files seen as groups of documents, whatever their format and wherever they lie."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, ReadError, quantity
from tokenfeed.storage.local import reading
from tokenfeed.text.sources.arrow import ArrowText
from tokenfeed.text.sources.finding import CHAT_ENDINGS, ENDINGS, Found, PathLike, find_files, kind_of
from tokenfeed.text.sources.jsonl import JsonlText
from tokenfeed.text.sources.memory import MemoryDocuments, MemoryText
from tokenfeed.text.sources.parquet import ParquetText
from tokenfeed.text.sources.plain import PlainText
from tokenfeed.text.sources.portions import Group, Records, TextFile, TextRules, as_str
from tokenfeed.text.sources.splitting import Splits, Val, choose_splits, is_val
from tokenfeed.text.sources.stored import StoredFile, shown

__all__ = ["TextFiles", "first_record", "open_text"]

_MAX_OPEN = 16
_HEAD_BYTES = 1 << 20
_POLL_SECONDS = 0.2

Answer = TypeVar("Answer")


def open_text(file: StoredFile | MemoryDocuments, column: str, records: Records | None = None) -> TextFile:
    """A file in the format that its name says. Opens nothing yet. With `records`, documents are whole records."""
    if isinstance(file, MemoryDocuments):
        if records is not None:
            raise ArgumentError("conversations are read from files; those of your program go to stream_chat as a list")
        return MemoryText(file, column)
    kind = kind_of(file.path)
    if kind == "jsonl":
        return JsonlText(file, column, records)
    if kind in ("parquet", "arrow"):
        return (ParquetText if kind == "parquet" else ArrowText)(file, column, records)
    if records is not None:
        raise ArgumentError(f"{file.name} cannot be read as conversations; expected JSONL, Parquet or Arrow")
    return PlainText(file)


class _AsTheyAre:
    """Records as documents."""

    columns = None

    def __call__(self, fields: dict[str, Any], /) -> dict[str, Any]:
        return fields


def first_record(source: PathLike | Sequence[PathLike]) -> tuple[dict[str, Any], str]:
    """The first record of the first file that has one, and the name of the file."""
    rules = TextRules(on_error="skip", portion_bytes=1)
    found = find_files(source, CHAT_ENDINGS)
    for stored in (file.stored for file in found):
        opened = open_text(stored, "", _AsTheyAre())
        for start, stop in itertools.pairwise(opened.cut(_HEAD_BYTES)):
            for portion in opened.read_slice(start, stop, rules):
                if portion.texts:
                    return portion.texts[0], stored.name
    raise ArgumentError(f"there is no record in the inputs: {quantity(len(found), 'file')}")


class TextFiles:
    """Files of text in a fixed order, numbered from 0. Any number of threads may use it at once.

    A file is opened when it is first read and looked at again at every read: once it has been seen, it must neither
    vanish nor change its size or time (a remote one, its version). The 16 files used last stay open.
    """

    def __init__(
        self,
        found: Sequence[Found],
        splits: Splits,
        *,
        split: str,
        text_column: str,
        wait_seconds: float,
        count: int | None = None,
        records: Records | None = None,
    ) -> None:
        mine = splits.pick(found, split)[:count]
        self.paths = tuple(shown(file.path) for file in mine)
        """Local paths, or addresses without user, password and query."""
        self.names = tuple(file.name for file in mine)
        """The paths relative to the folder they have in common: the same wherever that folder lies."""
        self.text_column = text_column
        self.split = split
        self.val_fraction = 0.0 if split == "all" else splits.fraction
        """Share of the documents that are val by their text; those of split "train" are the others."""
        self.held_out = "" if split == "all" else splits.held_out
        """What is not train because of names, in one line for people."""
        self._all_found, self._splits, self._found = found, splits, mine
        self._stored = tuple(file.stored for file in mine)
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._records = records
        self._texts = [open_text(stored, text_column, records) for stored in self._stored]
        self._recent: dict[int, None] = {}
        self._stamps: dict[int, tuple[int, int]] = {}
        self._closed = threading.Event()

    @classmethod
    def find(
        cls,
        source: Any,
        *,
        text_column: str = "text",
        split: str = "all",
        val: Val = 0.001,
        wait_seconds: float = 0.0,
        records: Records | None = None,
        endings: tuple[str, ...] = ENDINGS,
    ) -> "TextFiles":
        """The files of a folder, a pattern, a path or an address, or of a list of these. Lists folders, opens no file.

        Files of one entry are sorted by name; a list keeps its order. A folder with a `files.json` consists of what
        that says, in its order, files still to arrive included: reading such a file waits for it, `wait_seconds` while
        nothing arrives. A pattern takes what is there now.

        `split` is "train", "val" or "all". `val` is a share of the documents, chosen by their text; or files, by name
        or pattern; "last", the last file; or None. Files that are val or test by name, folder or `files.json` are never
        train, unless it is (): see `named_split`.
        """
        if not wait_seconds >= 0:
            raise ArgumentError(f"wait_seconds is {wait_seconds}; it must be at least 0")
        found = find_files(source, endings)
        splits = choose_splits(found, val, split)
        return cls(found, splits, split=split, text_column=text_column, wait_seconds=wait_seconds, records=records)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        first, last = self.names[0], self.names[-1]
        told = [quantity(len(self), "file") + ("" if self.split == "all" else f" of split {self.split!r}")]
        told.append(first if first == last else f"{first} to {last}")
        if self.val_fraction:
            which = "without" if self.split == "train" else "only"
            told.append(f"{which} the {100 * self.val_fraction:g}% that are val")
        others = [file.name for file in self._all_found if file.name not in self.names]
        if others:
            told.append(f"not {others[0]}" + (f" and {len(others) - 1} more" if others[1:] else ""))
        return f"TextFiles({', '.join(told)}; column {self.text_column!r})"

    def read(self, file: int, group: int, start: int = 0) -> Group | None:
        """A group of a file, from row `start` on; None when the file has no such group.

        Parquet decodes as the group is iterated; JSONL reads 1,024 lines here; plain text is one row, read here. The
        text of a document of another split is None, as one that is null.
        """
        if group < 0 or start < 0:
            raise ArgumentError(f"group {group} from row {start} on: both must be at least 0")
        found = self._ask(file, lambda texts: texts.read(group, start))
        if found is not None and start > found.num_rows:
            raise ArgumentError(
                f"{self.paths[file]}, group {group} has {found.num_rows:,} rows; it cannot be read from row "
                f"{start:,} on"
            )
        return _OneSplit(found, self.split, self.val_fraction) if found is not None and self.val_fraction else found

    def num_groups(self, file: int) -> int:
        """How many groups a file has. Parquet reads the footer, JSONL the whole file the first time."""
        return self._ask(file, lambda texts: texts.num_groups())

    def has_group(self, file: int, group: int) -> bool:
        """Whether a file has a group of that number. Unlike `num_groups`, reads JSONL no further than needed."""
        return self._ask(file, lambda texts: texts.has_group(group))

    def first(self, count: int) -> "TextFiles":
        """The first `count` files alone."""
        return TextFiles(
            self._all_found,
            self._splits,
            split=self.split,
            text_column=self.text_column,
            wait_seconds=self._wait_seconds,
            count=count,
            records=self._records,
        )

    def digest(self, file: int) -> str:
        """8 bytes, in hex, that stand for the content of a file, wherever it lies: see `StoredFile.digest`."""
        return self._ask(file, lambda texts: texts.digest())

    def documents(self) -> Iterator[str]:
        """All documents one after the other: one epoch."""
        for texts in self.iter_row_groups():
            yield from texts

    def iter_row_groups(self, *, start: int = 0, step: int = 1) -> Iterator[list[str]]:
        """The documents of groups start, start + step, … counted over all files, each as a list: one epoch.

        With `start=rank, step=world_size` every group is one rank's. A group is in memory as a whole.
        """
        if start < 0 or step < 1:
            raise ArgumentError(f"start is {start} and step {step}; they must be at least 0 and 1")
        groups_before = 0
        for file in range(len(self)):
            while (group := self.read(file, start - groups_before)) is not None:
                batches = group.batches(max(1, group.num_rows))
                yield [as_str(text) for _, texts in batches for text in texts if text is not None]
                start += step
            groups_before += self.num_groups(file)  # known by now, from having found its end

    def close(self) -> None:
        """Close all files for good. A thread that waits for a file to arrive gets a ReadError."""
        self._closed.set()
        for text in self._texts:
            text.close()

    def _ask(self, file: int, question: Callable[[TextFile], Answer]) -> Answer:
        """The answer of a file that is as it was first seen, before and after, so in between too."""
        if not 0 <= file < len(self):
            raise ArgumentError(f"file {file} of {len(self):,}: the number must be in [0, {len(self)})")
        if file not in self._stamps:
            self._await(file)
        self._check_unchanged(file)
        with self._lock:
            self._recent.pop(file, None)
            self._recent[file] = None
            oldest = next(iter(self._recent))
            if len(self._recent) > _MAX_OPEN:
                del self._recent[oldest]
                self._texts[oldest].close()
            text = self._texts[file]
        answer = question(text)
        self._check_unchanged(file)
        return answer

    def _check_unchanged(self, file: int) -> None:
        path = self.paths[file]
        if self._closed.is_set():
            raise ReadError(f"cannot read {path}: these files have been closed", filename=path)
        now = self._stored[file].stamp()
        first = self._stamps.setdefault(file, now)
        if now != first:
            raise CorruptionError(
                f"{path} has changed since it was first read: it had {first[0]:,} bytes, modified {_utc(first[1])}; "
                f"now {now[0]:,}, modified {_utc(now[1])}. Documents read before and after would be of two files: "
                "start again with files that do not change."
            )

    def _await(self, file: int) -> None:
        """Return once a file is there, or at once where it is not one to be waited for."""
        path = Path(self.paths[file])
        if self._found[file].listed is None:
            return
        seen, since = dict[str, int](), time.monotonic()
        while True:
            with reading(str(path)):
                if path.exists():
                    return
            sizes = _arriving(path.parent)
            if sizes != seen:
                seen, since = sizes, time.monotonic()
            if time.monotonic() - since >= self._wait_seconds:
                raise NotFoundError(
                    f"{path} is listed in {path.parent / 'files.json'} and has not arrived; nothing has for "
                    f"{self._wait_seconds:g} s. Run `tokenfeed download` again: it goes on where it stopped."
                )
            if self._closed.wait(_POLL_SECONDS):
                raise ReadError(f"cannot read {path}: these files were closed before it arrived", filename=str(path))


class _OneSplit:
    """A group in which documents of the other split are null."""

    def __init__(self, group: Group, split: str, fraction: float) -> None:
        self.num_rows = group.num_rows
        self._group, self._split, self._fraction = group, split, fraction

    def batches(self, size: int) -> Iterator[tuple[int, list[str | bytes | None]]]:
        fraction, wanted = self._fraction, self._split == "val"
        for first, texts in self._group.batches(size):
            yield first, [text if text is None or is_val(text, fraction) == wanted else None for text in texts]


def _arriving(folder: Path) -> dict[str, int]:
    """The sizes of files that are complete or on their way."""
    sizes = {}
    with reading(str(folder)), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".tmp", *ENDINGS)):
                try:
                    sizes[entry.name] = entry.stat().st_size
                except FileNotFoundError:  # renamed meanwhile
                    continue
    return sizes


def _utc(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ns / 1e9))
