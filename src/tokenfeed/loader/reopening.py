"""Rows that changes of a run brought, opened again by the addresses that its state holds."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from tokenfeed.errors import ArgumentError, NotFoundError, PlanMismatchError, TokenfeedError, quantity
from tokenfeed.plan.amendment import PlanSource
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.data import open_data
from tokenfeed.store.store import Store
from tokenfeed.store.view import View

__all__ = ["Rows", "open_rows"]

Rows: TypeAlias = View | Store | str
"""What rows are, or where they lie."""


def open_rows(plan: Plan, program: Plan, now: Plan, rows: Mapping[str, Any] | None) -> Plan:
    """A plan that goes on after a state, over its views: those of the `program`, and for rows that the state's changes
    brought, as a source or to one, those in `rows`, those of the plan that runs `now`, or those at their addresses.
    """
    assert program.given is not None
    given = _by_data(plan, rows or {})
    known = {(key, row.data): view for key in program.shares.names for row, view in program.row_views(key)}
    if now.given is not None:
        views = [(key, row, view) for key in now.shares.names for row, view in now.row_views(key)]
        known = {(key, row.data): view for key, row, view in views if _is(row, view)} | known
    names = {key: source.name for source, key in plan.keyed_sources}

    moved: dict[tuple[str, str], tuple[str, ...]] = {}

    def find(row: PlanSource) -> View:
        place = row.name, row.data
        if place in known and place not in given:
            return known[place]
        view = _open(row, names[row.name], given.get(place))
        if place in given:
            moved[place] = tuple(view.paths)
        return view

    added = {source.name for amendment in plan.amendments for source in amendment.sources}
    first = {key: program.row_views(key)[0][1] for key in plan.shares.names if key not in added}
    sources = program.given.only(first)
    for amendment in plan.amendments:
        if amendment.sources:
            sources = sources.add({row.name: find(row) for row in amendment.sources})
        for row in amendment.grown:
            sources = sources.append(row.name, find(row))
    return plan.moved(moved).over(sources)


def _by_data(plan: Plan, rows: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """What a user gives as rows of sources, by the key of the source, and the data that each must have."""
    brought: dict[str, list[PlanSource]] = {}
    names = {key: source.name for source, key in plan.keyed_sources}
    for amendment in plan.amendments:
        for row in (*amendment.sources, *amendment.grown) if amendment.live else ():
            brought.setdefault(names[row.name], []).append(row)
    if unknown := rows.keys() - brought:
        told = ", ".join(brought) or "none"
        raise ArgumentError(f"rows names {', '.join(sorted(unknown))}; the changes of the state brought {told}")
    found: dict[tuple[str, str], Any] = {}
    for name, given in rows.items():
        places, expected = given if isinstance(given, list) else [given], brought[name]
        if len(places) != len(expected):
            raise ArgumentError(
                f"rows has {quantity(len(places), 'set')} of rows of source {name!r}; the changes of the state "
                f"brought {len(expected)}, one after the other: give a list of so many"
            )
        found |= {(row.name, row.data): place for row, place in zip(expected, places, strict=True)}
    return found


def _open(row: PlanSource, name: str, given: Any) -> View:
    if isinstance(given, View):
        if not _is(row, given):
            raise PlanMismatchError(
                f"rows of source {name!r} are {row.num_samples:,} samples of {row.spec}, with data {row.data}; {given} "
                f"has {len(given):,} and data {given.identity}"
            )
        return given
    place = list(row.paths) if given is None else given
    try:
        return open_data(place, row.data, f"the data of source {name!r}").view(row.view or row.spec)
    except TokenfeedError as error:
        kind = PlanMismatchError if isinstance(error, PlanMismatchError) else NotFoundError
        where = ", ".join(row.paths) if given is None else given
        raise kind(
            f"rows of source {name!r} came to the run from {where}, and are not there now ({error}). Say where they "
            f"are: load_state_dict(state, rows={{{name!r}: view}})"
        ) from error


def _is(row: PlanSource, view: View) -> bool:
    """Whether a view is of these rows."""
    return (view.identity, view.spec.sample) == (row.data, row.spec)
