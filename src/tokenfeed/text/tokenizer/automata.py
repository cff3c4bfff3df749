r"""Patterns that split text, compiled to automata: tables that a kernel follows with one look-up a character.

A pattern becomes a list of instructions (Thompson's construction), and that list an automaton: a state is the ordered
list of the instructions at which a backtracking matcher could be, preferred ones first. An instruction that ends a
match hides all that follow it. So the automaton finds what backtracking finds, in one pass and without a stack.
`(?!\S)`, `$` and possessive repeats look at the next character, so a transition says whether a match ends *before* the
character that it reads.

`unicode.npy` has the Unicode classes that tiktoken uses (Unicode 16) as sorted numbers `first code point << 4 | class`.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.types import Array, Bools, Ints

__all__ = ["DEAD", "ENDS", "STRIDE", "Automaton", "compile_pattern"]

STRIDE = 64
"""Entries of one state in the table of transitions. A state is the number of its first entry."""
ENDS, DEAD = 0x8000, 0x4000
"""Bits of a transition: a match ends before this character; no longer match is possible."""

_CLASSES = ("", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "white space")
_CODE_POINTS = 0x110000
_MOST_REPEATS = 100
_FOLDS = {"s": "sSſ", "k": "kK\u212a"}  # the ASCII letters with more than two cases
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t"}
_SET = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]|(\\[pP]\{\w+\}|\\\W|\\[srntS]|[^\\^.$|?*+(){}\[\]])")
_MEMBER = re.compile(r"\\([pP])\{(\w+)\}|\\([sS])|(\\\W|\\[rnt]|[^\\])(?:-(\\\W|[^\\]))?")
_REPEAT = re.compile(r"(?:([?*+])|\{(\d+)(,?)(\d*)\})(\+?)")
_TIMES = {"?": (0, 1), "*": (0, None), "+": (1, None)}


class _UnknownSyntaxError(Exception):
    """The pattern has a construct that automata are not made for."""


class _Set(NamedTuple):
    """Characters: those that the members of a bracket name, or all others."""

    members: str
    is_negated: bool = False


class _Repeat(NamedTuple):
    """A part of a pattern, repeated; a possessive one ends only where no character of the set `unless` follows."""

    part: Any
    least: int
    most: int | None
    unless: _Set | None


class _Unless(NamedTuple):
    """No character, provided that none of the set follows."""

    characters: _Set


class _Step(NamedTuple):
    """One instruction: take a character of the set; or, `unless`, go on only if none of them follows."""

    targets: tuple[int, ...]
    """Where to go on, the preferred one first. The end of a match has none."""
    characters: _Set | None = None
    unless: bool = False


@dataclass(frozen=True)
class Automaton:
    """A pattern as tables. After a character of class c in state s, the state is `transitions[s + c]`; 0 at first."""

    transitions: npt.NDArray[np.uint16]
    loops: Bools
    """By state / STRIDE: whether a to z lead from it to itself, so that a kernel may skip them."""
    pages: npt.NDArray[np.uint16]
    """Page of every 256 code points: the class of c is `classes[pages[c >> 8] << 8 | c & 255]`."""
    classes: npt.NDArray[np.uint16]
    end: int
    """Class of the end of a text."""


@lru_cache(maxsize=16)
def compile_pattern(pattern: str) -> Automaton | None:
    """The automaton of a pattern; None if it has an unknown construct, or leaves out characters of some text."""
    compiler = _Compiler(pattern)
    try:
        compiler.compile()
        sets = sorted({step.characters for step in compiler.program if step.characters is not None})
        starts, memberships = _memberships(sets)
    except _UnknownSyntaxError:
        return None
    # Runs of code points that are in the same sets are one class: the column of their bits.
    bits, runs, class_of = np.unique((1 << np.arange(len(sets))) @ memberships, return_index=True, return_inverse=True)
    present = [{name for i, name in enumerate(sets) if memberships[i, run]} for run in runs]
    rows = _explore(compiler, [*present, set()])  # no set has the end of a text
    if not _always_matches(rows) or len(bits) >= STRIDE or len(rows) * STRIDE > DEAD:
        return None
    return _tables(rows, starts, class_of, len(bits))


class _Compiler:
    """Parses a pattern into a tree, and generates instructions from its end to its start."""

    def __init__(self, pattern: str) -> None:
        self.program: list[_Step] = []
        self._pattern, self._at = pattern, 0

    def compile(self) -> None:
        """Fill `program`: first the end of a match, and last the start of the pattern."""
        tree = self._parse_alternatives(ignore_case=False)
        if self._at < len(self._pattern):
            raise _UnknownSyntaxError
        self._emit(self._generate(tree, self._emit()))

    def advance(self, state: tuple[int, ...], present: set[_Set]) -> tuple[tuple[int, ...], bool]:
        """The state after a character that is in the sets `present`, and whether a match ends before it."""
        following: dict[int, None] = {}
        todo, seen = list(reversed(state)), set()
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self.program[number]
            if not step.targets:
                return tuple(following), True
            if step.characters is None or (step.unless and step.characters not in present):
                todo.extend(reversed(step.targets))
            elif not step.unless and step.characters in present:
                following[step.targets[0]] = None
        return tuple(following), False

    def _emit(self, *targets: int, characters: _Set | None = None, unless: bool = False) -> int:
        self.program.append(_Step(targets, characters, unless))
        return len(self.program) - 1

    def _accept(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._at)
        self._at += len(text) if is_there else 0
        return is_there

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise _UnknownSyntaxError

    def _parse_alternatives(self, *, ignore_case: bool) -> list[list[Any]]:
        alternatives: list[list[Any]] = [[]]
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._accept("|"):
                alternatives.append([])
            else:
                alternatives[-1].append(self._parse_repeated(ignore_case))
        return alternatives

    def _parse_repeated(self, ignore_case: bool) -> Any:
        part = self._parse_part(ignore_case)
        repeat = _REPEAT.match(self._pattern, self._at)
        if repeat is None:
            return part
        self._at = repeat.end()
        sign, least, comma, most, possessive = repeat.groups()
        times = _TIMES[sign] if sign else (int(least), (int(most) if most else None) if comma else int(least))
        is_lazy, is_long = self._accept("?"), max(times[0], times[1] or 0) > _MOST_REPEATS
        if is_lazy or is_long or _may_be_empty(part) or (possessive and not isinstance(part, _Set)):
            raise _UnknownSyntaxError
        return _Repeat(part, *times, part if possessive else None)

    def _parse_part(self, ignore_case: bool) -> Any:
        for opening, inner in (("(?i:", True), ("(?:", ignore_case)):
            if self._accept(opening):
                group = self._parse_alternatives(ignore_case=inner)
                self._expect(")")
                return group
        if self._accept("$"):
            return _Unless(_Set("", is_negated=True))
        if self._accept("(?!"):
            characters = self._parse_set(ignore_case)
            self._expect(")")
            return _Unless(characters)
        return self._parse_set(ignore_case)

    def _parse_set(self, ignore_case: bool) -> _Set:
        found = _SET.match(self._pattern, self._at)
        if found is None:
            raise _UnknownSyntaxError
        self._at = found.end()
        negation, members, alone = found.groups()
        members = members or alone
        if ignore_case:
            if "\\" in members or "-" in members or not members.isascii():
                raise _UnknownSyntaxError
            members = "".join(_FOLDS.get(letter, letter + letter.upper()) for letter in members.lower())
        return _Set(members, bool(negation))

    def _generate(self, tree: Any, then: int) -> int:
        """Instructions for a part of the tree, to go on with `then`; the number of the one to begin with."""
        match tree:
            case _Set():
                return self._emit(then, characters=tree)
            case _Unless():
                return self._emit(then, characters=tree.characters, unless=True)
            case _Repeat():
                return self._generate_repeat(tree, then)
        heads = []
        for alternative in tree:
            head = then
            for part in reversed(alternative):
                head = self._generate(part, head)
            heads.append(head)
        return self._emit(*heads)

    def _generate_repeat(self, repeat: _Repeat, then: int) -> int:
        part, least, most, unless = repeat
        leave = then if unless is None else self._emit(then, characters=unless, unless=True)
        if most is None:
            head = self._emit(0, leave)
            self.program[head] = _Step((self._generate(part, head), leave))
        else:
            head = then
            for _ in range(most - least):
                head = self._emit(self._generate(part, head), leave)
        for _ in range(least):
            head = self._generate(part, head)
        return head


def _may_be_empty(tree: Any) -> bool:
    match tree:
        case _Set():
            return False
        case _Unless():
            return True
        case _Repeat():
            return tree.least == 0
    return any(all(map(_may_be_empty, alternative)) for alternative in tree)


def _explore(compiler: _Compiler, classes: list[set[_Set]]) -> Ints:
    """By state and class: the state that follows, or -1, and whether a match ends before the character."""
    first: tuple[int, ...] = (len(compiler.program) - 1,)
    states, todo, rows = {first: 0}, [first], []
    for state in todo:
        row = []
        for present in classes:
            following, ends = compiler.advance(state, present)
            if following and following not in states:
                states[following] = len(states)
                todo.append(following)
            row.append((states.get(following, -1), ends))
        rows.append(row)
        if len(rows) * STRIDE > DEAD:
            break
    return np.array(rows)


def _always_matches(rows: Ints) -> bool:
    """Whether every text begins with a match of at least one character, wherever it ends."""
    if rows[0, :, 1].any():
        return False
    unmatched, todo = {0}, [0]
    for state in todo:
        for kind, (following, ends) in enumerate(rows[state].tolist()):
            is_empty_text = state == 0 and kind == rows.shape[1] - 1
            if ends or is_empty_text or following in unmatched:
                continue
            if following < 0:
                return False
            unmatched.add(following)
            todo.append(following)
    return True


def _tables(rows: Ints, starts: Ints, class_of: Ints, end: int) -> Automaton:
    following, ends = rows[:, :, 0], rows[:, :, 1].astype(bool)
    # Where whatever comes next also ends a match, a longer one will be found: leave the shorter one unnoted.
    ends &= ~np.append(ends.all(axis=1), False)[following]
    transitions = np.full((len(rows), STRIDE), DEAD, np.uint16)
    transitions[:, : end + 1] = np.where(following < 0, DEAD, following * STRIDE) | np.where(ends, ENDS, 0)
    by_point = np.repeat(class_of, np.diff(starts, append=_CODE_POINTS)).astype(np.uint16)
    numbers: dict[bytes, int] = {}
    pages = [numbers.setdefault(page.tobytes(), len(numbers)) for page in by_point.reshape(-1, 256)]
    letters = np.unique(by_point[ord("a") : ord("z") + 1])
    loops = (following[:, letters] == np.arange(len(rows))[:, None]).all(axis=1) & ~ends[:, letters].any(axis=1)
    classes = np.frombuffer(b"".join(numbers), np.uint16)
    return Automaton(transitions.reshape(-1), loops, np.array(pages, np.uint16), classes, end)


@cache
def _unicode() -> tuple[Ints, Array]:
    """First code point and class of every run of code points of one class."""
    packed = np.load(Path(__file__).with_name("unicode.npy"))
    return (packed >> 4).astype(np.int64), packed & 15


def _memberships(sets: list[_Set]) -> tuple[Ints, Bools]:
    """First code points of runs that no set divides, and which of the runs each set has."""
    first, kinds = _unicode()
    parsed = [_parse_members(characters.members) for characters in sets]
    edges = [edge for _, ranges in parsed for low, high in ranges for edge in (low, high + 1) if edge < _CODE_POINTS]
    starts = np.union1d(first, np.array(edges, np.int64))
    kinds = kinds[np.searchsorted(first, starts, "right") - 1]
    found = np.zeros((len(sets), len(starts)), bool)
    for row, (classes, ranges), characters in zip(found, parsed, sets, strict=True):
        row |= np.isin(kinds, list(classes))
        for low, high in ranges:
            row |= (low <= starts) & (starts <= high)
        row ^= characters.is_negated
    return starts, found


def _parse_members(members: str) -> tuple[set[int], list[tuple[int, int]]]:
    """The classes and the ranges of code points that the inside of a bracket names."""
    classes: set[int] = set()
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(members):
        member = _MEMBER.match(members, at)
        if member is None or members.startswith(("&&", "--", "~~", "["), at):  # sets of sets
            raise _UnknownSyntaxError
        at = member.end()
        sign, name, space, low, high = member.groups()
        if low is not None:
            ranges.append((_code_point(low), _code_point(high or low)))
            if ranges[-1][0] > ranges[-1][1]:
                raise _UnknownSyntaxError
            continue
        wanted = "white space" if space else name
        named = {number for number, kind in enumerate(_CLASSES) if kind[: len(wanted)] == wanted}
        if not named:
            raise _UnknownSyntaxError
        classes |= set(range(len(_CLASSES))) - named if sign == "P" or space == "S" else named
    return classes, ranges


def _code_point(character: str) -> int:
    return ord(_ESCAPES.get(character[1:], character[1:]) if character[0] == "\\" else character)
