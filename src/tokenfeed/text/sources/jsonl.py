"""Documents in JSONL files, plain or compressed: one JSON object a line, the text under one of its keys.

Lines end with `\\n` or `\\r\\n`, the last one perhaps with nothing. Blank lines are no documents and are not counted; a
byte-order mark at the start is skipped. 1,024 documents are a group, read at once and parsed as they are asked for.
"""

import contextlib
import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError, ReadError
from tokenfeed.storage.local import reading

__all__ = ["GROUP_LINES", "JsonlText", "LineGroup"]

GROUP_LINES = 1024
"""Documents in a group; the last group of a file may have fewer."""

_BOM = b"\xef\xbb\xbf"
_BUFFER_BYTES = 1 << 20
_LARGEST_GROUP = 1 << 30
_DIGEST_BYTES = 1 << 16
_MAX_IDLE = 4
_CODECS = {".gz": "gzip", ".zst": "zstd"}


class JsonlText:
    """The documents of one JSONL file. Any number of threads may read at once.

    Plain files are read from where a group begins, once that is known: a group never reached before costs reading every
    line between the last known one and it (3 GB/s). Compressed files can only be read forward (gzip 170 MB/s, zstd
    570 MB/s), so up to 4 streams stay where they stopped and the nearest one goes on; going back means from the start.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._path = path
        self._column = column
        self._codec = _CODECS.get(path.suffix)
        self._lock = threading.Lock()
        self._idle: list[_Lines] = []  # least recently used first
        self._times_closed = 0
        self._starts = [(0, 0)]  # (byte, line) where each group begins, of those reached so far
        self._num_groups: int | None = None
        self._peeked: tuple[int, list[tuple[int, bytes]]] | None = None

    def num_groups(self) -> int:
        """How many groups of 1,024 documents there are. Reads the file to its end the first time."""
        while self._num_groups is None:
            self._reach(None)
        return self._num_groups

    def has_group(self, group: int) -> bool:
        """Whether there is such a group. Its lines are kept for the `read` that is likely to come next."""
        if self._num_groups is not None:
            return group < self._num_groups
        lines = self._reach(group)
        if lines is not None:
            self._peeked = group, lines
        return lines is not None

    def read(self, group: int, start: int = 0) -> "LineGroup | None":
        """A group from row `start` on; None when there is no such group. Reads its lines, parses nothing yet."""
        if self._num_groups is not None and group >= self._num_groups:
            return None
        peeked, self._peeked = self._peeked, None
        lines = peeked[1] if peeked is not None and peeked[0] == group else self._reach(group)
        return None if lines is None else LineGroup(self._path, self._column, group, lines, start)

    def digest(self) -> str:
        """8 bytes, in hex, that stand for the content: a checksum of the size and the first and last 64 KiB.

        Two reads, whatever the size; an edit in between that keeps the size goes unnoticed.
        """
        with reading(str(self._path)), self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_DIGEST_BYTES)
            file.seek(max(0, size - _DIGEST_BYTES))
            tail = file.read(_DIGEST_BYTES)
        return hashlib.blake2b(head + tail + size.to_bytes(8, "little"), digest_size=8).hexdigest()

    def close(self) -> None:
        """Close what nobody uses now; what is in use is closed when it is given back. What was learnt is kept."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._times_closed += 1
        for lines in idle:
            lines.close()

    def _reach(self, group: int | None) -> list[tuple[int, bytes]] | None:
        """(line number, line) of a group's documents; None when the file ends before it. Group None is the end."""
        lines, lent = self._take(group)
        try:
            with self._explaining(lines):
                while True:
                    at = lines.group
                    found = lines.take(keep=at == group)
                    self._learn(lines, ended=not found)
                    if not found or at == group:
                        break
        except BaseException:
            lines.close()
            raise
        self._give_back(lines, lent)
        return found or None

    def _learn(self, lines: "_Lines", *, ended: bool) -> None:
        with self._lock:
            if ended:
                self._num_groups = lines.group
            elif lines.group == len(self._starts):
                self._starts.append((lines.byte, lines.line))

    def _take(self, group: int | None) -> tuple["_Lines", int]:
        """The stream that has the least way to go to a group, and what `_give_back` must know."""
        with self._lock:
            lent = self._times_closed
            known = len(self._starts) - 1 if group is None else min(group, len(self._starts) - 1)
            usable = [lines for lines in self._idle if group is None or lines.group <= group]
            best = max(usable, key=lambda lines: lines.group, default=None)
            if best is None and self._codec is None and self._idle:
                best = self._idle[-1]
            if best is not None:
                self._idle.remove(best)
            start = self._starts[known]
        if best is None:
            best = self._open()
        if self._codec is None and (best.group < known or (group is not None and best.group > group)):
            best.seek(known, *start)
        return best, lent

    def _give_back(self, lines: "_Lines", lent: int) -> None:
        dropped: _Lines | None = lines
        with self._lock:
            if lent == self._times_closed:
                self._idle.append(lines)
                dropped = self._idle.pop(0) if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.close()

    def _open(self) -> "_Lines":
        import pyarrow as pa

        with reading(str(self._path)):
            source = pa.OSFile(os.fsencode(self._path))
            if self._codec is not None and source.size() == 0:
                raise CorruptionError(
                    f"{self._path} is empty: not even a compressed nothing has 0 bytes. Fetch or write it again."
                )
        return _Lines(source if self._codec is None else pa.CompressedInputStream(source, self._codec))

    @contextlib.contextmanager
    def _explaining(self, lines: "_Lines") -> Iterator[None]:
        """Turns what Arrow raises about damaged compression into an error of ours that names the file and the place."""
        try:
            with reading(str(self._path)):
                yield
        except ReadError as error:
            if error.errno is not None:  # only the operating system gives a number
                raise
            raise CorruptionError(
                f"{self._path}, group {lines.group}, after line {lines.line}: the compressed data is damaged "
                f"({error.__cause__}). Fetch or write the file again."
            ) from error


class _Lines:
    """Lines of a file, and how far they have been read. One thread at a time may use it."""

    def __init__(self, source: Any) -> None:
        self._file = io.BufferedReader(source, _BUFFER_BYTES)
        self.seek_to(0, 0, 0)

    def seek_to(self, group: int, byte: int, line: int) -> None:
        self.group = group
        """The group that comes next."""
        self.byte = byte
        """Where it begins in the file (once decompressed)."""
        self.line = line
        """How many lines come before it, blank ones included."""

    def seek(self, group: int, byte: int, line: int) -> None:
        self._file.seek(byte)
        self.seek_to(group, byte, line)

    def take(self, *, keep: bool) -> list[tuple[int, bytes]]:
        """Go past the next group: its lines with their numbers, counted from 1; fewer at the end of the file, or none.

        With keep=False only one of them is returned, to say that there was one.
        """
        found: list[tuple[int, bytes]] = []
        count, byte, number = 0, self.byte, self.line
        size = 0
        while count < GROUP_LINES and (line := self._file.readline(_LARGEST_GROUP - size)):
            number += 1
            size += len(line) if keep else 0
            if size >= _LARGEST_GROUP or len(line) >= _LARGEST_GROUP:
                raise FormatError(
                    f"the {GROUP_LINES:,} lines up to line {number:,} have more than {_LARGEST_GROUP:,} bytes, which a "
                    "stream would have to hold in memory; `tokenfeed prepare` reads lines of any length"
                )
            if byte == 0 and line.startswith(_BOM):
                byte += len(_BOM)
                line = line[len(_BOM) :]
            byte += len(line)
            if line.isspace() or not line:
                continue
            count += 1
            if keep or not found:
                found.append((number, line))
        if count:
            self.seek_to(self.group + 1, byte, number)
        return found

    def close(self) -> None:
        self._file.close()


class LineGroup:
    """The lines of one group, in memory, parsed as they are asked for."""

    def __init__(self, path: Path, column: str, group: int, lines: list[tuple[int, bytes]], start: int) -> None:
        self.num_rows = len(lines)
        """Of the whole group, those before `start` included."""
        self._path = path
        self._column = column
        self._group = group
        self._lines = lines
        self._start = start

    def batches(self, size: int) -> Iterator[tuple[int, list[str | None]]]:
        """(first row, texts) of the rows [0, size), [size, 2·size), … of the group, less those before `start`.

        The GIL is held while a line is parsed (210 MB/s).
        """
        if size < 1:
            raise ArgumentError(f"size is {size}; it must be at least 1")
        first = self._start
        while first < self.num_rows:
            stop = min(self.num_rows, (first // size + 1) * size)
            yield first, [self._parse(row, *self._lines[row]) for row in range(first, stop)]
            first = stop

    def _parse(self, row: int, number: int, line: bytes) -> str | None:
        try:
            document = json.loads(str(line, "utf-8"))
        except UnicodeDecodeError as error:
            raise CorruptionError(f"{self._where(row, number)}: the line is not UTF-8 ({error})") from error
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{self._where(row, number)}: the line is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise FormatError(
                f"{self._where(row, number)}: expected a JSON object with the text under {self._column!r}, "
                f"got {_kind(document)}"
            )
        try:
            text = document[self._column]
        except KeyError:
            raise MissingError(
                f"{self._where(row, number)}: there is no {self._column!r}; the keys are "
                f"{', '.join(list(document)[:20]) or 'none'}. Name the one with the text: text_column=…"
            ) from None
        if text is None:
            return None
        if not isinstance(text, str):
            raise FormatError(f"{self._where(row, number)}: {self._column!r} is {_kind(text)}; expected a string")
        if not text.isascii() and b"\\u" in line:  # only an escape can make half of a surrogate pair
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise CorruptionError(
                    f"{self._where(row, number)}: {self._column!r} has an escape that is no character ({error})"
                ) from error
        return text

    def _where(self, row: int, number: int) -> str:
        return f"{self._path}, line {number} (group {self._group}, row {row})"


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
