"""Preparation of texts for engines: no endless runs and no surrogates, so that every engine is exact, fast and safe.

Splitting a million spaces overflows the stack of tiktoken's regular expressions. So **a run of more characters than an
engine's `longest_run` that are all white space, or all not, is cut every so many characters from its start, and the
tokens of such a text are those of its pieces**: 65,536 for tiktoken, which then takes less than 70 ms for any run that
we tried, and 2^24 for our own engine, whose memory this bounds. Texts with shorter runs are not cut, and their tokens
equal those of tiktoken's `encode_ordinary`. The libraries of `general_engines.py` get every text whole.

Lone surrogates, which UTF-8 cannot hold, are replaced by U+FFFD, and pairs of them are joined, as in tiktoken.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tokenfeed.text.tokenizer.engines import Encoded, TokenizerEngine
from tokenfeed.types import Ints

__all__ = ["byte_places", "cut_runs", "encode_texts", "join_surrogates", "swallow"]

_SPACE = re.compile(r"\s")
_NOT_SPACE = re.compile(r"\S")


def encode_texts(engine: TokenizerEngine, texts: Sequence[str | bytes], threads: int) -> Encoded:
    """The tokens of all texts one after the other, and the offset of each text's first token, plus the end.

    A text of bytes is UTF-8 that has been checked.
    """
    if not engine.takes_utf8 or _longest(texts) > engine.longest_run:
        texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    try:
        return _encode_cut(engine, texts, threads)
    except UnicodeEncodeError:
        joined = [text if isinstance(text, bytes) else join_surrogates(text) for text in texts]
        return _encode_cut(engine, joined, threads)


def cut_runs(text: str, longest: int) -> list[str]:
    """The pieces a text is encoded in: only itself, unless it has a run of more than `longest` characters.

    Takes O(runs) time for a text of short runs, because one character of each kind in every half of `longest` rules
    out a longer one; O(characters) otherwise.

    With a limit of 4: "ab cdefghijk" → "ab cdef", "ghij", "k"
    """
    if len(text) <= longest or not _may_have_long_run(text, longest):
        return [text]
    pieces, start = [], 0
    for run in _long_runs(longest).finditer(text):
        for cut in range(run.start() + longest, run.end(), longest):
            pieces.append(text[start:cut])
            start = cut
    pieces.append(text[start:])
    return pieces


def join_surrogates(text: str) -> str:
    """The text in a form that UTF-8 can hold: unchanged unless it has surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def swallow(parts: Sequence[str | int], strips: Mapping[int, tuple[bool, bool]]) -> tuple[list[str | int], list[int]]:
    """Texts and special tokens without the white space that these swallow, and the characters that each then has."""
    made, widths = list(parts), [len(part) if isinstance(part, str) else 1 for part in parts]
    for number, part in enumerate(parts):
        for side, neighbour in enumerate((number - 1, number + 1)):
            if isinstance(part, str) or not strips.get(part, (False, False))[side] or not 0 <= neighbour < len(made):
                continue
            text = made[neighbour]
            if isinstance(text, str):
                kept = text.lstrip() if side else text.rstrip()
                widths[number] += len(text) - len(kept)
                made[neighbour], widths[neighbour] = kept, len(kept)
    return made, widths


def byte_places(text: str) -> Ints:
    """The byte of UTF-8 at which each character begins, and the end."""
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (code_points > 0x7F) + (code_points > 0x7FF).astype(np.int64) + (code_points > 0xFFFF)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))


@cache
def _long_runs(longest: int) -> re.Pattern[str]:
    # Each alternative can match only at the start of a run; matching inside shorter runs would take quadratic time.
    return re.compile(rf"(?<!\s)\s{{{longest + 1},}}|(?<!\S)\S{{{longest + 1},}}")


def _may_have_long_run(text: str, longest: int) -> bool:
    """Whether an aligned block of half the limit is all of one kind; every run longer than the limit covers one."""
    half = longest // 2
    for start in range(0, len(text) - half + 1, half):
        stop = start + half
        if _SPACE.search(text, start, stop) is None or _NOT_SPACE.search(text, start, stop) is None:
            return True
    return False


def _encode_cut(engine: TokenizerEngine, texts: Sequence[Any], threads: int) -> Encoded:
    if _longest(texts) <= engine.longest_run:
        return engine.encode(texts, threads)
    pieces: list[str] = []
    first_piece = [0]
    for text in texts:
        pieces.extend(cut_runs(text, engine.longest_run))
        first_piece.append(len(pieces))
    ids, offsets = engine.encode(pieces, threads)
    return ids, offsets[first_piece]


def _longest(texts: Sequence[str | bytes]) -> int:
    return max(map(len, texts), default=0)
