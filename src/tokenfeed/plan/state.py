"""States: what a checkpoint says of a run or stream, and how it is compared with what is to go on."""

from collections.abc import Mapping
from typing import Any

from tokenfeed.errors import PlanMismatchError, StateError

__all__ = ["VERSION", "check_kind", "check_parts", "explain"]

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
        told = "; ".join(f"{name} {theirs.get(name)!r}, this plan has {ours.get(name)!r}" for name in different)
        agree = f"{', '.join(same)} agree" if same else "nothing agrees"
        raise PlanMismatchError(
            f"the checkpoint was made with {told} ({agree}). Resume with what it was made with, or start a new run"
        )


def explain(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], num_delivered: int, culprit: str | None, is_amended: bool
) -> str:
    """Why a checkpoint of a run does not fit a plan, and what would.

    `culprit` tells of an amendment without which it would fit.
    """
    different = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}
    if culprit is not None:
        return (
            f"{culprit}, before this checkpoint ({num_delivered:,}), which was made without it: give at >= "
            f"{num_delivered:,}, or go back to a checkpoint at or before that sample"
        )
    told = []
    are_others = {"data", "mixture"} <= different
    if are_others:
        told.append(
            "it drew from other sources, or other data: a source that was added is missing here, or shards came, went "
            "or changed"
        )
    elif "data" in different:
        told.append(
            "it was made over other data: shards came, went or changed, or this is another store. Open the data as it "
            "was, and take in what a store grew by with amend(grown=…)"
        )
    if "view" in different:
        told.append(f"its samples are {_short(theirs, 'view')}, and here {_short(ours, 'view')}")
    told += [
        f"it was made with {name} {_short(theirs, name)}, and this plan has {_short(ours, name)}"
        for name in ("seed", "locality")
        if name in different
    ]
    if "mixture" in different and not are_others:
        told.append("up to there it drew from other sources, or with other weights")
    if "amendments" in different:
        what = "was amended differently" if is_amended else "was amended by skips, growth or length, and this was not"
        if theirs.get("amendments") is None:
            what = "was not amended, and this was"
        told.append(f"up to there its run {what}")
    remedy = "Resume with what it was made with, or start a new run"
    if different <= {"mixture", "amendments"} or (are_others and "seed" not in different):
        remedy = "Make the same amendments first; Loader(Run(path).plan(), …) has all that the run file notes"
    return f"this checkpoint, at sample {num_delivered:,}, does not fit: {'; '.join(told) or 'it is damaged'}. {remedy}"


def _short(parts: Mapping[str, Any], name: str) -> str:
    """A part in words; a checksum says nothing."""
    value = parts.get(name)
    is_digest = isinstance(value, str) and len(value) == 16 and all(each in "0123456789abcdef" for each in value)
    return "others" if is_digest else "none" if value is None else str(value)[:80]
