"""Preparation of texts for engines: no endless runs and no surrogates, so that every engine is exact, fast and safe.

Splitting a million spaces overflows the stack of tiktoken's regular expressions, and merging a word of a million
letters takes some versions hours. So **a run of more than 65,536 characters that are all white space, or all not, is
cut every 65,536 characters from its start, and the tokens of such a text are those of its pieces**. Texts with shorter
runs are not cut, and their tokens equal those of tiktoken's `encode_ordinary`. The rule depends on the text alone, so
all engines agree. At this length every engine takes less than 70 ms for any run that we tried. Only the libraries of
`general_engines.py`, which have no rivals to agree with, get texts whole.

Lone surrogates, which UTF-8 cannot hold, are replaced by U+FFFD, and pairs of them are joined, as in tiktoken.
"""

import re
from collections.abc import Sequence

from tokenfeed.errors import ArgumentError
from tokenfeed.text.tokenizer.engines import Encoded, TokenizerEngine

__all__ = ["LONGEST_RUN", "cut_runs", "encode_texts", "join_surrogates"]

LONGEST_RUN = 65_536

_SPACE = re.compile(r"\s")
_NOT_SPACE = re.compile(r"\S")
# Each alternative can match only at the start of a run; matching inside shorter runs would take quadratic time.
_LONG_RUN = re.compile(rf"(?<!\s)\s{{{LONGEST_RUN + 1},}}|(?<!\S)\S{{{LONGEST_RUN + 1},}}")


def encode_texts(engine: TokenizerEngine, texts: Sequence[str], threads: int) -> Encoded:
    """The tokens of all texts one after the other, and the offset of each text's first token, plus the end."""
    long = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"texts[{number}] is a {type(text).__name__}; expected a str")
        if len(text) > engine.longest_run and _may_have_long_run(text):
            long.append(number)
    try:
        if long:
            return _encode_cut(engine, texts, set(long), threads)
        return engine.encode(texts, threads)
    except (UnicodeEncodeError, TypeError):  # gigatoken raises the latter
        joined = [join_surrogates(text) for text in texts]
        if all(new is old for new, old in zip(joined, texts, strict=True)):
            raise
        return encode_texts(engine, joined, threads)


def cut_runs(text: str) -> list[str]:
    """The pieces a text is encoded in: only itself, unless it has a run of more than `LONGEST_RUN` characters.

    Takes O(runs) time for a text of short runs, because one character of each kind in every half of `LONGEST_RUN` rules
    out a longer one; O(characters) otherwise.

    With a limit of 4: "ab cdefghijk" → "ab cdef", "ghij", "k"
    """
    if len(text) <= LONGEST_RUN or not _may_have_long_run(text):
        return [text]
    pieces, start = [], 0
    for run in _LONG_RUN.finditer(text):
        for cut in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
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


def _may_have_long_run(text: str) -> bool:
    """Whether an aligned block of half the limit is all of one kind; every run longer than the limit covers one."""
    half = LONGEST_RUN // 2
    for start in range(0, len(text) - half + 1, half):
        stop = start + half
        if _SPACE.search(text, start, stop) is None or _NOT_SPACE.search(text, start, stop) is None:
            return True
    return False


def _encode_cut(engine: TokenizerEngine, texts: Sequence[str], long: set[int], threads: int) -> Encoded:
    pieces: list[str] = []
    first_piece = [0]
    for number, text in enumerate(texts):
        pieces.extend(cut_runs(text) if number in long else (text,))
        first_piece.append(len(pieces))
    ids, offsets = engine.encode(pieces, threads)
    return ids, offsets[first_piece]
