"""What engines are given: valid texts without endless runs, so that every engine is exact, fast, and never fails.

Splitting a million spaces overflows the stack of tiktoken's regular expressions, and merging a word of a million
letters takes some versions hours. So **a run of more than 65,536 characters that are all white space, or all not, is
cut every 65,536 characters from its start, and the tokens of such a text are those of its pieces**. Where runs are
shorter nothing is cut, and tokens equal those of tiktoken's `encode_ordinary`. The rule looks at the text alone, so
that all engines agree. At this length all of them take less than 70 ms for any run that we tried.

Lone surrogates, which UTF-8 cannot hold, are replaced by U+FFFD, and pairs of them joined, as tiktoken does.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError
from tokenfeed.text.tokenizer.engines import Engine

__all__ = ["LONGEST_RUN", "cut_runs", "encode_texts", "join_surrogates"]

LONGEST_RUN = 65_536

_SPACE = re.compile(r"\s")
_NOT_SPACE = re.compile(r"\S")
# Each alternative begins where a run does: tried at every character of a shorter run, it would take quadratic time.
_LONG_RUN = re.compile(rf"(?<!\s)\s{{{LONGEST_RUN + 1},}}|(?<!\S)\S{{{LONGEST_RUN + 1},}}")


def encode_texts(
    engine: Engine, texts: Sequence[str], threads: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The tokens of all texts one behind the other, and where each text's begin, plus the end."""
    long = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"texts[{number}] is a {type(text).__name__}, not a str; leave it out")
        if len(text) > LONGEST_RUN and _may_have_long_run(text):
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
    """The pieces that a text is encoded in: itself alone, unless it has a run of more than `LONGEST_RUN` characters.

    Time is O(runs) where runs are short, since one character of each kind in every half of `LONGEST_RUN` is enough to
    know; O(characters) where they may be long.

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
    """The text as UTF-8 can hold it: itself, unless there are surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _may_have_long_run(text: str) -> bool:
    """Whether some aligned block of half the limit is all of one kind; every run of more than the limit covers one."""
    half = LONGEST_RUN // 2
    for start in range(0, len(text) - half + 1, half):
        stop = start + half
        if _SPACE.search(text, start, stop) is None or _NOT_SPACE.search(text, start, stop) is None:
            return True
    return False


def _encode_cut(
    engine: Engine, texts: Sequence[str], long: set[int], threads: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    pieces: list[str] = []
    first_piece = [0]
    for number, text in enumerate(texts):
        pieces.extend(cut_runs(text) if number in long else (text,))
        first_piece.append(len(pieces))
    ids, offsets = engine.encode(pieces, threads)
    return ids, offsets[first_piece]
