"""`TextFiles`: an ordered list of files seen as groups of documents, whatever their format and wherever they lie."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, ReadError, quantity
from tokenfeed.storage.local import reading
from tokenfeed.text.sources.finding import ENDINGS, Found, PathLike, check_split, find_files, kind_of, of_split
from tokenfeed.text.sources.group import Group, TextFile
from tokenfeed.text.sources.jsonl import JsonlText
from tokenfeed.text.sources.parquet import ParquetText
from tokenfeed.text.sources.plain import PlainText
from tokenfeed.text.sources.stored import StoredFile, shown

__all__ = ["ENDINGS", "Group", "TextFile", "TextFiles", "open_text"]

_MAX_OPEN = 16
_POLL_SECONDS = 0.2


def open_text(file: StoredFile, column: str) -> TextFile:
    """A file in the format that its name says. Opens nothing yet."""
    kind = kind_of(file.path)
    if kind == "txt":
        return PlainText(file)
    return ParquetText(file, column) if kind == "parquet" else JsonlText(file, column)


class TextFiles:
    """Files of text in a fixed order, numbered from 0. Any number of threads may use it at once.

    A file is opened when it is first read and looked at again at every read: once it has been seen, it must neither
    vanish nor change its size or time (a remote one, its version). The 16 files used last stay open.
    """

    def __init__(self, found: Sequence[Found], *, text_column: str, split: str | None, wait_seconds: float) -> None:
        self.paths = tuple(shown(file.path) for file in found)
        """Local paths, or addresses without user, password and query."""
        self.names = tuple(file.name for file in found)
        """The paths relative to the folder they have in common: the same wherever that folder lies."""
        self.text_column = text_column
        self.split = split
        self._found = tuple(found)
        self._stored = tuple(StoredFile(file.path) for file in found)
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._texts: dict[int, TextFile] = {}
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._stamps: dict[int, tuple[int, int]] = {}
        self._closed = threading.Event()

    @classmethod
    def find(
        cls,
        source: PathLike | Sequence[PathLike],
        *,
        text_column: str = "text",
        split: str | None = None,
        wait_seconds: float = 0.0,
    ) -> "TextFiles":
        """The files of a folder, a pattern, a path or an address, or of a list of these. Lists folders, opens no file.

        Files of one entry are sorted by name; a list keeps its order. A folder with a `files.json` consists of what
        that says, in its order, files still to arrive included: reading such a file waits for it. A pattern takes what
        is there now.

        `split="train"` takes all files but the last, `"val"` the last; folders with a `files.json` are split as it says
        (and in a list with others, they alone have `val` files). `wait_seconds` is how long reading waits while nothing
        arrives.
        """
        check_split(split)
        if not wait_seconds >= 0:
            raise ArgumentError(f"wait_seconds is {wait_seconds}; it must be at least 0")
        found = of_split(find_files(source), split)
        return cls(found, text_column=text_column, split=split, wait_seconds=wait_seconds)

    def __len__(self) -> int:
        """How many files there are."""
        return len(self.paths)

    def __repr__(self) -> str:
        which = "" if self.split is None else f" of split {self.split!r}"
        first, last = self.names[0], self.names[-1]
        names = first if first == last else f"{first} to {last}"
        return f"TextFiles({quantity(len(self), 'file')}{which}, {names}; column {self.text_column!r})"

    def read(self, file: int, group: int, start: int = 0) -> Group | None:
        """A group of a file, from row `start` on; None when the file has no such group.

        Parquet decodes as the group is iterated; JSONL reads 1,024 lines here; plain text is one row, read here.
        """
        if group < 0 or start < 0:
            raise ArgumentError(f"group {group} from row {start} on: both must be at least 0")
        texts = self._open(file)
        found = texts.read(group, start)
        self._check_unchanged(file)  # before and after, so that what was opened in between is the file as first seen
        if found is not None and start > found.num_rows:
            raise ArgumentError(
                f"{self.paths[file]}, group {group} has {found.num_rows:,} rows; it cannot be read from row "
                f"{start:,} on"
            )
        return found

    def num_groups(self, file: int) -> int:
        """How many groups a file has. Parquet reads the footer, JSONL the whole file the first time."""
        count = self._open(file).num_groups()
        self._check_unchanged(file)
        return count

    def has_group(self, file: int, group: int) -> bool:
        """Whether a file has a group of that number. Unlike `num_groups`, reads JSONL no further than needed."""
        found = self._open(file).has_group(group)
        self._check_unchanged(file)
        return found

    def first(self, count: int) -> "TextFiles":
        """The first `count` files alone."""
        return self._pick(self._found[:count], self.split)

    def digest(self, file: int) -> str:
        """8 bytes, in hex, that stand for the content of a file, wherever it lies. Two small reads, or one request.

        Parquet: of the footer and the size; others: of the size and the first and last 64 KiB; remote files: of the
        size and the version.
        """
        digest = self._open(file).digest()
        self._check_unchanged(file)
        return digest

    def documents(self, *, split: str | None = None) -> Iterator[str]:
        """All documents one after the other, those that are null left out: one epoch."""
        for texts in self.iter_row_groups(split=split):
            yield from (text for text in texts if text is not None)

    def iter_row_groups(self, *, split: str | None = None, start: int = 0, step: int = 1) -> Iterator[list[str | None]]:
        """The texts of groups start, start + step, … counted over all files, each as a list: one epoch.

        With `start=rank, step=world_size` every group is one rank's. `split` takes one split of all files found. A
        group is in memory as a whole.
        """
        check_split(split)
        if start < 0 or step < 1:
            raise ArgumentError(f"start is {start} and step {step}; they must be at least 0 and 1")
        if split in (None, self.split):
            return self._iter_row_groups(start, step)
        if self.split is not None:
            raise ArgumentError(f"these are the files of split {self.split!r} alone; find them again for {split!r}")
        return self._pick(of_split(self._found, split), split)._iter_row_groups(start, step)

    def close(self) -> None:
        """Close all files for good. A thread that waits for a file to arrive gets a ReadError."""
        self._closed.set()
        with self._lock:
            texts = list(self._texts.values())
        for text in texts:
            text.close()

    def _iter_row_groups(self, wanted: int, step: int) -> Iterator[list[str | None]]:
        groups_before = 0
        for file in range(len(self)):
            while (group := self.read(file, wanted - groups_before)) is not None:
                yield [text for _, texts in group.batches(max(1, group.num_rows)) for text in texts]
                wanted += step
            groups_before += self.num_groups(file)  # known by now, from having found its end

    def _pick(self, found: Sequence[Found], split: str | None) -> "TextFiles":
        return TextFiles(found, text_column=self.text_column, split=split, wait_seconds=self._wait_seconds)

    def _open(self, file: int) -> TextFile:
        if not 0 <= file < len(self):
            raise ArgumentError(f"file {file} of {len(self):,}: the number must be in [0, {len(self)})")
        if file not in self._stamps:
            self._await(file)
        self._check_unchanged(file)
        with self._lock:
            text = self._texts.get(file)
            if text is None:
                text = self._texts[file] = open_text(self._stored[file], self.text_column)
            self._recent[file] = None
            self._recent.move_to_end(file)
            oldest = self._recent.popitem(last=False)[0] if len(self._recent) > _MAX_OPEN else None
        if oldest is not None:
            self._texts[oldest].close()
        return text

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
        if not self._found[file].is_listed:
            return
        seen: dict[str, int] = {}
        since = time.monotonic()
        while not _is_there(path):
            sizes = _arriving(path.parent)
            if any(size > seen.get(name, -1) for name, size in sizes.items()):
                since = time.monotonic()
            seen |= sizes
            if time.monotonic() - since >= self._wait_seconds:
                raise NotFoundError(
                    f"{path} is listed in {path.parent / 'files.json'} and has not arrived; nothing has for "
                    f"{self._wait_seconds:g} s. Run `tokenfeed download` again: it goes on where it stopped."
                )
            if self._closed.wait(_POLL_SECONDS):
                raise ReadError(f"cannot read {path}: these files were closed before it arrived", filename=str(path))


def _is_there(path: Path) -> bool:
    with reading(str(path)):
        return path.exists()


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
