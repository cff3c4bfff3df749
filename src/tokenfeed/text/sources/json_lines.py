"""One line of JSONL: the text under one key, and the values to keep. `json` decides; orjson is faster.

Lines that orjson refuses, or reads less exactly, are left to `json`: with and without orjson a line says the same.
"""

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenfeed.errors import CorruptionError
from tokenfeed.text.sources.portions import tokens_advice

__all__ = ["LineError", "LongLine", "parse_line", "parse_object"]

_LARGEST_EXACT = 2.0**63  # orjson makes a float of an integer that has more bits
_LONGEST_REST = 16 << 20
_SHORTEST_PLACEHOLDER = 256
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# The longest beginning of the inside of a string that ends neither in an escape nor between two halves of a pair.
_WHOLE_ESCAPES = re.compile(
    r"(?:[^\\]++|\\[^u]|\\u[dD][89abAB].{2}\\u.{4}|\\u(?![dD][89abAB]).{4}|\\u.{4}(?=.{6}))*+", re.DOTALL
)


def _find_fast_loads() -> Callable[[bytes], Any] | None:
    try:
        from orjson import loads
    except ImportError:
        return None  # `prepare` then has nine tenths of the speed: docs/decisions/2026-11-16-reading-text.md
    return loads


_fast_loads = _find_fast_loads()


class LineError(Exception):
    """A line that holds no document; the message says why."""


def parse_line(line: bytes, column: str, keep: Sequence[str] = ()) -> tuple[str | None, dict[str, Any]]:
    """(the text, None where it is null; the values to keep, None where there are none) of a line."""
    fields = parse_object(line, column, keep)
    try:
        text = fields[column]
    except KeyError:
        names = list(fields)
        advice = tokens_advice([name for name in names if _is_tokens(fields[name])])
        raise LineError(f"there is no {column!r}; the keys are {', '.join(names[:20]) or 'none'}. {advice}") from None
    if text is not None and not isinstance(text, str):
        advice = f". {tokens_advice([column])}" if _is_tokens(text) else ""
        raise LineError(f"{column!r} is {_kind(text)}; expected a string{advice}")
    return text, {name: fields.get(name) for name in keep}


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def parse_object(line: bytes, column: str | None, keep: Sequence[str] = ()) -> dict[str, Any]:
    """The object that a line consists of. Its text and the values to keep are exact, and are characters.

    Without a column, all of its values are.
    """
    if _fast_loads is not None:
        try:
            fields = _fast_loads(line)
            if type(fields) is dict and (
                _is_exact(fields) if column is None else not keep or all(_is_exact(fields.get(name)) for name in keep)
            ):
                return fields
        except (ValueError, RecursionError):
            pass  # `json` says whether anything is wrong, and what
    try:
        fields = json.loads(str(line, "utf-8"))
    except UnicodeDecodeError as error:
        raise LineError(f"the line is not UTF-8 ({error.reason} at byte {error.start:,})") from error
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise LineError(f"the line is not JSON ({what} at character {error.pos + 1:,})") from error
    except (ValueError, RecursionError) as error:
        raise LineError(f"the line is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise LineError(f"expected a JSON object, got {_kind(fields)}")
    if b"\\u" in line:  # only an escape can make half of a surrogate pair
        _check_characters(fields if column is None else [fields.get(name) for name in (column, *keep)])
    return fields


def _is_exact(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    return not isinstance(value, float) or abs(value) < _LARGEST_EXACT


def _check_characters(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise LineError(f"an escape is no character ({error.reason})") from error


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


class LongLine:
    """A line that does not fit into memory: fed block by block, then parsed with a placeholder for each long string.

        {"id": 7, "text": "…200 MB…"}   →   {"id": 7, "text": "0f3a…:0"}, and string 0 is bytes [19, 200000019)

    The long strings are read again, a block at a time.
    """

    def __init__(self, read: Callable[[int, int], bytes], *, block_bytes: int, long_bytes: int) -> None:
        """`read(offset, num_bytes)` reads the line once more, as far as it has been fed."""
        self.num_bytes = 0
        self.is_blank = True
        self._read = read
        self._block_bytes = block_bytes
        self._long_bytes = max(long_bytes, _SHORTEST_PLACEHOLDER)
        self._rest = bytearray()
        self._placeholder = os.urandom(16).hex()
        self._strings: dict[str, tuple[int, int]] = {}
        self._start = -1  # where the string that is open begins; -1 outside of strings
        self._start_in_rest = 0
        self._after_backslash = False

    def feed(self, block: bytes) -> None:
        """Go through the next bytes."""
        self.is_blank &= not block or block.isspace()
        at = 0
        while at < len(block) and len(self._rest) <= _LONGEST_REST + self._long_bytes:
            if self._start < 0:
                stop = block.find(b'"', at) + 1 or len(block)
                part = block[at:stop]
                self._rest += part if part.strip(b" \t\r") else b" "
                if part.endswith(b'"'):
                    self._start, self._start_in_rest = self.num_bytes + stop, len(self._rest)
            else:
                inside = None if self._after_backslash else _INSIDE.match(block, at)
                stop = at + 1 if inside is None else inside.end()
                self._after_backslash = not self._after_backslash and block[stop:] == b"\\"
                stop += self._after_backslash
                if len(self._rest) - self._start_in_rest <= self._long_bytes:
                    self._rest += block[at:stop]
                if block[stop : stop + 1] == b'"':
                    self._close(self.num_bytes + stop)
                    stop += 1
            at = stop
        self.num_bytes += len(block)

    def _close(self, stop: int) -> None:
        if stop - self._start > self._long_bytes:
            name = f"{self._placeholder}:{len(self._strings)}"
            self._strings[name] = self._start, stop
            self._rest[self._start_in_rest :] = name.encode()
        self._rest += b'"'
        self._start = -1

    def parse(self, column: str, keep: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
        """The same as `parse_line`, but the text may be a placeholder: `pieces` gives the text itself."""
        if len(self._rest) > _LONGEST_REST:
            raise LineError(f"the line has more than {_LONGEST_REST:,} bytes beside its long strings")
        text, kept = parse_line(bytes(self._rest), column, keep)
        for name in self._strings:  # all of it must be right before anything is handed over
            for piece, _ in self.pieces(name):
                if name == text:
                    _check_characters(piece)
        return text, {name: self._restore(value) for name, value in kept.items()}

    def pieces(self, text: str) -> Iterator[tuple[str, int]]:
        """(piece, the byte of the line where it ends) of a text, of its string where it is a placeholder."""
        if text not in self._strings:
            yield text, self.num_bytes
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        rest, (at, stop) = "", self._strings[text]
        while at < stop:
            block = self._read(at, min(self._block_bytes, stop - at))
            if not block:
                raise CorruptionError(f"the line ends after {at:,} bytes; it had {self.num_bytes:,} before")
            at += len(block)
            try:
                inside = rest + decoder.decode(block, at == stop)
                whole = _WHOLE_ESCAPES.match(inside)
                cut = len(inside) if at == stop or whole is None else whole.end()
                yield json.loads(f'"{inside[:cut]}"'), at
            except UnicodeDecodeError as error:
                raise LineError(f"the line is not UTF-8 ({error.reason}, before its byte {at:,})") from error
            except ValueError as error:
                raise LineError(f"the line is not JSON ({error}, before its byte {at:,})") from error
            rest = inside[cut:]

    def _restore(self, value: Any) -> Any:
        """A value to keep, with its strings in place of placeholders."""
        if isinstance(value, dict):
            return {self._restore(name): self._restore(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._restore(inner) for inner in value]
        if value in self._strings:
            start, stop = self._strings[value]
            if stop - start > _LONGEST_REST:
                raise LineError(f"a value to keep has {stop - start:,} bytes; at most {_LONGEST_REST:,} can be kept")
            value = "".join(piece for piece, _ in self.pieces(value))
            _check_characters(value)
        return value
