"""One line of JSONL: the text under one key, and the values to keep. `json` decides; orjson is faster.

Lines that orjson refuses, or reads less exactly, are left to `json`: with and without orjson a line says the same.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tokenfeed.text.sources.portions import advise

__all__ = ["LineError", "parse_line", "parse_object"]

_LARGEST_EXACT = 2.0**63  # orjson makes a float of an integer that has more bits


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
        advice = advise(names, [name for name in names if _is_tokens(fields[name])])
        raise LineError(f"there is no {column!r}; the keys are {', '.join(names[:20]) or 'none'}. {advice}") from None
    if text is not None and not isinstance(text, str):
        advice = f". {advise((), [column])}" if _is_tokens(text) else ""
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
