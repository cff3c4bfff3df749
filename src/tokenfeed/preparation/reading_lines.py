"""JSONL as blocks of whole lines, and long lines one by one: no more than a few MiB are in memory at a time."""

import codecs
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.kernels import json_lines, json_strings
from tokenfeed.preparation.reading_files import Source
from tokenfeed.storage.local import writing

__all__ = ["WRONG", "LongLine", "Wanted", "blocks_of_lines"]

_BOM = b"\xef\xbb\xbf"
_BEYOND_BYTES = 1 << 16
WRONG = {
    json_lines.BAD: "the line is not JSON",
    json_lines.TOO_DEEP: f"the line is nested more than {json_lines.MAX_DEPTH} levels deep",
    json_lines.LONG_TOKEN: "the line has a number of more than 4,000 digits",
    json_lines.NOT_OBJECT: "expected a JSON object",
}


class Wanted:
    """Keys whose values are looked for, and what kernels need for that. One thread may use it."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode() for name in names]
        self.names = tuple(names)
        self.keys = np.frombuffer(b"".join(encoded), np.uint8)
        self.offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        self.name = np.zeros(6 * max(map(len, encoded)), np.uint8)
        self.state = np.zeros(json_lines.STATE_WORDS, np.int64)


def blocks_of_lines(
    source: Source, start: int, stop: int, *, wanted: Wanted, block_bytes: int, long_bytes: int
) -> Iterator["tuple[int, bytes | LongLine]"]:
    """(its first byte, block) of the lines that begin in [start, stop): of many whole lines, or of a long one alone.

    A byte-order mark at the very beginning is left out. A LongLine can be used until the next block is asked for.
    """
    at, data, ended = _first_line(source, start, stop, block_bytes)
    if start == 0 and data.startswith(_BOM):
        at, data, stop = len(_BOM), data[len(_BOM) :], max(stop, len(_BOM) + 1)  # it still begins at 0
    while at < stop:  # data begins with the line that begins at `at`
        end = data.find(b"\n", max(0, stop - 1 - at)) + 1 or data.rfind(b"\n") + 1
        if end == 0 and ended:
            if data:
                yield at, data
            return
        if end == 0 and len(data) > long_bytes:
            with contextlib.ExitStack() as opened:
                line, data, ended = _long_line(source, at, data, opened, wanted=wanted, block_bytes=block_bytes)
                yield at, line
                at += line.num_bytes + 1
            continue
        if end > 0:
            yield at, data[:end]
            at, data = at + end, data[end:]
        if not ended and at < stop:
            num_bytes = max(block_bytes, len(data))
            ahead = stop - at - len(data)
            num_bytes = min(num_bytes, ahead if ahead > 0 else max(_BEYOND_BYTES, len(data)))
            more = source.read(num_bytes)
            ended = len(more) < num_bytes
            data += more


def _first_line(source: Source, start: int, stop: int, block_bytes: int) -> tuple[int, bytes, bool]:
    """Where the first line that begins in [start, stop) does (`stop` or beyond: nowhere), bytes from there, the end."""
    if start == 0:
        data = source.read(max(len(_BOM), min(block_bytes, stop)))
        return 0, data, not data
    source.seek(start - 1)
    at = start - 1
    while at < stop - 1:
        data = source.read(min(block_bytes, stop - 1 - at))
        if not data:
            break
        begin = data.find(b"\n") + 1
        if begin > 0:
            return at + begin, data[begin:], False
        at += len(data)
    return stop, b"", True


def _long_line(
    source: Source, at: int, data: bytes, opened: contextlib.ExitStack, *, wanted: Wanted, block_bytes: int
) -> "tuple[LongLine, bytes, bool]":
    """Go through a line that begins with `data`. Returns it, the bytes behind its newline, and whether the file ended.

    Its bytes can be read again: from a file of its own, or where decompressed from a temporary one.
    """
    line = LongLine(wanted, block_bytes)
    if source.codec is None:
        again = opened.enter_context(source.reopened())

        def read(offset: int, num_bytes: int) -> bytes:
            if again.position != at + offset:
                again.seek(at + offset)
            return again.read(num_bytes)
    else:
        spool = opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115

        def read(offset: int, num_bytes: int) -> bytes:
            spool.seek(offset)
            return spool.read(num_bytes)

    ended = False
    while True:
        newline = data.find(b"\n")
        part = data if newline < 0 else data[:newline]
        if source.codec is not None:
            with writing(Path(tempfile.gettempdir())):
                spool.write(part)
        line.feed(part, final=newline >= 0 or ended)
        if newline >= 0 or ended:
            line.read = read
            return line, b"" if newline < 0 else data[newline + 1 :], ended
        data = source.read(block_bytes)
        ended = len(data) < block_bytes


class LongLine:
    """A line that has been gone through, with the places of the wanted values in it."""

    def __init__(self, wanted: Wanted, block_bytes: int) -> None:
        self.problem: str | None = None
        """What is wrong with it."""
        self.is_blank = True
        self.num_bytes = 0
        self.read: Callable[[int, int], bytes]
        """read(offset, num_bytes) of the line."""
        self._wanted = wanted
        self._block_bytes = block_bytes
        self._found = np.empty((len(wanted.names), 2), np.int64)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = b""
        json_lines.start_line(wanted.state, self._found)

    def feed(self, data: bytes, *, final: bool) -> None:
        """Go on through the next bytes, to the end of the line if they are the final ones."""
        self.num_bytes += len(data)
        self.is_blank &= not data or data.isspace()
        if self.problem is not None:
            return
        try:
            self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            self.problem = f"the line is not UTF-8 ({error.reason}, before its byte {self.num_bytes:,})"
            return
        buffer = self._rest + data
        origin = self.num_bytes - len(buffer)
        wanted = self._wanted
        stopped, status = json_lines.scan(
            *(_array(buffer), 0, len(buffer), final, origin),
            *(wanted.state, wanted.name, wanted.keys, wanted.offsets, self._found),
        )
        self._rest = buffer[stopped:]
        if status in WRONG:
            self.problem = f"{WRONG[status]} (at its byte {origin + stopped:,})"

    def place(self, name: str) -> tuple[int, int] | None:
        """Where the value of a wanted key lies; None where there is none."""
        start, stop = self._found[self._wanted.names.index(name)].tolist()
        return None if start < 0 else (start, stop)

    def value(self, start: int, stop: int) -> Any:
        """A value, as JSON says it."""
        return json.loads(str(self.read(start, stop - start), "utf-8"))

    def string(self, start: int, stop: int) -> Iterator[tuple[int, str]]:
        """(the byte where it ends, piece) of a value that is a string; ValueError if an escape is no character."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        at, last, rest = start + 1, stop - 1, b""
        while at < last or rest:
            raw = self.read(at, min(self._block_bytes, last - at))
            at += len(raw)
            final = at >= last
            buffer = rest + raw
            out = np.empty(len(buffer), np.uint8)
            stopped, written = json_strings.unescape(_array(buffer), 0, len(buffer), final, out, 0)
            if stopped < 0:
                raise ValueError(f"an escape before byte {at:,} of the line is no character")
            rest = buffer[stopped:]
            yield at, decoder.decode(out[:written].tobytes(), final)


def _array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
