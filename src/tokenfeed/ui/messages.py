"""Questions of the page, with parameters checked when they are read, and answers: JSON of bounded size.

Payloads and texts are the user's data and are shown unchanged. Everything else that may hold a path or an address
(errors, provenance) goes through `without_paths`: the page gets no paths of this machine.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError

__all__ = ["Json", "Query", "last_name", "pick", "plain", "to_bytes", "without_paths"]

Json = dict[str, Any]

_MOST_DIGITS = 20
_LONGEST_TEXT = 2_000
_MOST_ENTRIES = 64
_DEEPEST = 6
_LARGEST_EXACT = 1 << 53  # JavaScript's largest exact integer

# An address with a scheme, or a path from the root: ends at white space or at a closing quote or bracket. A scheme has
# at most 20 letters, so that a long word is not read once for each of its letters.
_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s'\"`<>|,;)\]}]+|(?<![\w.~/])(?:~|\.{1,2})?/[^\s'\"`<>|,;)\]}]*")


class Query:
    """The parameters of one request. An invalid one raises ArgumentError, which says what is valid."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def whole(self, name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number in [least, most]."""
        text = self._values.get(name, "").strip()
        if not text:
            return default
        digits = text.removeprefix("-")
        if len(text) > _MOST_DIGITS or not digits.isascii() or not digits.isdigit():
            raise ArgumentError(f"{name} is {text[:40]!r}; expected a whole number")
        number = int(text)
        if not least <= number <= most:
            raise ArgumentError(f"{name} is {number:,}; it must be from {least:,} to {most:,}")
        return number

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """One of the choices; if the request names none, `default`, or else the first."""
        if not choices:
            raise ArgumentError(f"the store has no {name} to choose from")
        text = self._values.get(name, "") or default or choices[0]
        if text not in choices:
            raise ArgumentError(f"{name} is {text[:40]!r}; it must be one of {', '.join(choices)}")
        return text

    def text(self, name: str) -> str | None:
        """Any text; None if the request has none."""
        return self._values.get(name) or None


def last_name(path: str) -> str:
    """The last part of a path or an address, without its query: `"b"` for `"s3://a/b/"`."""
    text = path.partition("?")[0].partition("#")[0] if "://" in path else path
    parts = [part for part in text.split("://")[-1].rstrip(":.").split("/") if part not in ("", ".", "..")]
    name = parts[-1].rpartition("@")[2] if parts else ""
    return name or "here"


def without_paths(text: str, homes: Sequence[str] = ()) -> str:
    """The text with every path and address reduced to its last part.

    A path ends at white space. Paths that contain white space must lie in one of the folders `homes`, removed first.
    """
    for home in sorted((each for each in homes if len(each) > 1), key=len, reverse=True):
        text = text.replace(home, "")
    return _PATH.sub(_shorten, text)


def _shorten(match: re.Match[str]) -> str:
    path = match[0].rstrip(":.")  # punctuation of the sentence, not of the path
    return last_name(path) + match[0][len(path) :]


def _clean(text: str) -> str:
    """Like `without_paths`, except that a text that is one path as a whole may contain white space."""
    is_path = text.startswith(("/", "~/")) or re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://", text)
    return last_name(text) if is_path and "\n" not in text else without_paths(text)


def plain(value: Any, *, clean: bool = False, depth: int = 0) -> Any:
    """Any value as JSON of bounded size that JavaScript reads exactly: integers beyond 2**53 become text.

    `clean=True` removes paths from texts.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = _clean(value[: 4 * _LONGEST_TEXT]) if clean else value
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    if isinstance(value, int | np.integer):
        return int(value) if abs(int(value)) <= _LARGEST_EXACT else str(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value[:32])
        return f"{len(value):,} bytes: {data.hex(' ')}{'' if len(value) <= len(data) else ' …'}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}: {np.array2string(value, threshold=16)[:200]}"
    if depth < _DEEPEST and isinstance(value, Mapping):
        entries = list(value.items())
        shown = {str(key)[:200]: plain(item, clean=clean, depth=depth + 1) for key, item in entries[:_MOST_ENTRIES]}
        return shown if len(entries) <= _MOST_ENTRIES else {**shown, "…": f"{len(entries) - _MOST_ENTRIES:,} more"}
    if depth < _DEEPEST and isinstance(value, Sequence):
        listed = [plain(item, clean=clean, depth=depth + 1) for item in value[:_MOST_ENTRIES]]
        return listed if len(value) <= _MOST_ENTRIES else [*listed, f"… {len(value) - _MOST_ENTRIES:,} more"]
    return plain(str(value)[:_LONGEST_TEXT], clean=clean, depth=depth + 1)


def to_bytes(answer: Json) -> bytes:
    """JSON that every browser reads: half surrogates are escaped, and numbers that JSON lacks become text."""
    try:
        return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(answer), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def pick(source: Any, names: str) -> Json:
    """These attributes of an object."""
    return {name: getattr(source, name) for name in names.split()}
