"""Whether a run can continue a store: the same recipe, the same inputs, perhaps more of them."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict

from tokenfeed.errors import ArgumentError
from tokenfeed.preparation.inputs import InputFile
from tokenfeed.preparation.recipe import Recipe
from tokenfeed.preparation.records import PreparePlan
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.sealing import list_shards

__all__ = ["agree_on_plan", "check_plan", "find_leftovers"]

_OURS = re.compile(r"\d{6}-\d{6}(-train|-val)?-\d{5}")
_NAMED = 5


def check_plan(workplace: Workplace, plan: PreparePlan, *, replace_changed: bool = False) -> list[int]:
    """The numbers of the inputs that have changed since they were prepared; an error where that is not wanted."""
    if not workplace.exists:
        if workplace.is_store:
            raise ArgumentError(
                f"{workplace.folder} is a store that was not prepared from text; prepare into another folder"
            )
        return []
    before = workplace.load_plan()
    _check_recipe(workplace, before.recipe, plan.recipe)
    _check_none_missing(workplace, before.inputs, plan.inputs)
    changed = [
        number
        for number, (old, new) in enumerate(zip(before.inputs, plan.inputs, strict=False))
        if (old.size, old.digest) != (new.size, new.digest)
    ]
    if changed and not replace_changed:
        shown = [_describe_change(number, before.inputs[number], plan.inputs[number]) for number in changed[:_NAMED]]
        more = f" and {len(changed) - _NAMED:,} more" if len(changed) > _NAMED else ""
        raise ArgumentError(
            f"inputs have changed since {workplace.folder} was prepared from them: {'; '.join(shown)}{more}. Give "
            "the same inputs in the same order, and new ones at the end; or redo the inputs that changed, with "
            "replace_changed (--replace-changed)."
        )
    return changed


def agree_on_plan(workplace: Workplace, plan: PreparePlan, *, replace_changed: bool = False) -> None:
    """Put the plan into the store, or check that it fits the one that is there. New inputs are added to it."""
    if not workplace.exists and workplace.create_plan(plan):
        return
    for number in check_plan(workplace, plan, replace_changed=replace_changed):
        workplace.drop_records_of(number)
    if workplace.load_plan().to_json() != plan.to_json():
        workplace.replace_plan(plan)


def find_leftovers(workplace: Workplace, wanted: Collection[str]) -> list[str]:
    """Shards that runs of `prepare` made but that belong to no finished slice."""
    shards = list_shards(workplace.folder)
    names = (*shards.committed, *shards.unfinished)
    return [name for name in names if _OURS.fullmatch(name) and name not in wanted]


def _check_recipe(workplace: Workplace, before: Recipe, now: Recipe) -> None:
    old, new = asdict(before), asdict(now)
    differing = [f"{name} was {old[name]!r}, now {new[name]!r}" for name in new if old[name] != new[name]]
    if differing:
        raise ArgumentError(
            f"{workplace.folder} was prepared with other settings: {'; '.join(differing)}. Use the same, or prepare "
            "into another folder."
        )


def _check_none_missing(workplace: Workplace, before: Sequence[InputFile], now: Sequence[InputFile]) -> None:
    if len(now) < len(before):
        given = {(file.size, file.digest) for file in now}
        missing = [file.name for file in before if (file.size, file.digest) not in given]
        shown = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        raise ArgumentError(
            f"{workplace.folder} was prepared from {len(before):,} inputs, now there are {len(now):,}; missing: "
            f"{shown or 'some'}. Give all of them, new ones at the end."
        )


def _describe_change(number: int, old: InputFile, new: InputFile) -> str:
    if old.name != new.name:
        return f"input {number} was {old.name} ({old.size:,} bytes), now {new.name} ({new.size:,} bytes)"
    if old.size != new.size:
        return f"{new.name} had {old.size:,} bytes, now {new.size:,}"
    return f"{new.name} had digest {old.digest}, now {new.digest}"
