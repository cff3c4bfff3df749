"""Documents in JSONL files, plain or compressed: one JSON object a line, the text under one of its keys.

Lines end with `\\n` or `\\r\\n`, the last one perhaps with nothing. Blank lines are no documents and are not counted; a
byte-order mark at the start is skipped. `stream` reads groups of 1,024 documents, `prepare` ranges of bytes.

Plain files are read from where a group begins, once that is known: a group never reached before costs reading on from
the last known one. Compressed files can only be read forward (gzip 170 MB/s, zstd 570 MB/s), so up to 4 readers stay
where they stopped and the nearest one goes on; going back means from the start.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

from tokenfeed.errors import FormatError, MissingError, quantity
from tokenfeed.text.sources.json_lines import LineError, parse_line, parse_object
from tokenfeed.text.sources.portions import (
    GROUP_ROWS,
    LARGEST_DOCUMENT,
    MemoryGroup,
    Portion,
    Records,
    Tally,
    TextRules,
)
from tokenfeed.text.sources.stored import ByteStream, StoredFile

__all__ = ["JsonlText"]

LARGEST_GROUP = 1 << 30
"""Most bytes of a group, which a stream holds in memory."""
_MAX_IDLE = 4
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 20
_SKIP_BYTES = 1 << 20

_Line = tuple[int, bytes]


class JsonlText:
    """The documents of one JSONL file. Any number of threads may read at once. Lines are found at 3 GB/s."""

    def __init__(self, file: StoredFile, column: str, records: Records | None = None) -> None:
        """With `records`, documents are what these make of whole lines, instead of the texts of a column."""
        self._file = file
        self._column = column
        self._records = records
        self._lock = threading.Lock()
        self._idle: list[_Lines] = []  # least recently used first
        self._starts: list[tuple[int, int]] = []  # where each group begins, of those reached so far
        self._num_groups: int | None = None
        self._peeked: tuple[int, list[_Line]] = -1, []

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

    def read(self, group: int, start: int = 0) -> MemoryGroup[_Line] | None:
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
        for lines in idle:
            lines.close()

    def cut(self, slice_bytes: int) -> list[int]:
        """Where slices begin, and the end: equal ranges of bytes; compressed files are one slice."""
        size, _ = self._file.stamp()
        if self._file.codec is not None:
            return [0, size]
        count = -(-size // slice_bytes)
        return [size * part // count for part in range(count + 1)] if count else [0]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of the lines that begin in [start, stop); of all lines where the file is compressed."""
        if start == 0 and (rules.keep or rules.on_error == "skip"):
            self._check_keys(rules)
        with contextlib.closing(_Lines(self._file)) as lines:
            yield from _Slice(self._file, lines, start, stop, rules, self._records).portions()

    def _reach(self, group: int) -> list[_Line]:
        """The rows of a group; none where the file ends before it."""
        lines = self._take(group)
        try:
            while True:
                with self._lock:
                    if lines.group == len(self._starts):
                        self._starts.append(lines.mark)
                is_wanted = lines.group == group
                found = lines.take_group(keep=is_wanted)
                if not found:
                    self._num_groups = lines.group
                if is_wanted or not found:
                    break
        except BaseException:
            lines.close()
            raise
        with self._lock:
            self._idle.append(lines)
            dropped = self._idle.pop(0) if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.close()
        return found

    def _take(self, group: int) -> "_Lines":
        """The reader that has the least way to go to a group."""
        can_seek = self._file.codec is None
        with self._lock:
            known = min(group, len(self._starts) - 1)
            usable = [lines for lines in self._idle if can_seek or lines.group <= group]
            best = max(usable, key=lambda lines: (lines.group <= group, lines.group), default=None)
            if best is not None:
                self._idle.remove(best)
        lines = best or _Lines(self._file)
        if can_seek and known >= 0 and not known <= lines.group <= group:
            lines.seek(self._starts[known], known)
        return lines

    def _parse(self, line: _Line) -> Any:
        """The document of a line; None where it is null."""
        number, data = line
        try:
            if self._records is not None:
                return self._records(parse_object(data, None))
            return parse_line(data, self._column)[0]
        except (LineError, FormatError) as error:
            raise FormatError(f"{self._file.name}, line {number:,}: {error}") from error

    def _check_keys(self, rules: TextRules) -> None:
        """Check that keys which lines may lack are there at all: in one of the lines in the first MiB of the file."""
        with self._file.stream() as stream:
            lines = stream.read(_HEAD_BYTES).removeprefix(_BOM).split(b"\n")
        objects = []
        for line in lines:
            with contextlib.suppress(LineError):
                objects.append(parse_object(line, rules.text_column))
        needed = rules.keep if self._records is not None else (rules.text_column, *rules.keep)
        missing = [name for name in needed if not any(name in one for one in objects)]
        if objects and missing:
            option = "text_column=…" if missing[0] == rules.text_column else "keep=…"
            raise MissingError(
                f"{self._file.name}: none of the first {quantity(len(objects), 'line')} has {missing[0]!r}; the keys "
                f"of the first are {', '.join(list(objects[0])[:20]) or 'none'}. Name one that is there: {option}"
            )


class _Lines:
    """The lines of a file, and how far they have been read. One thread at a time may use it."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._stream = file.stream()
        self.group = 0  # number of the next one
        self.byte = self.line = 0  # of the next line, in the decompressed file, blank lines included

    @property
    def mark(self) -> tuple[int, int]:
        """Where the next group begins: what `seek` takes."""
        return self.byte, self.line

    def seek(self, mark: tuple[int, int], group: int) -> None:
        self._stream.seek(mark[0])
        (self.byte, self.line), self.group = mark, group

    def take(self, limit: int) -> bytes:
        """The next line, its first `limit` bytes where it is longer, or its next ones; nothing at the end."""
        if self.byte == 0 and self._stream.peek(len(_BOM)).startswith(_BOM):
            self.byte = len(self._stream.read(len(_BOM)))
        line = self._stream.readline(limit)
        self.byte += len(line)
        self.line += line.endswith(b"\n")
        return line

    def take_group(self, *, keep: bool) -> list[_Line]:
        """Go past the next group: its lines with their numbers, counted from 1; fewer at the end of the file, or none.

        With keep=False only one of them is returned, to say that there was one.
        """
        found: list[_Line] = []
        count = size = 0
        while count < GROUP_ROWS and (line := self.take(LARGEST_GROUP - size)):
            number = self.line + (not line.endswith(b"\n"))
            size += len(line) if keep else 0
            if max(size, len(line)) >= LARGEST_GROUP:
                raise FormatError(
                    f"{self._file.name}: the {GROUP_ROWS:,} lines up to line {number:,} have more than "
                    f"{LARGEST_GROUP:,} bytes, which a stream would have to hold in memory; `tokenfeed prepare` holds "
                    "one line at a time"
                )
            if line.isspace():
                continue
            count += 1
            if keep or not found:
                found.append((number, line))
        self.group += 1 if count else 0
        return found

    def skip_to(self, start: int, stop: int) -> None:
        """Go to the first line that begins in [start, stop), or beyond. Lines are counted from there."""
        if start > 0:
            self.seek((start - 1, 0), 0)
            self.pass_rest(stop)
            self.line = 0

    def pass_rest(self, stop: int = sys.maxsize) -> None:
        """Go past the rest of a line, or beyond `stop`."""
        while self.byte < stop and (part := self.take(_SKIP_BYTES)) and not part.endswith(b"\n"):
            pass

    def stored_position(self) -> int:
        return cast(ByteStream, self._stream.raw).stored_position()

    def close(self) -> None:
        self._stream.close()


class _Slice:
    """The reading of one slice."""

    def __init__(
        self, file: StoredFile, lines: _Lines, start: int, stop: int, rules: TextRules, records: Records | None
    ) -> None:
        self._file = file
        self._records = records
        self._lines = lines
        self._start, self._stop = start, stop
        self._rules = rules
        self._tally = Tally(rules)
        self._is_plain = file.codec is None
        if self._is_plain:
            lines.skip_to(start, stop)
        self._first = lines.byte

    def portions(self) -> Iterator[Portion]:
        lines, tally = self._lines, self._tally
        end = self._stop if self._is_plain else sys.maxsize
        while lines.byte < end and (line := lines.take(LARGEST_DOCUMENT + 1)):
            if len(line) > LARGEST_DOCUMENT and not line.endswith(b"\n"):
                what = f"the line has more than {LARGEST_DOCUMENT:,} bytes, the most of a document"
                tally.malformed(self._where(lines.byte - len(line), line), what)
                lines.pass_rest()
            elif not line.isspace():
                self._add(line)
                if tally.is_full:
                    yield tally.portion(self._progress())
        yield tally.portion(self._stop - self._start)

    def _add(self, line: bytes) -> None:
        """Note the document of a line that was just read."""
        at, column, keep = self._lines.byte - len(line), self._rules.text_column, self._rules.keep
        try:
            if self._records is None:
                text, kept = parse_line(line, column, keep)
            else:
                fields = parse_object(line, None)
                text, kept = self._records(fields), {name: fields.get(name) for name in keep}
        except (LineError, FormatError) as error:
            self._tally.malformed(self._where(at, line), error)
            return
        if text is None:
            self._tally.null(self._where(at, line))
        else:
            self._tally.add(text, kept)

    def _progress(self) -> int:
        lines = self._lines
        return min(lines.byte, self._stop) - self._start if self._is_plain else lines.stored_position()

    def _where(self, at: int, last: bytes) -> str:
        """The file and the number of the line that was just read; where that is remote, in a later slice, its byte."""
        if self._start > 0 and self._file.is_remote:
            return f"{self._file.name}, the line at byte {at:,}"
        number = self._lines_before + self._lines.line + (not last.endswith(b"\n"))
        return f"{self._file.name}, line {number:,}"

    @cached_property
    def _lines_before(self) -> int:
        """Lines before the slice, counted at 3 GB/s."""
        count, left = 0, self._first if self._start > 0 else 0
        with self._file.stream() as stream:
            while left > 0 and (block := stream.read(min(left, _SKIP_BYTES))):
                count += block.count(b"\n")
                left -= len(block)
        return count
