"""Documents of JSONL files: found by a kernel, and where that is unsure, by `json`.

`json.loads` decides what a line says; the kernel says it sooner, and leaves to it all lines that are not plainly right.
On a core that does 250 MB/s by `json.loads`: 540 MB/s of English text, 340 MB/s where every 17th byte is an escape;
with a value kept, 420 and 290.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenfeed.errors import MissingError
from tokenfeed.kernels import json_lines
from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.preparation.reading_chunks import Chunk, Reading, Tally, in_pieces
from tokenfeed.preparation.reading_files import Source, shown
from tokenfeed.preparation.reading_lines import WRONG, LongLine, Wanted, blocks_of_lines

__all__ = ["read_jsonl"]

_ROWS = 4096
_HEAD_BYTES = 1 << 20
_LONGEST_VALUE = 4 << 20
_TEXT = (json_lines.RAW, json_lines.UNESCAPED)

Document = tuple[str, dict[str, Any]]


def read_jsonl(file: InputFile, part: Slice, how: Reading) -> Iterator[Chunk]:
    """The documents of the lines that begin in a slice."""
    return _Reader(file, part, how).chunks()


class _WrongLineError(Exception):
    """What is wrong with a line."""


class _Reader:
    def __init__(self, file: InputFile, part: Slice, how: Reading) -> None:
        self._path = file.path
        self._part = part
        self._how = how
        self._tally = Tally(how)
        self._wanted = Wanted([how.text_column, *how.keep])
        self._rows = np.empty((_ROWS, json_lines.KEYS + 2 * len(self._wanted.names)), np.int64)
        self._out = np.empty(0, np.uint8)
        self._line = 0 if part.start == 0 else None  # how many lines come before, where that is known
        self._is_plain = True
        self._known: set[str] = set()  # keys that are known to be there, if not in every line

    def chunks(self) -> Iterator[Chunk]:
        how, part = self._how, self._part
        with Source(self._path) as source:
            self._is_plain = source.codec is None
            stop = part.stop if self._is_plain else sys.maxsize
            blocks = blocks_of_lines(
                *(source, part.start, stop),
                wanted=self._wanted,
                block_bytes=how.chunk_bytes,
                long_bytes=how.long_bytes,
            )
            for at, block in blocks:
                if isinstance(block, LongLine):
                    yield from self._long(at, block, source)
                else:
                    documents = self._short(at, block)
                    texts, kept = [text for text, _ in documents], [values for _, values in documents]
                    yield self._tally.chunk(texts, list(kept), self._progress(source, at + len(block)))
        yield self._tally.chunk([], [], part.stop - part.start)

    def _progress(self, source: Source, at: int) -> int:
        return min(at, self._part.stop) - self._part.start if self._is_plain else source.stored_position()

    def _short(self, at: int, data: bytes) -> list[Document]:
        """The documents of whole lines, the first of which begins at byte `at` of the file."""
        wanted, view = self._wanted, memoryview(data)
        if self._out.size < len(data):
            self._out = np.empty(len(data), np.uint8)
        array, out = np.frombuffer(data, np.uint8), self._out
        documents: list[Document] = []
        position = 0
        while position < len(data):
            count, position = json_lines.scan_lines(
                *(array, position, len(data), wanted.state, wanted.name, wanted.keys, wanted.offsets, self._rows, out)
            )
            for number, row in enumerate(self._rows[:count].tolist()):
                if row[json_lines.LINE_STATUS] == json_lines.BLANK:
                    continue
                document = self._quickly(row, view, out.data)
                if document is None:
                    line = None if self._line is None else self._line + number + 1
                    document = self._closely(row, view, self._where(at + row[json_lines.LINE_START], line))
                if document is not None:
                    documents.append(document)
            self._line = None if self._line is None else self._line + count
        return documents

    def _quickly(self, row: list[int], view: memoryview, unescaped: memoryview) -> Document | None:
        """The document of a line that the kernel understood; None where it needs a closer look."""
        start, stop, status, text_start, text_stop = row[:5]
        kind = status & ~json_lines.CHECK
        if kind not in _TEXT:
            return None
        try:
            if status != kind:
                str(view[start:stop], "utf-8")
            text = str((view if kind == json_lines.RAW else unescaped)[text_start:text_stop], "utf-8")
        except UnicodeDecodeError:
            return None
        values = {}
        for number, name in enumerate(self._how.keep, 1):
            start, stop = row[json_lines.KEYS + 2 * number : json_lines.KEYS + 2 * number + 2]
            raw = bytes(view[start:stop])
            if start < 0 or len(raw) > _LONGEST_VALUE or b"\\u" in raw:
                return None
            values[name] = json.loads(raw)
        return text, values

    def _closely(self, row: list[int], view: memoryview, where: str) -> Document | None:
        """The document of a line as `json.loads` reads it; None where there is none, which has been noted then."""
        status = row[json_lines.LINE_STATUS]
        data = bytes(view[row[json_lines.LINE_START] : row[json_lines.LINE_STOP]])
        if data.isspace():
            return None
        try:
            if status in WRONG:
                raise _WrongLineError(WRONG[status])
            if status & ~json_lines.CHECK in _TEXT:
                for number, name in enumerate(self._how.keep, 1):
                    start, stop = row[json_lines.KEYS + 2 * number : json_lines.KEYS + 2 * number + 2]
                    _check_length(name, stop - start)
            return self._fields(data, where)
        except _WrongLineError as error:
            self._tally.malformed(where, str(error), cause=error)
            return None

    def _fields(self, line: bytes, where: str) -> Document | None:
        try:
            fields = json.loads(str(line, "utf-8"))
        except UnicodeDecodeError as error:
            raise _WrongLineError(f"the line is not UTF-8 ({error})") from error
        except (ValueError, RecursionError) as error:
            raise _WrongLineError(f"the line is not JSON ({error})") from error
        if not isinstance(fields, dict):
            raise _WrongLineError(f"expected a JSON object, got {_kind(fields)}")
        for name in self._wanted.names:
            if name not in fields:
                self._check_known(name)
        text = fields.get(self._how.text_column)
        if text is None:
            self._note_null(where)
            return None
        if not isinstance(text, str):
            raise _WrongLineError(f"{self._how.text_column!r} is {_kind(text)}; expected a string")
        values = {name: fields.get(name) for name in self._how.keep}
        _check_characters((text, values))
        return text, values

    def _long(self, at: int, line: LongLine, source: Source) -> Iterator[Chunk]:
        """The document of a long line, in pieces."""
        self._line = None if self._line is None else self._line + 1
        where = self._where(at, self._line)
        try:
            found = self._long_fields(line, where)
        except _WrongLineError as error:
            self._tally.malformed(where, str(error), cause=error)
            return
        if found is None:
            return
        place, values = found
        reached = place[0]

        def pieces() -> Iterator[str]:
            nonlocal reached
            for reached, piece in line.string(*place):  # noqa: B007
                yield piece

        texts = iter(["".join(pieces())]) if self._how.whole else pieces()
        for piece, begins, ends in in_pieces(texts):
            kept = [values if begins else None]
            yield self._tally.chunk([piece], kept, self._progress(source, at + reached), part=(begins, ends))

    def _long_fields(self, line: LongLine, where: str) -> tuple[tuple[int, int], dict[str, Any]] | None:
        """Where the text of a long line lies, and the values to keep; None where it is no document."""
        if line.is_blank:
            return None
        if line.problem is not None:
            raise _WrongLineError(line.problem)
        for name in self._wanted.names:
            if line.place(name) is None:
                self._check_known(name)
        place = line.place(self._how.text_column)
        first = b"" if place is None else line.read(place[0], 1)
        if place is None or first == b"n":
            self._note_null(where)
            return None
        if first != b'"':
            raise _WrongLineError(f"{self._how.text_column!r} is no string; expected one")
        values = {name: self._long_value(line, name) for name in self._how.keep}
        try:
            for _ in line.string(*place):  # once to see that all of it is well, since nothing can be taken back
                pass
        except ValueError as error:
            raise _WrongLineError(str(error)) from error
        return place, values

    def _long_value(self, line: LongLine, name: str) -> Any:
        place = line.place(name)
        if place is None:
            return None
        start, stop = place
        _check_length(name, stop - start)
        value = line.value(start, stop)
        _check_characters(value)
        return value

    def _note_null(self, where: str) -> None:
        self._tally.null(where, f"{self._how.text_column!r} is null or not there")

    def _where(self, at: int, line: int | None) -> str:
        where = shown(self._path) if line is None else f"{shown(self._path)}, line {line:,}"
        return f"{where}, from byte {at:,}" + (" of what is in it" if not self._is_plain else "")

    def _check_known(self, name: str) -> None:
        """That a key which a line does not have is at least in one of those that begin in the first MiB of the file.

        So what is an error does not depend on how the file is cut.
        """
        if name in self._known:
            return
        wanted, keys, num_lines = Wanted([name]), list[str](), 0
        with Source(self._path) as source:
            how = self._how
            blocks = blocks_of_lines(
                source, 0, _HEAD_BYTES, wanted=wanted, block_bytes=how.chunk_bytes, long_bytes=how.long_bytes
            )
            for _, block in blocks:
                if isinstance(block, LongLine):
                    num_lines += 1
                    if block.place(name) is not None:
                        self._known.add(name)
                        return
                    continue
                for line in block.split(b"\n"):
                    num_lines += 1
                    fields = _object(line)
                    if name in fields:
                        self._known.add(name)
                        return
                    keys = keys or list(fields)
        those = f"; the keys of the first are {', '.join(keys[:20])}" if keys else ""
        option = "text_column=…" if name == self._how.text_column else "keep=…"
        raise MissingError(
            f"{shown(self._path)}: none of the first {num_lines:,} lines has {name!r}{those}. Name one that is there: "
            f"{option}"
        )


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _check_length(name: str, num_bytes: int) -> None:
    if num_bytes > _LONGEST_VALUE:
        raise _WrongLineError(f"{name!r} has {num_bytes:,} bytes; at most {_LONGEST_VALUE:,} of a value can be kept")


def _check_characters(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _WrongLineError(f"an escape is no character ({error.reason})") from error


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
