"""The views that a run was over, opened again and checked to be the same. A plan knows samples by number alone."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tokenfeed.errors import ArgumentError, MissingError, NotAStoreError, PlanMismatchError
from tokenfeed.plan.amendment import PlanSource
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.file import Paths
from tokenfeed.store.store import Store, open_store
from tokenfeed.store.subset import join_views
from tokenfeed.store.view import View

__all__ = ["RunData", "Stores", "open_data"]

Stores: TypeAlias = Mapping[str, Any] | Any
"""Where the data is now: a path, a `Store` or a view by the name of the source, or alone where there is one source."""


class RunData:
    """The views that a plan is over, each opened when it is first asked for, and checked against the plan."""

    def __init__(self, plan: Plan, paths: Paths, stores: Stores | None, opened: dict[Any, View]) -> None:
        """`stores` go before `paths`. Views opened from `paths` are kept in `opened`, which may be shared."""
        self.plan = plan
        self.names = [source.name for source in plan.sources]
        self._paths = paths
        self._opened = opened
        if stores is not None and not isinstance(stores, Mapping):
            if len(self.names) > 1:
                known = ", ".join(self.names)
                raise ArgumentError(f"of which source is {stores}? Give stores={{name: …}}; there are {known}")
            stores = dict.fromkeys(self.names, stores)
        self._stores: Mapping[str, Any] = stores or {}

    def view(self, name: str) -> View:
        """The view of a source. Opening reads the manifest, and the identity is O(shards); then it is at hand."""
        source = self.plan.sources[self.plan.source_number(name)]
        what = f"the data of source {name!r}" if name else "the data"
        given = self._stores.get(name)
        if given is None:
            key = source.data, source.spec, tuple(self._paths.get(name, ()))
            if key not in self._opened:
                rows = self.plan.rows(name)
                self._opened[key] = join_views([self._open(each, name, what).view(each.spec) for each in rows])
            return self._opened[key]
        if isinstance(given, View):
            _check_identity(given.identity, source.data, what, given)
            if given.spec.sample != source.spec:
                raise PlanMismatchError(
                    f"the run is over {source.spec}; this view is {given.spec.sample}, whose samples are others"
                )
            return given
        rows = self.plan.rows(name)
        if len(rows) == 1:
            return open_data(given, source.data, what).view(source.spec)
        if not isinstance(given, list) or len(given) != len(rows):
            raise ArgumentError(f"{what} has rows of {len(rows)} stores, end to end: give a list of so many")
        views = [open_data(place, each.data, what).view(each.spec) for place, each in zip(given, rows, strict=True)]
        return join_views(views)

    def _open(self, source: PlanSource, name: str, what: str) -> Store:
        paths = list(source.paths or self._paths.get(name, ()))
        place = {name: "PATH"} if name else "PATH"
        remedy = f"say where it is: stores={place!r}"
        if not paths:
            raise MissingError(f"the run file does not tell where {what} lies; {remedy}")
        try:
            return open_data(paths, source.data, what)
        except NotAStoreError as error:
            raise NotAStoreError(
                f"{what} was in {', '.join(paths)} when the run began, and is not there now ({error}); {remedy}"
            ) from error


def open_data(place: Any, identity: str, what: str) -> Store:
    """The store at a path or paths, or the split of it, that has this identity."""
    if isinstance(place, Store):
        _check_identity(place.identity, identity, what, place)
        return place
    if not isinstance(place, str | os.PathLike | Sequence):
        raise ArgumentError(f"{what} is to be found in {place!r}; expected a path, paths, a Store or a view")
    if isinstance(place, list) and len(place) == 1:
        (place,) = place
    store = open_store(place, split="all")
    for split in ("all", *filter(None, store.splits), None):
        with contextlib.suppress(MissingError):  # no split is taken by default where there is no "train"
            part = store if split == "all" else open_store(place, split=split)
            if part.identity == identity:
                return part
            for version in part.versions:
                if version.identity == identity:
                    return open_store(place, split=split, version=version.number)
    _check_identity(store.identity, identity, what, place)
    return store


def _check_identity(found: str, expected: str, what: str, where: Any) -> None:
    if found != expected:
        raise PlanMismatchError(
            f"{what} had identity {expected} when the run began; {where} has {found}. It has changed, or is another "
            "store: give the one that the run was over"
        )
