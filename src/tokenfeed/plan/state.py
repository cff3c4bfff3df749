"""States: what a checkpoint says of a run or stream, and how it is compared with what is to go on."""

from collections.abc import Mapping
from typing import Any

from tokenfeed.errors import PlanMismatchError, StateError

__all__ = ["VERSION", "check_kind", "check_parts"]

VERSION = 2

_MAKERS = {"run": "a Loader", "stream": "tokenfeed.stream"}


def check_kind(state: Any, kind: str) -> Mapping[str, Any]:
    """The state, if it is one of this kind ("run" or "stream") and of this version."""
    if kind == "run" and isinstance(state, list | tuple):
        raise StateError(
            f"a Loader takes one state, not a list of {len(state)}: all ranks of a Loader have the same, so give it "
            "any of them. Lists of states are for streams, where every rank has its own"
        )
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict with kind, version, samples and plan, not {type(state).__name__}")
    given = state.get("kind")
    if given != kind:
        made_by = f", made by {_MAKERS[given]}" if isinstance(given, str) and given in _MAKERS else ""
        raise StateError(
            f"the state is of kind {str(given)[:80]!r}{made_by}; {_MAKERS[kind]} takes states of kind {kind!r}. "
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
        told = "; ".join(f"{name} {theirs.get(name)!r}, this plan has {ours.get(name)!r}" for name in different)
        agree = f"{', '.join(same)} agree" if same else "nothing agrees"
        raise PlanMismatchError(
            f"the checkpoint was made with {told} ({agree}). Resume with what it was made with, or start a new run"
        )
