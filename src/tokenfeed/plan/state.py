"""States: what a checkpoint says of a run or stream, and how it is compared with what is to go on.

The state of a run holds K, digests of all that the first K samples depend on, and in full the changes that were made
to what the program gives. The plan that goes on is what the program gives then, and these changes:

    program                changes of a state at K = 100      goes on with
    none                   at 80, at 300 (ahead of time)      80, 300
    at 80, at 120          the same at 80                     80 (counts once), 120
    at 90                  at 80                              refused: the two pasts differ
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from tokenfeed.errors import PlanMismatchError, StateError
from tokenfeed.plan.amendment import Amendment

__all__ = ["VERSION", "Joint", "SavedRun", "check_kind", "check_parts"]

VERSION = 2

_MAKERS = {"run": "a Loader", "stream": "tokenfeed.stream"}


def check_kind(state: Any, kind: str) -> Mapping[str, Any]:
    """The state, if it is one of this kind ("run" or "stream") and of this version."""
    if kind == "run" and isinstance(state, list | tuple):
        different = [rank for rank, each in enumerate(state) if each != state[0]]
        if different or not state:
            raise StateError(
                f"the states of ranks 0 and {different[0]} differ: the ranks were at other samples, or amended their "
                "runs differently. Every rank must make the same amendments; go back to a checkpoint where all agree"
                if state
                else "a list of no states; give a Loader the state of any rank, or those of all"
            )
        state = state[0]
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict with kind, version, samples and plan, not {type(state).__name__}")
    given = state.get("kind")
    if given != kind:
        made_by = f", made by {_MAKERS[given]}" if isinstance(given, str) and given in _MAKERS else ""
        is_what = "does not say its kind" if given is None else f"is of kind {str(given)[:80]!r}{made_by}"
        raise StateError(
            f"the state {is_what}; {_MAKERS[kind]} takes states of kind {kind!r}. "
            f"Give it the state that {_MAKERS[kind]} made"
        )
    if state.get("version") != VERSION:
        raise StateError(f"the state has version {str(state.get('version'))[:80]}; this tokenfeed takes {VERSION}")
    return state


@dataclass(frozen=True)
class SavedRun:
    """What the state of a run says."""

    samples: int
    """Samples delivered."""
    parts: Mapping[str, Any]
    """Digests of what these samples depend on."""
    changes: tuple[Amendment, ...]
    """Amendments in the order in which they apply."""

    @classmethod
    def read(cls, state: Any) -> Self:
        """One state, or a list of those of all ranks, which must say the same."""
        given = check_kind(state, "run")
        samples, parts, changes = (given.get(name) for name in ("samples", "plan", "changes"))
        match samples, parts, changes:
            case int(), Mapping(), list() if type(samples) is int and 0 <= samples < 1 << 62:
                try:
                    return cls(samples, parts, tuple(Amendment.from_json(json.loads(each)) for each in changes))
                except (TypeError, ValueError, RecursionError) as error:
                    raise StateError(f"changes of the state cannot be read, it is damaged: {error}") from error
        told = f"samples {samples!r}, plan {str(parts)[:80]}, changes {str(changes)[:80]}"
        raise StateError(f"the state says {told}; it is damaged")

    def join(self, program: Sequence[Amendment]) -> "Joint":
        """What a run goes on with from here, if the program gives these amendments."""
        own = list(program)
        changes = [own.pop(own.index(each)) if each in own else replace(each, live=True) for each in self.changes]
        before = [each for each in program if each.at < self.samples]
        unknown = [each for each in changes if each.live and each.at < self.samples]
        missing = [each for each in own if 0 < each.at < self.samples]
        if unknown:  # digests tell of what the program gave from the beginning, so it is not among the changes
            before = [each for each in own if each.at == 0] + [each for each in changes if each.at < self.samples]
        later = [each for each in program if each.at >= self.samples]
        later += [each for each in changes if each.live and each.at >= self.samples]
        return Joint([*before, *later], missing, unknown)


class Joint(NamedTuple):
    """The amendments of a program and those of a state as one list, where those that both have count once."""

    amendments: list[Amendment]
    missing: list[Amendment]
    """Those before the state that only the program has."""
    unknown: list[Amendment]
    """Those before the state that only the state has."""

    def check(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Raise where the past of the state is another than ours. What only one of both has is told, too."""
        if self.missing and (self.unknown or ours != theirs):
            ours = {**ours, "changes": _list(self.missing)}
            theirs = {**theirs, "changes": _list(self.unknown)}
        check_parts(ours, theirs)


def _list(changes: Sequence[Amendment]) -> str:
    return " and ".join(each.saved for each in changes) or "none"


def check_parts(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise where a checkpoint was made with other parts than ours; the error says which differ and which agree."""
    different = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    if different:
        same = [name for name in ours if name not in different]
        told = "; ".join(_tell(name, theirs.get(name), ours.get(name)) for name in different)
        agree = f" ({', '.join(same)} agree)" if same else ""
        raise PlanMismatchError(
            f"the checkpoint was made with {told}{agree}. Resume with what it was made with, or start a new run"
        )


def _tell(name: str, theirs: Any, ours: Any) -> str:
    """What differs, with both values unless they are checksums, which say nothing."""
    if any(isinstance(each, str) and re.fullmatch("[0-9a-f]{16}", each) for each in (theirs, ours)):
        return f"different {name}"
    told, mine = (repr(each) if len(str(each)) <= 400 else f"{str(each)[:400]}…" for each in (theirs, ours))
    return f"{name} {told}, this plan has {mine}"
