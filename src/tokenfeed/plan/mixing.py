"""`tokenfeed.mix`: several views as one, drawn from by weights that may change on the way."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.shares import Shares, Stage, some
from tokenfeed.store.subset import join_views
from tokenfeed.store.view import View

__all__ = ["Ledger", "Mixture", "check_named", "mix", "weigh"]

Limits: TypeAlias = int | Mapping[str, int] | None


@dataclass(frozen=True)
class Ledger:
    """What one source gives among the first samples of a run."""

    source: str
    samples: int
    """Number of samples that it gives."""
    target: float
    """Samples due by the weights, through all stages."""
    available: int
    """Number of samples that it has."""
    max_epochs: int | None = None
    """Limit on how often its samples are seen."""

    @property
    def epochs(self) -> float:
        """How often the source is seen through."""
        return self.samples / self.available


def mix(
    sources: Mapping[str, View | tuple[View, float]],
    *,
    stages: Sequence[Stage] | None = None,
    by: str = "samples",
    max_epochs: Limits = None,
    allow_different_tokenizers: bool = False,
) -> "Mixture":
    """Views to be drawn from in turn: `mix({"web": (web, 0.7), "code": (code, 0.3)})`.

    Weights are relative. They count samples, or with `by="tokens"` tokens: they are then divided by the mean number of
    tokens in a sample of the source, here and in every later change. Every source is always within two samples of its
    share, within six after changes. `stages` change the weights on the way, and each names every source; sources are
    then views without weights:

        mix({"web": web, "code": code}, stages=[Stage({"web": 1, "code": 0}, 10**6), Stage({"web": 1, "code": 1})])

    `max_epochs`, for all sources or by name, ends the run where a source would be seen more often; `Mixture.budget`
    tells beforehand. Sources must have been made with one tokenizer, unless `allow_different_tokenizers` is set.
    """
    if by not in ("samples", "tokens"):
        raise ArgumentError(f"by is {by!r}; it must be 'samples' or 'tokens'")
    parts, asked = weigh(sources, stages, "view")
    flat = Sources({}, {}, by, max_epochs, allow_different_tokenizers).add(parts)
    unknown = sorted(set(max_epochs if isinstance(max_epochs, Mapping) else ()) - set(flat.views))
    if unknown:
        raise ArgumentError(f"max_epochs names {', '.join(unknown)}; the sources are {', '.join(flat.views)}")
    spread = [stage.spread(flat.spread(stage.weights)) for stage in asked]
    check_named(asked, flat.views)
    return Mixture(Shares(spread, list(flat.views)), flat)


def weigh(sources: Any, stages: Sequence[Stage] | None, what: str) -> tuple[dict[str, Any], Sequence[Stage]]:
    """What each source of a mixture is, and the stages of weights; `what` is what a source is called in messages."""
    if not isinstance(sources, Mapping):
        raise ArgumentError(
            f"sources is a {type(sources).__name__}; a mixture needs a name and a weight for each source: "
            f'mix({{"web": ({what}, 0.7), "code": (other, 0.3)}})'
        )
    if not sources:
        raise ArgumentError(f"a mixture needs at least one source: {{name: ({what}, weight), …}}")
    parts: dict[str, Any] = {}
    weights: dict[str, float] = {}
    for name, entry in sources.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"the sources of a mixture need names; one is called {name!r}")
        parts[name], weight = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, None)
        if (weight is None) == (stages is None):
            told = "stages say the weights" if stages is not None else f"a weight is needed: ({what}, weight)"
            raise ArgumentError(f"source {name!r}: {told}")
        weights |= {} if weight is None else {name: weight}
    return parts, [Stage(weights)] if stages is None else stages


@dataclass(frozen=True)
class Sources:
    """The views of a mixture, and the rules that hold for those added later, too."""

    views: Mapping[str, View]
    max_epochs: Mapping[str, int | None]
    """Limits on how often views are seen, by name."""
    by: str = "samples"
    limit: Limits = None
    allow_different_tokenizers: bool = False

    def add(self, parts: Mapping[str, Any]) -> "Sources":
        """The same with more sources."""
        views, limits = dict(self.views), dict(self.max_epochs)
        for name, part in parts.items():
            if not isinstance(name, str) or not name:
                raise ArgumentError(f"the sources of a mixture need names; one is called {name!r}")
            if name in views:
                raise ArgumentError(f"there is a source {name!r} already; it goes on with its own samples")
            if not isinstance(part, View):
                raise ArgumentError(
                    f"source {name!r} is {part!r}; give a view of a store: store.windows(2048), store.documents() or "
                    "store.packed(2048)"
                )
            _check_filled(part)
            views[name] = part
            limit = limits[name] = self.limit.get(name) if isinstance(self.limit, Mapping) else self.limit
            if limit is not None and limit < 1:
                raise ArgumentError(f"max_epochs of {name!r} is {limit}; it must be at least 1")
        first_name, first = next(iter(views.items()))
        for name, view in views.items():
            told = f"sources {first_name!r} and {name!r}" if first_name else f"the data of the run and source {name!r}"
            if view.spec.unit != first.spec.unit:
                raise ArgumentError(
                    f"{told} cannot be mixed: samples of one are {first.spec.unit}, of the other {view.spec.unit}; "
                    "rows of a batch are of one kind and length"
                )
            if view.tokenizer != first.tokenizer and not self.allow_different_tokenizers:
                raise ArgumentError(
                    f"{told} were made with different tokenizers, {first.tokenizer} and {view.tokenizer}: prepare them "
                    "with one, or say allow_different_tokenizers=True if their ids mean the same"
                )
        return replace(self, views=views, max_epochs=limits)

    def append(self, name: str, rows: Any) -> "Sources":
        """The same where a source has rows of another store after its own."""
        view, told = self.views[name], f"source {name!r}" if name else "the data"
        if not isinstance(rows, View):
            raise ArgumentError(f"{told} grows by rows of a store, such as store.windows(2048), not by {rows!r}")
        _check_filled(rows)
        known = {shard.identity for shard in view.data.shards}
        again = [shard.name for shard in rows.data.shards if shard.identity in known]
        if again:
            raise ArgumentError(
                f"{told} has shard {again[0]!r} already, and its samples would come twice: give the rows of a store "
                "that holds what is new, and nothing else"
            )
        if rows.tokenizer != view.tokenizer and not self.allow_different_tokenizers:
            raise ArgumentError(
                f"{told} was made with tokenizer {view.tokenizer}, the rows to be added with {rows.tokenizer}"
            )
        return replace(self, views={**self.views, name: join_views([view, rows])})

    def only(self, views: Mapping[str, View]) -> "Sources":
        """The same rules for these views alone, which are some of its own, or parts of them."""
        return replace(self, views=dict(views), max_epochs={name: self.max_epochs[name] for name in views})

    def spread(self, asked: Mapping[str, float]) -> dict[str, float]:
        """Weights of samples of every view, from weights as they were given."""
        unknown = sorted(set(asked) - set(self.views))
        if unknown:
            raise ArgumentError(f"weights name {', '.join(unknown)}; the sources are {', '.join(self.views)}")
        weights = dict.fromkeys(self.views, 0.0)
        for name, weight in asked.items():
            length = self.views[name].mean_length if self.by == "tokens" else 1
            if not length:
                raise ArgumentError(f"source {name!r} has no tokens to weigh; leave it out, or mix by='samples'")
            weights[name] = float(Fraction(float(weight)) / length)
        return weights


def check_named(stages: Sequence[Stage], needed: Iterable[str]) -> None:
    """Refuse weights that leave out a source that is drawn: whether it should stop must be said."""
    needed = list(needed)
    for stage in stages:
        missing = [name for name in needed if name not in stage.weights]
        if missing:
            told = ", ".join(f"{name!r}: {weight:g}" for name, weight in stage.weights.items())
            added = ", ".join(f"{name!r}: 0" for name in missing)
            raise ArgumentError(
                f"the weights {{{told}}} do not name {some(missing)}: name every source that is drawn, with 0 for one "
                f"that stops: {{{told}, {added}}}"
            )


def _check_filled(view: View) -> None:
    if len(view) == 0:
        raise ArgumentError(f"{view} is empty: there is nothing to load")


class Mixture:
    """Sources and their shares. Made by `mix`; a `Loader` takes it as it takes a view, and `amend` changes it."""

    def __init__(self, shares: Shares, sources: Sources) -> None:
        self.shares = shares
        self.sources = sources
        self.views = {name: sources.views[name] for name in shares.names}
        """Views of the sources, by name, in the order of their numbers."""
        self.max_epochs = sources.max_epochs
        """Limits on how often sources are seen, by name."""

    @classmethod
    def of(cls, view: "View | Mixture") -> "Mixture":
        """The mixture itself; a view as the mixture of one source, whose name is empty."""
        if isinstance(view, Mixture):
            return view
        _check_filled(view)
        return cls(Shares([Stage({"": 1.0})], [""]), Sources({"": view}, {"": None}))

    @cached_property
    def joined(self) -> View:
        """The samples of all sources, one after the other; the view itself where there is one."""
        return join_views(list(self.views.values()))

    def budget(self, samples: int) -> list[Ledger]:
        """How many samples, and epochs, of each source a run of `samples` samples draws."""
        counts, targets = self.shares.counts(samples).tolist(), self.shares.targets(samples).tolist()
        return [
            Ledger(name, count, target, len(view), self.max_epochs[name])
            for (name, view), count, target in zip(self.views.items(), counts, targets, strict=True)
        ]

    def __repr__(self) -> str:
        first = self.shares.targets(1).tolist()
        told = [f"{name} {share:.1%}: {view}" for (name, view), share in zip(self.views.items(), first, strict=True)]
        more = f", and {len(told) - 8} more" if len(told) > 8 else ""
        stages = "" if len(self.shares.stages()) == 1 else f"; {self.shares}"
        return f"Mixture({', '.join(told[:8])}{more}{stages})"
