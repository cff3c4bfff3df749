"""`GroupedText`: a file that is read from front to back, in groups of 1,024 documents, and sought in where it can.

Plain files are read from where a group begins, once that is known: a group never reached before costs reading on from
the last known one. Compressed files can only be read forward (gzip 170 MB/s, zstd 570 MB/s), so up to 4 cursors stay
where they stopped and the nearest one goes on; going back means from the start.
"""

import sys
import threading
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from tokenfeed.text.sources.portions import MemoryGroup
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["LARGEST_GROUP", "Cursor", "GroupedText"]

LARGEST_GROUP = 1 << 30
"""Most bytes of a group, which a stream holds in memory."""
_MAX_IDLE = 4

Row = TypeVar("Row")


class Cursor(Protocol[Row]):
    """How far a file has been read. One thread at a time may use it."""

    group: int
    """Number of the next group."""

    @property
    def mark(self) -> tuple[int, ...]:
        """Where the next group begins: what `seek` takes."""

    def seek(self, mark: tuple[int, ...], group: int) -> None: ...

    def take_group(self, *, keep: bool) -> list[Row]:
        """Go past the next group: its rows, fewer at the end of the file, or none.

        With keep=False only one of them need be returned, to say that there was one.
        """

    def close(self) -> None: ...


class GroupedText(ABC, Generic[Row]):
    """The documents of one file. Any number of threads may read at once."""

    def __init__(self, file: StoredFile, column: str) -> None:
        self._file = file
        self._column = column
        self._lock = threading.Lock()
        self._idle: list[Cursor[Row]] = []  # least recently used first
        self._starts: list[tuple[int, ...]] = []  # where each group begins, of those reached so far
        self._num_groups: int | None = None
        self._peeked: tuple[int, list[Row]] = -1, []

    @abstractmethod
    def _open(self) -> Cursor[Row]:
        """A cursor at the first group."""

    @abstractmethod
    def _parse(self, row: Row) -> Any:
        """The document of a row; None where it is null."""

    def _ended(self, cursor: Cursor[Row]) -> None:
        """A cursor has reached the end of the file for the first time."""

    def num_groups(self) -> int:
        """How many groups of 1,024 documents there are. Reads the file to its end the first time."""
        if self._num_groups is None:
            self._reach(sys.maxsize)
        assert self._num_groups is not None
        return self._num_groups

    def has_group(self, group: int) -> bool:
        """Whether there is such a group. Its rows are kept for the `read` that is likely to come next."""
        if self._num_groups is not None:
            return group < self._num_groups
        rows = self._reach(group)
        self._peeked = group, rows
        return bool(rows)

    def read(self, group: int, start: int = 0) -> MemoryGroup[Row] | None:
        """A group from row `start` on; None when there is no such group. Reads its rows, parses nothing yet."""
        (peeked, rows), self._peeked = self._peeked, (-1, [])
        if peeked != group:
            rows = [] if self._num_groups is not None and group >= self._num_groups else self._reach(group)
        return MemoryGroup(rows, self._parse, start) if rows else None

    def digest(self) -> str:
        return self._file.digest()

    def close(self) -> None:
        """Close what nobody uses now. What was learnt is kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for cursor in idle:
            cursor.close()

    def _reach(self, group: int) -> list[Row]:
        """The rows of a group; none where the file ends before it."""
        cursor = self._take(group)
        try:
            while True:
                with self._lock:
                    if cursor.group == len(self._starts):
                        self._starts.append(cursor.mark)
                is_wanted = cursor.group == group
                found = cursor.take_group(keep=is_wanted)
                if not found:
                    if self._num_groups is None:
                        self._ended(cursor)
                    self._num_groups = cursor.group
                if is_wanted or not found:
                    break
        except BaseException:
            cursor.close()
            raise
        with self._lock:
            self._idle.append(cursor)
            dropped = self._idle.pop(0) if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.close()
        return found

    def _take(self, group: int) -> Cursor[Row]:
        """The cursor that has the least way to go to a group."""
        can_seek = self._file.codec is None
        with self._lock:
            known = min(group, len(self._starts) - 1)
            usable = [cursor for cursor in self._idle if can_seek or cursor.group <= group]
            best = max(usable, key=lambda cursor: (cursor.group <= group, cursor.group), default=None)
            if best is not None:
                self._idle.remove(best)
        cursor = best or self._open()
        if can_seek and known >= 0 and not known <= cursor.group <= group:
            cursor.seek(self._starts[known], known)
        return cursor
