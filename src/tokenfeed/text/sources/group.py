"""Groups: what `stream` reads at a time, and where a document is found again: (file, group, row)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from tokenfeed.errors import ArgumentError
from tokenfeed.text.sources.portions import Portion, TextRules

__all__ = ["Group", "MemoryGroup", "TextFile"]

Row = TypeVar("Row")


class Group(Protocol):
    """A row group of Parquet, 1,024 lines of JSONL, or a file of plain text. One thread at a time may use it."""

    @property
    def num_rows(self) -> int:
        """Rows of the whole group, those before the row it is read from included."""

    def batches(self, size: int) -> Iterator[tuple[int, list[str | None]]]:
        """(first row, texts) of the rows [0, size), [size, 2·size), … less those before the row it is read from.

        None is a text that is null. Can be called once. At most about max(size, 1,024) rows are in memory at a time.

            10 rows, read from row 3, size 4:   (3, [t3]), (4, [t4, t5, t6, t7]), (8, [t8, t9])
        """


class TextFile(Protocol):
    """One file, as groups for `stream` and as slices for `prepare`. Any number of threads may use it at once."""

    def num_groups(self) -> int: ...

    def has_group(self, group: int) -> bool:
        """Whether there is such a group; reads no further than to find out."""

    def read(self, group: int, start: int = 0) -> Group | None:
        """A group from row `start` on; None when there is no such group."""

    def cut(self, slice_bytes: int) -> list[int]:
        """Where slices begin, and the end: slice i is [bounds[i], bounds[i + 1]). Depends on nothing but the file."""

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of a slice, in bounded memory. All slices of a file, one after the other, are the file."""

    def digest(self) -> str:
        """8 bytes, in hex, that stand for the content, wherever the file lies."""

    def close(self) -> None:
        """Let go of descriptors; reading opens again."""


class MemoryGroup(Generic[Row]):
    """A group whose rows are in memory, and are parsed as they are asked for."""

    def __init__(self, rows: Sequence[Row], parse: Callable[[Row], str | None], start: int) -> None:
        self.num_rows = len(rows)
        self._rows = rows
        self._parse = parse
        self._start = start

    def batches(self, size: int) -> Iterator[tuple[int, list[str | None]]]:
        if size < 1:
            raise ArgumentError(f"size is {size}; it must be at least 1")
        first = self._start
        while first < self.num_rows:
            stop = min(self.num_rows, (first // size + 1) * size)
            yield first, [self._parse(row) for row in self._rows[first:stop]]
            first = stop
