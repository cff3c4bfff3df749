"""Documents in JSONL files, plain or compressed: one JSON object a line, the text under one of its keys.

Lines end with `\\n` or `\\r\\n`, the last one perhaps with nothing. Blank lines are no documents and are not counted; a
byte-order mark at the start is skipped. `stream` reads groups of 1,024 documents, `prepare` ranges of bytes.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, cast

from tokenfeed.errors import FormatError, MissingError, quantity
from tokenfeed.storage.local import writing
from tokenfeed.text.sources.groups import LARGEST_GROUP, GroupedText
from tokenfeed.text.sources.json_lines import LineError, LongLine, parse_line, parse_object
from tokenfeed.text.sources.portions import GROUP_ROWS, Portion, Records, Tally, TextRules
from tokenfeed.text.sources.stored import ByteStream, StoredFile

__all__ = ["JsonlText"]

_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 20
_SKIP_BYTES = 1 << 20

_Line = tuple[int, bytes]
Parse = Callable[[str, Sequence[str]], tuple[Any, dict[str, Any]]]


class JsonlText(GroupedText[_Line]):
    """The documents of one JSONL file. Any number of threads may read at once. Lines are found at 3 GB/s."""

    def __init__(self, file: StoredFile, column: str, records: Records | None = None) -> None:
        """With `records`, documents are what these make of whole lines, instead of the texts of a column."""
        super().__init__(file, column)
        self._records = records

    def _open(self) -> "_Lines":
        return _Lines(self._file)

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

    def _document(self, line: bytes) -> Any:
        return parse_line(line, self._column)[0] if self._records is None else self._records(parse_object(line, None))

    def _parse(self, line: _Line) -> Any:
        number, data = line
        try:
            return self._document(data)
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
        self.byte = self.line = self.group = 0  # of the next line, in the decompressed file, blank lines included

    @property
    def mark(self) -> tuple[int, ...]:
        return self.byte, self.line

    def seek(self, mark: tuple[int, ...], group: int) -> None:
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
        """As `Cursor.take_group`: lines with their numbers, counted from 1."""
        found: list[_Line] = []
        count = size = 0
        while count < GROUP_ROWS and (line := self.take(LARGEST_GROUP - size)):
            number = self.line + (not line.endswith(b"\n"))
            size += len(line) if keep else 0
            if max(size, len(line)) >= LARGEST_GROUP:
                raise FormatError(
                    f"{self._file.name}: the {GROUP_ROWS:,} lines up to line {number:,} have more than "
                    f"{LARGEST_GROUP:,} bytes, which a stream would have to hold in memory; `tokenfeed prepare` reads "
                    "lines of any length"
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
            while self.byte < stop and (part := self.take(_SKIP_BYTES)) and not part.endswith(b"\n"):
                pass
            self.line = 0

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
        rules, lines, tally = self._rules, self._lines, self._tally
        end = self._stop if self._is_plain else sys.maxsize
        while lines.byte < end and (line := lines.take(rules.long_bytes)):
            if len(line) >= rules.long_bytes and not line.endswith(b"\n"):
                yield from self._long(line)
            elif not line.isspace():
                document = self._parse(lines.byte - len(line), line, partial(self._parse_line, line))
                if document is not None:
                    tally.add(*document)
                if tally.is_full:
                    yield tally.portion(self._progress(lines.byte))
        yield tally.portion(self._stop - self._start)

    def _parse_line(self, line: bytes, column: str, keep: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        if self._records is None:
            return parse_line(line, column, keep)
        fields = parse_object(line, None)
        return self._records(fields), {name: fields.get(name) for name in keep}

    def _parse(self, at: int, last: bytes, parse: Parse) -> tuple[Any, dict[str, Any]] | None:
        """(text, values to keep) of the line that begins at a byte and was just read; None where it is left out."""
        try:
            text, kept = parse(self._rules.text_column, self._rules.keep)
        except (LineError, FormatError) as error:
            self._tally.malformed(self._where(at, last), error)
            return None
        if text is None:
            self._tally.null(self._where(at, last))
            return None
        return text, kept

    def _long(self, part: bytes) -> Iterator[Portion]:
        """The document of a line that is too long for memory. Its strings are read a second and a third time.

        Plain files are read again where they lie; lines that were compressed go to a temporary file.
        """
        rules, lines, at = self._rules, self._lines, self._lines.byte - len(part)
        first = at if self._is_plain else 0
        again: IO[bytes] = self._file.stream() if self._is_plain else tempfile.TemporaryFile()  # noqa: SIM115

        def read(offset: int, num_bytes: int) -> bytes:
            again.seek(first + offset)
            return again.read(num_bytes)

        with again:
            line = LongLine(read, block_bytes=rules.portion_bytes, long_bytes=rules.long_bytes)
            while part:
                line.feed(part.removesuffix(b"\n"))
                if not self._is_plain:
                    with writing(Path(tempfile.gettempdir())):
                        again.write(part)
                if part.endswith(b"\n"):
                    break
                part = lines.take(rules.portion_bytes)
            document = None
            if self._records is not None:
                self._tally.malformed(self._where(at, part), f"a record of more than {rules.long_bytes:,} bytes")
            elif not line.is_blank:
                document = self._parse(at, part, line.parse)
            if document is not None:
                pieces = ((piece, self._progress(at + end)) for piece, end in line.pieces(document[0]))
                yield from self._tally.pieces(pieces, document[1])

    def _progress(self, byte: int) -> int:
        return min(byte, self._stop) - self._start if self._is_plain else self._lines.stored_position()

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
