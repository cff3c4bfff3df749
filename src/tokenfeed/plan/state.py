"""States: what a checkpoint says of a run or stream, and how it is compared with what is to go on."""

import re
from collections.abc import Mapping
from typing import Any

from tokenfeed.errors import PlanMismatchError, StateError

__all__ = ["VERSION", "check_kind", "check_parts"]

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
    return f"{name} {theirs!r}, this plan has {ours!r}"
