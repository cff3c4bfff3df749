"""From what a user asks to be changed to an `Amendment`: names, views and documents become numbers and weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.amendment import Amendment, PlanSource
from tokenfeed.plan.masks import Documents, Mask
from tokenfeed.plan.mixing import Limits, check_named
from tokenfeed.plan.shares import Stage, some
from tokenfeed.store.store import Store
from tokenfeed.store.view import View

if TYPE_CHECKING:
    from tokenfeed.plan.plan import Plan

__all__ = ["Changes", "Drafter", "NewRows", "NewSource", "Weights", "check_changes"]

NewSource = View | PlanSource
NewRows = View | Store | PlanSource
Weights = Mapping[str, float] | Sequence[Stage]


class Changes(TypedDict, total=False):
    """What `amend` can change; `Plan.amend` says what each means."""

    weights: Weights | None
    sources: Mapping[str, NewSource] | None
    grow: NewRows | Mapping[str, NewRows] | None
    mask: Documents | Mapping[str, Documents] | None
    max_epochs: Limits


def check_changes(changes: Mapping[str, Any]) -> None:
    """Refuse what cannot be changed, and no change at all."""
    unknown = [name for name in changes if name not in Changes.__annotations__]
    if unknown or all(each is None for each in changes.values()):
        told = f"amend changes no {some(unknown)}" if unknown else "nothing to amend"
        raise ArgumentError(f"{told}: give {', '.join(list(Changes.__annotations__)[:-1])} or max_epochs")


_NO_VIEWS = "this plan was read from a file and is over no views: Run(path).plan() opens them"


def _describe(name: str, view: View, max_epochs: int | None = None) -> PlanSource:
    """A view as a source of a plan, with all that it takes to open it again."""
    spec = view.spec.sample
    opens = None if view.spec == spec else view.spec
    return PlanSource(name, len(view), view.identity, spec, max_epochs, tuple(view.paths), opens)


class Drafter:
    """Drafts one amendment of a plan; `sources` are then the views that the amended plan is over, where it has any."""

    def __init__(self, plan: "Plan", at: int, *, live: bool = False) -> None:
        self._plan = plan
        self._at = at
        self.sources = plan.given
        self._keys = {source.name: key for source, key in zip(plan.sources, plan.shares.names, strict=True)}
        """Names of sources, as users know them, and as `shares` does."""
        self.amendment = Amendment(at, live=live)

    def draft(self, changes: Mapping[str, Any]) -> None:
        """Take all changes, which are `Changes`, into the amendment."""
        weights, sources = changes.get("weights"), changes.get("sources")
        if sources is not None or weights is not None:
            self.weigh(weights, sources or {})
        grow, limits, mask = (changes.get(name) for name in ("grow", "max_epochs", "mask"))
        if grow is not None:
            self.grow(grow)
        if limits is not None:
            self.limit(limits)
        if mask is not None:
            self.mask(mask)

    def _set(self, **fields: Any) -> None:
        self.amendment = replace(self.amendment, **fields)

    def _key(self, name: str | None) -> str:
        return self._plan.shares.names[self._plan.source_number(name)]

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
        unknown = [name for name in named if name not in self._keys]
        if unknown:
            known = [name for name in self._keys if name]
            told = f"there are {some(known)}" if known else "the run is over one view, without a name"
            raise ArgumentError(f"weights name {some(unknown)}; {told}. New sources go into sources={{name: view}}")
        useless = [name for name in parts if name not in named]
        if useless:
            raise ArgumentError(f"the new source {some(useless)} has no weight, and would never be drawn")
        drawn = set(self._plan.shares.drawn_from(self._at)) - self._later().keys()
        drawn |= {source.name for source in self.amendment.sources}
        check_named(stages, [name for name, key in self._keys.items() if key in drawn])
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
            self.sources = self.sources.add(parts)
            limits, views = self.sources.max_epochs, self.sources.views
            added = [_describe(name, views[name], limits[name]) for name in parts]
        self._keys |= {source.name: source.name for source in added}
        self._set(sources=tuple(added))

    def _later(self) -> dict[str, int]:
        """Sources that come later, and when."""
        names, arrivals = self._plan.shares.names, self._plan.arrivals
        return {key: at for key, at in zip(names, arrivals, strict=True) if at > self._at}

    def _present(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Weights without those of sources that come later; an error where one is drawn before it comes."""
        later = self._later()
        for key, at in later.items():
            if weights.get(key):
                raise ArgumentError(f"weights name {key!r}, which comes at sample {at:,}: it cannot be drawn yet")
        return {key: weight for key, weight in weights.items() if key not in later}

    def _spread(self, asked: Mapping[str, float]) -> dict[str, float]:
        """Weights of samples for every source, as `shares` names them."""
        weights = {self._keys.get(name, name): float(weight) for name, weight in asked.items()}
        if self.sources is not None:
            return self.sources.spread(weights)
        if self._plan.by == "tokens":
            raise ArgumentError(
                "the mixture weighs by tokens, and this plan was read from a file: Run(path).plan() opens its views"
            )
        return {**dict.fromkeys(self._keys.values(), 0.0), **weights}

    def grow(self, given: NewRows | Mapping[str, NewRows]) -> None:
        """Rows of other stores, appended to sources."""
        grown = []
        for name, rows in self._by_source(given, "grow").items():
            number, key = self._plan.source_number(name), self._key(name)
            later = [each.at for each in self._plan.amendments for more in each.grown if more.name == key]
            if max(later, default=0) > self._at:
                raise ArgumentError(f"{_tell(name)} grows at sample {max(later):,} already: growths come in that order")
            if isinstance(rows, PlanSource):
                sets = [rows]
            elif self.sources is None:
                raise ArgumentError(_NO_VIEWS)
            else:
                old = self.sources.views[key]
                added = rows.view(old.spec) if isinstance(rows, Store) else rows
                self.sources = self.sources.append(key, added)
                sets = [_describe(key, part) for part in added.parts]
            for source in sets:
                if source.spec.unit != self._plan.sources[number].spec.unit:
                    raise ArgumentError(
                        f"samples of {_tell(name)} are {self._plan.sources[number].spec}; those to be added "
                        f"{source.spec}"
                    )
                grown.append(replace(source, name=key))
        self._set(grown=tuple(grown))

    def _by_source(self, given: Any, option: str) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            return given
        if len(self._plan.sources) > 1:
            names = some([each.name for each in self._plan.sources])
            raise ArgumentError(f"of which source? Give {option}={{name: …}}; there are {names}")
        return {self._plan.sources[0].name: given}

    def mask(self, given: Documents | Mapping[str, Documents]) -> None:
        """Documents in which nothing is learned."""
        masks = []
        for name, documents in self._by_source(given, "mask").items():
            key, mask = self._key(name), Mask.of(documents)
            if self.sources is not None:
                view = self.sources.views[key]
                if view.span_table is None:
                    raise ArgumentError(f"{_tell(name)} has no documents to mask: no span table {view.spec.table!r}")
                if not view.samples_touching(mask.documents).size:
                    raise ArgumentError(f"{mask} masks nothing: no sample of {_tell(name)} touches these documents")
            masks.append((key, mask))
        self._set(masks=tuple(masks))

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


def _tell(name: str) -> str:
    return f"source {name!r}" if name else "the data"
