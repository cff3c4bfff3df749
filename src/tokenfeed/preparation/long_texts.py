"""Texts that come in pieces: how much can be encoded already, so that tokens are those of the whole text.

A text may be cut in two places without any token changing:

* After the engine's `longest_run` of characters without a break, where `text/tokenizer/pieces.py` cuts any text.
* Where the pattern always ends one match and begins the next, whatever comes before and after. All usual patterns are
  alternatives out of `_KNOWN`, none of which can match across

      anything | space or tab          "…the end.| The next…"
      ASCII letter or digit | white space
      one line feed after anything, before anything but white space and "/":     "…\\n|x"

  and none of which, at the last match before such a place, looks at what follows it. Each of these places is between
  white space and something else, so that runs are not cut either.

With another pattern, and in a text that has none of these places, all is kept until the text ends. So it is with a
tokenizer that is more than a pattern and merges, whose runs are not cut either.
"""

import re

from tokenfeed.text.tokenizer.pieces import join_surrogates
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS

__all__ = ["LongText", "has_known_cuts"]


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a regular expression: what `|` divides, outside of groups and classes."""
    found, depth = [""], 0
    for part in re.findall(r"\\.|\[(?:\\.|[^]\\])*\]|.", pattern, re.DOTALL):  # a class is one part
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += part
    return found


_CONTRACTIONS = {r"'(?i:[sdmt]|ll|ve|re)", r"'(?:[sdmt]|ll|ve|re)", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"}
_CONTRACTIONS |= {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}
_O200K_ENDS = ("", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = {rf"[^\r\n\p{{L}}\p{{N}}]?{a}\p{{L}}{b}" for a in ("", "+") for b in ("+", "++")}
_WORDS |= {rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{end}" for end in _O200K_ENDS}
_WORDS |= {rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{end}" for end in _O200K_ENDS}
_WORDS |= {rf"{space}\p{{{kind}}}{many}" for space in ("", " ?") for kind in "LN" for many in ("", "+", "++")}
_NUMBERS = {rf"\p{{N}}{{1,{count}}}{many}" for count in (2, 3) for many in ("", "+")}
_SIGNS = {
    rf" ?[^\s\p{{L}}\p{{N}}]{many}{lines}"
    for many in ("+", "++")
    for lines in ("", r"[\r\n]*", r"[\r\n]*+", r"[\r\n/]*", r"[\r\n/]*+")
}
_SPACES = {r"\s*[\r\n]", r"\s*[\r\n]+", r"\s++$", r"\s+$", r"\s+(?!\S)", r"\s+", r"\s++", r"\s"}
_KNOWN = _CONTRACTIONS | _WORDS | _NUMBERS | _SIGNS | _SPACES | set(_alternatives(PATTERNS["deepseek"]))

_CUT = re.compile(r"(?<=\S)(?=[ \t])|(?<=[0-9A-Za-z])(?=\s)|(?<=\S\n)(?=[^\s/])")
_CUT_CONTEXT = 2
_WINDOW = 4096
_SPACE, _NOT_SPACE = re.compile(r"\s"), re.compile(r"\S")


class LongText:
    """One text, given piece by piece. Time is linear in its length; memory that of what cannot be encoded yet."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._has_cuts = tokenizer.pattern is not None and has_known_cuts(tokenizer.pattern)
        self._longest_run = tokenizer.longest_run
        self._kept: list[str] = []
        """Text that cannot be encoded yet: it has no place to cut."""
        self._half = ""
        """The first half of a surrogate pair, if a piece ended with one."""
        self._run = 0
        """How many characters at the end of what is kept are all white space, or all not; counted from the last cut."""

    def add(self, piece: str) -> str:
        """The text that can be encoded after this piece: all up to the last place where it can be cut, or nothing."""
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        piece = join_surrogates(piece[: len(piece) - len(self._half)])
        if not piece:
            return ""
        cut = self._find_cut(piece)
        self._extend_run(piece)
        self._kept.append(piece)
        if self._run > self._longest_run:  # in which there is no other place
            self._run -= (self._run - 1) // self._longest_run * self._longest_run
            cut = len(piece) - self._run
        if cut is None:
            return ""
        text = "".join(self._kept)
        stop = len(text) - len(piece) + cut
        self._kept = [text[stop:]]
        return text[:stop]

    def finish(self) -> str:
        """The rest."""
        rest = "".join((*self._kept, join_surrogates(self._half)))
        self._kept, self._half, self._run = [], "", 0
        return rest

    def _find_cut(self, piece: str) -> int | None:
        """The last place in or before a piece where it can be cut, counted from its first character."""
        if not self._has_cuts:
            return None
        before = "".join(self._kept[-2:])[-_CUT_CONTEXT:] if self._kept else ""
        text = before + piece
        for stop in range(len(text), 0, -_WINDOW):
            start = max(0, stop - _WINDOW)
            places = [match.start() for match in _CUT.finditer(text, start, stop + 1)]  # it looks one ahead
            if places:
                return places[-1] - len(before)
        return None

    def _extend_run(self, piece: str) -> None:
        length = _run_at_end(piece)
        is_same = self._kept and bool(_SPACE.match(self._kept[-1][-1:])) == bool(_SPACE.match(piece))
        self._run = self._run + length if length == len(piece) and is_same else length


def has_known_cuts(pattern: str) -> bool:
    """Whether a pattern consists of alternatives that are known never to match across certain places."""
    return set(_alternatives(pattern)) <= _KNOWN


def _run_at_end(text: str) -> int:
    """How many characters at the end are all white space, or all not."""
    is_space = bool(_SPACE.match(text, len(text) - 1))
    other = _NOT_SPACE if is_space else _SPACE
    for stop in range(len(text), 0, -_WINDOW):
        ends = [match.end() for match in other.finditer(text, max(0, stop - _WINDOW), stop)]
        if ends:
            return len(text) - ends[-1]
    return len(text)
