"""Rows that changes of a run brought, opened again by the addresses that its state holds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenfeed.errors import ArgumentError, NotFoundError, PlanMismatchError, TokenfeedError
from tokenfeed.plan.amendment import PlanSource
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.origins import open_data
from tokenfeed.store.view import View

__all__ = ["open_rows"]


def open_rows(plan: Plan, program: Plan, now: Plan, rows: Mapping[str, Any] | None) -> Plan:
    """A plan that goes on after a state, over its views: those of the `program`, and for sources that the state's
    changes brought, or made grow, those in `rows`, those of the plan that runs `now`, or those at their addresses.
    """
    latest: dict[str, tuple[PlanSource, bool]] = {}
    for amendment in plan.amendments:
        for source in (*amendment.sources, *amendment.grown):
            latest[source.name] = source, amendment.live
    names = {key: source.name for source, key in plan.keyed_sources}
    brought = {names[key]: (key, source) for key, (source, is_live) in latest.items() if is_live}
    given = dict(rows or {})
    if unknown := given.keys() - brought:
        told = ", ".join(brought) or "none"
        raise ArgumentError(f"rows names {', '.join(sorted(unknown))}; the changes of the state brought {told}")
    assert program.given is not None
    views = program.given
    known = {} if now.given is None else now.given.views
    for name, (key, source) in brought.items():
        view = _open(source, name, given.get(name), known.get(key))
        views = replace(views, views={**views.views, key: view}) if key in views.views else views.add({key: view})
    moved = {brought[name][0]: tuple(views.views[brought[name][0]].paths) for name in given}
    return plan.moved(moved).over(views.only(plan.shares.names))


def _open(source: PlanSource, name: str, given: Any, known: View | None) -> View:
    if given is None and known is not None and _is(source, known):
        return known
    if isinstance(given, View):
        if not _is(source, given):
            raise PlanMismatchError(
                f"rows of source {name!r} are {source.num_samples:,} samples of {source.spec}, with data "
                f"{source.data}; {given} has {len(given):,} and data {given.identity}"
            )
        return given
    place = list(source.paths) if given is None else given
    try:
        return open_data(place, source.data, f"the data of source {name!r}").view(source.view or source.spec)
    except TokenfeedError as error:
        kind = PlanMismatchError if isinstance(error, PlanMismatchError) else NotFoundError
        where = ", ".join(source.paths) if given is None else given
        raise kind(
            f"rows of source {name!r} came to the run from {where}, and are not there now ({error}). Say where they "
            f"are: load_state_dict(state, rows={{{name!r}: view}})"
        ) from error


def _is(source: PlanSource, view: View) -> bool:
    """Whether a view is of the rows of a source."""
    return (view.identity, view.spec.sample) == (source.data, source.spec)
