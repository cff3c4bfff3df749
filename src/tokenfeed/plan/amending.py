"""From what a user asks to be changed to an `Amendment`: names, views and documents become numbers and weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.amendment import Amendment, PlanSource
from tokenfeed.plan.mixing import Limits, Mixture, check_named
from tokenfeed.plan.rounding import some
from tokenfeed.plan.schedule import Stage
from tokenfeed.plan.skips import Range, Skip, check_skips
from tokenfeed.store.spec import ViewSpec, WindowsSpec
from tokenfeed.store.store import Store
from tokenfeed.store.view import View
from tokenfeed.store.windows import Windows

if TYPE_CHECKING:
    from tokenfeed.plan.plan import Plan

__all__ = ["Changes", "Drafter", "Grown", "NewSource", "Weights", "check_changes", "with_length", "with_spec"]

NewSource = View | Mixture | PlanSource
Grown = View | Store | PlanSource
Weights = Mapping[str, float] | Sequence[Stage]


class Changes(TypedDict, total=False):
    """What `amend` can change; `Plan.amend` says what each means."""

    weights: Weights | None
    sources: Mapping[str, NewSource] | None
    grown: Grown | Mapping[str, Grown] | None
    skip: Skip | Sequence[Skip] | None
    length: int | None
    max_epochs: Limits


def check_changes(changes: Mapping[str, Any]) -> None:
    """Refuse what cannot be changed, and no change at all."""
    unknown = [name for name in changes if name not in Changes.__annotations__]
    if unknown or all(each is None for each in changes.values()):
        told = f"amend changes no {some(unknown)}" if unknown else "nothing to amend"
        raise ArgumentError(f"{told}: give {', '.join(list(Changes.__annotations__)[:-1])} or max_epochs")


_NO_VIEWS = "this plan was read from a file and is over no views: Run(path).plan() opens them"
_LOOKED_AT = 1 << 12  # samples that are searched for one at which no source is within a group


class Drafter:
    """Drafts one amendment of a plan; `sources` are then the views that the amended plan is over, where it has any."""

    def __init__(self, plan: "Plan", at: int) -> None:
        self._plan = plan
        self._at = at
        self._turn = plan.turn(at)
        self.sources = plan.given
        self._keys = {source.name: key for source, key in zip(plan.sources, plan.schedule.names, strict=True)}
        """Names of sources, as users know them, and as the schedule does."""
        self.amendment = Amendment(self._turn)

    def draft(self, changes: Mapping[str, Any]) -> None:
        """Take all changes, which are `Changes`, into the amendment."""
        weights, sources = changes.get("weights"), changes.get("sources")
        if sources is not None or weights is not None:
            self.weigh(weights, sources or {})
        grown, length, limits, skip = (changes.get(name) for name in ("grown", "length", "max_epochs", "skip"))
        if grown is not None:
            self.grow(grown)
        if length is not None:
            self.change_length(length)
        if limits is not None:
            self.limit(limits)
        if skip is not None:
            self.skip(skip)
        self.check_length()

    def check_length(self) -> None:
        """Refuse what would count in samples of another length, or move a change of length into a group."""
        last = self._plan.eras[-1][0]
        if self._turn < last and self.amendment != Amendment(self.amendment.at, ranges=self.amendment.ranges):
            raise ArgumentError(
                f"sample {self._at:,} comes before the length changes, at turn {last:,}: amend from there on, or begin "
                "with the plan as it was before"
            )
        later = (each for each in self._plan.amendments if each.at > self._turn)
        counting = next((each for each in later if each.sources or each.grown or each.skips), None)
        if self.amendment.length is not None and counting is not None:
            raise ArgumentError(
                f"the length cannot change at sample {self._at:,}: {counting} comes later, and counts in samples of "
                "the length before. Give the change of length first"
            )

    def _set(self, **fields: Any) -> None:
        self.amendment = replace(self.amendment, **fields)

    def _key(self, name: str | None) -> str:
        return self._plan.schedule.names[self._plan.source_number(name)]

    def weigh(self, weights: Weights | None, parts: Mapping[str, NewSource]) -> None:
        """New weights, and new sources, which have some."""
        if weights is None:
            raise ArgumentError(
                f"sources adds {', '.join(parts)}: say how much to draw from each source from there on, "
                'weights={"web": 0.9, "new": 0.1}'
            )
        is_flat = isinstance(weights, Mapping)
        if not is_flat and (not isinstance(weights, Sequence) or not all(isinstance(each, Stage) for each in weights)):
            raise ArgumentError(f"weights is {weights!r}; expected weights by source, or a list of Stage")
        stages = [Stage(weights)] if isinstance(weights, Mapping) else list(weights)
        if not stages:
            raise ArgumentError("weights is an empty list; expected weights by source, or a list of Stage")
        named = list(dict.fromkeys(name for stage in stages for name in stage.weights))
        if parts:
            self._name_the_only_one([name for name in named if name not in parts])
            self._add(parts)
        shares = {} if self.sources is None else self.sources.shares
        unknown = [name for name in named if name not in self._keys and name not in shares]
        if unknown:
            known = [name for name in dict.fromkeys([*shares, *self._keys]) if name]
            told = f"there are {some(known)}" if known else "the run is over one view, without a name"
            raise ArgumentError(f"weights name {some(unknown)}; {told}. New sources go into sources={{name: view}}")
        useless = [name for name in parts if name not in named and not any(n.startswith(f"{name}/") for n in named)]
        if useless:
            raise ArgumentError(f"the new source {some(useless)} has no weight, and would never be drawn")
        drawn = set(self._plan.schedule.drawn_from(self._turn)) - self._later().keys()
        drawn |= {source.name for source in self.amendment.sources}
        check_named(stages, shares, [name for name, key in self._keys.items() if key in drawn])
        self._set(stages=tuple(stage.spread(self._present(self._spread(stage.weights))) for stage in stages))

    def _name_the_only_one(self, names: list[str]) -> None:
        """The view of a run over one view has no name; among several sources it takes the one that weights give it."""
        if list(self._keys) != [""]:
            return
        if len(names) != 1:
            raise ArgumentError(
                f"weights name {some(names)} beside the new sources; the run began with one view, which must have "
                'one name from now on: weights={"web": 0.9, "new": 0.1} calls it web'
            )
        self._keys = {names[0]: ""}
        self._set(name=names[0])

    def _add(self, parts: Mapping[str, NewSource]) -> None:
        taken = [name for name in parts if name in self._keys]
        if taken:
            raise ArgumentError(f"there is a source {taken[0]!r} already; it goes on with its own samples")
        if self.sources is None:
            if not all(isinstance(part, PlanSource) for part in parts.values()):
                raise ArgumentError(_NO_VIEWS)
            added = [replace(part, name=name) for name, part in parts.items() if isinstance(part, PlanSource)]
        else:
            before, self.sources = set(self.sources.views), self.sources.add(parts)
            limits, views = self.sources.max_epochs, self.sources.views
            added = [
                PlanSource(name, len(view), view.identity, view.spec.sample, limits[name])
                for name, view in views.items()
                if name not in before
            ]
        self._keys |= {source.name: source.name for source in added}
        self._set(sources=tuple(added))

    def _later(self) -> dict[str, int]:
        """Sources that come later, and when."""
        names, arrivals = self._plan.schedule.names, self._plan.arrivals
        return {key: turn for key, turn in zip(names, arrivals, strict=True) if turn > self._turn}

    def _present(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Weights without those of sources that come later; an error where one is drawn before it comes."""
        later = self._later()
        for key, turn in later.items():
            if weights.get(key):
                raise ArgumentError(f"weights name {key!r}, which comes at turn {turn:,}: it cannot be drawn yet")
        return {key: weight for key, weight in weights.items() if key not in later}

    def _spread(self, asked: Mapping[str, float]) -> dict[str, float]:
        """Weights of samples for every source, as the schedule names them."""
        weights = {self._keys.get(name, name): float(weight) for name, weight in asked.items()}
        if self.sources is not None:
            return self.sources.spread(weights)
        if self._plan.by == "tokens":
            raise ArgumentError(
                "the mixture weighs by tokens, and this plan was read from a file: Run(path).plan() opens its views"
            )
        return {**dict.fromkeys(self._keys.values(), 0.0), **weights}

    def grow(self, grown: Grown | Mapping[str, Grown]) -> None:
        if not isinstance(grown, Mapping):
            if len(self._plan.sources) > 1:
                names = some([each.name for each in self._plan.sources])
                raise ArgumentError(f"of which source is {grown!r}? Give grown={{name: view}}; there are {names}")
            grown = {self._plan.sources[0].name: grown}
        found = []
        for name, given in grown.items():
            number = self._plan.source_number(name)
            before, key = self._plan.sources[number], self._key(name)
            told = f"source {name!r}" if name else "the data"
            if isinstance(given, PlanSource):
                source = given
            else:
                if self.sources is None:
                    raise ArgumentError(_NO_VIEWS)
                old = self.sources.views[key]
                view = given.view(old.spec) if isinstance(given, Store) else given
                if not isinstance(view, View):
                    raise ArgumentError(
                        f"grown is {given!r}; expected the view of the store as it is now, or the store"
                    )
                view.grew_from(old)
                source = PlanSource(key, len(view), view.identity, view.spec.sample)
                self.sources = replace(self.sources, views={**self.sources.views, key: view})
            if source.spec != before.spec:
                raise ArgumentError(f"samples of {told} are {before.spec}; those of the grown store {source.spec}")
            if source.spec.curriculum is not None:
                raise ArgumentError(
                    f"{told} is a curriculum, an order of the samples that there were: add the new ones as a source of "
                    "their own, sources={name: curriculum(view, …)}"
                )
            if source.num_samples <= before.num_samples:
                raise ArgumentError(
                    f"{told} has {source.num_samples:,} samples now and had {before.num_samples:,}: it has not grown"
                )
            found.append(replace(source, name=key))
        self._set(grown=tuple(found))

    def skip(self, skips: Skip | Sequence[Skip]) -> None:
        ranges: list[Range] = []
        kept: list[Skip] = []
        for skip in check_skips(skips):
            if skip.samples is None:
                kept.append(self._find(skip))
                continue
            start, stop = skip.samples
            if start < self._at:
                raise ArgumentError(
                    f"{skip} begins before sample {self._at:,}, from which on the run is amended: "
                    f"go back to a checkpoint at or before {start:,}"
                )
            ranges.append((self._plan.turn(start), self._plan.turn(stop - 1) + 1))
        at = (
            min(start for start, _ in ranges)
            if ranges and self.amendment == Amendment(self._turn) and not kept
            else None
        )
        self._set(skips=tuple(kept), ranges=tuple(ranges), **({} if at is None else {"at": at}))

    def _find(self, skip: Skip) -> Skip:
        key = self._key(skip.source)
        if self.sources is not None:
            skip = skip.resolve(self.sources.views[key])
        elif skip.where is not None or not (skip.indices or skip.mask):
            raise ArgumentError(f"{skip}: only a view can tell which samples touch these documents; use Plan.of")
        return replace(skip, source=key or None)

    def change_length(self, length: Any) -> None:
        plan = self._plan
        for source in plan.sources:
            told = f"source {source.name!r}" if source.name else "the run"
            with_length(source.spec, length, told)
        blocked = plan.sources_within_groups(np.array([self._at]))
        if blocked.any():
            later = plan.sources_within_groups(np.arange(self._at, self._at + _LOOKED_AT))
            free = np.flatnonzero(~later)
            told = (
                f"give at={self._at + int(free[0]):,}"
                if free.size
                else "none of the next samples is one: keep the length"
            )
            raise ArgumentError(
                f"at sample {self._at:,} a group of windows has begun, and its rest would be lost by another length; "
                f"{told}"
            )
        self._set(length=length)
        if self.sources is not None:
            views = {
                name: Windows(view.data, with_length(view.spec, length, name))
                for name, view in self.sources.views.items()
            }
            self.sources = replace(self.sources, views=views)

    def limit(self, limits: Limits) -> None:
        names = [source.name for source in self._plan.sources]
        given = limits if isinstance(limits, Mapping) else dict.fromkeys(names, limits)
        found = {}
        for name, limit in given.items():
            if limit is not None and (type(limit) is not int or limit < 1):
                of = f" of {name!r}" if name else ""
                raise ArgumentError(f"max_epochs{of} is {limit!r}; it must be at least 1, or None for no limit")
            found[self._key(name)] = limit
        self._set(max_epochs=found)


def with_length(spec: ViewSpec, length: Any, told: str) -> WindowsSpec:
    """Windows of another length in the same groups; windows without groups are groups of their own."""
    if not isinstance(spec, WindowsSpec):
        raise ArgumentError(f"the samples of {told} are {spec}: only windows can change their length")
    unit = spec.group or spec.length
    if type(length) is not int or length < 1 or unit % length:
        raise ArgumentError(
            f"length is {length!r}; {told} is shuffled in groups of {unit:,} items, which another length must divide. "
            f"To be able to go on with longer ones, begin with windows({spec.length}, group=…)"
        )
    return replace(spec, length=length, group=unit)


def with_spec(view: View, spec: ViewSpec) -> View:
    """The windows of a view in another length."""
    if not isinstance(spec, WindowsSpec) or not isinstance(view, Windows):
        return view
    return Windows(view.data, replace(view.spec, length=spec.length, group=spec.group))
