"""`tokenfeed.mix`: several views as one, drawn from by weights that may change on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.schedule import Schedule, Stage
from tokenfeed.store.view import View

__all__ = ["Ledger", "Mixture", "mix"]

Part: TypeAlias = "View | Mixture"


@dataclass(frozen=True)
class Ledger:
    """What one source gives among the first samples of a run."""

    source: str
    samples: int
    """Number of samples that it gives."""
    target: float
    """Samples due by the weights, as integers over a period: never further than one sample away."""
    available: int
    """Number of samples that it has."""
    max_epochs: int | None = None
    """Limit on how often its samples are seen."""

    @property
    def epochs(self) -> float:
        """How often the source is seen through."""
        return self.samples / self.available

    @property
    def is_exceeded(self) -> bool:
        """Whether the source would be seen in more epochs than allowed."""
        return self.max_epochs is not None and self.samples > self.available * self.max_epochs


def mix(
    sources: Mapping[str, "Part | tuple[Part, float]"],
    *,
    stages: Sequence[Stage] | None = None,
    by: str = "samples",
    max_epochs: int | Mapping[str, int] | None = None,
) -> "Mixture":
    """Views to be drawn from in turn: `mix({"web": (web, 0.7), "code": (code, 0.3)})`.

    Weights are relative. They count samples, or with `by="tokens"` tokens: they are then divided by the mean number of
    tokens in a sample of the source, here and in every later change. Weights become integers over a period, so that
    every source is always within one sample of its share. `stages` change the weights on the way (a source that a stage
    does not name weighs nothing); sources are then views without weights:

        mix({"web": web, "code": code}, stages=[Stage({"web": 1}, samples=10**6), Stage({"web": 0.5, "code": 0.5})])

    A source may itself be a mixture of constant weights, whose sources are then called `outer/inner`. `max_epochs`, for
    all sources or by name, ends the run where a source would be seen more often; `Mixture.budget` tells beforehand.
    """
    if not sources:
        raise ArgumentError("a mixture needs at least one source")
    if by not in ("samples", "tokens"):
        raise ArgumentError(f"by is {by!r}; it must be 'samples' or 'tokens'")
    views: dict[str, View] = {}
    shares: dict[str, dict[str, float]] = {}  # of the samples of a source: all are its own, or a nested mixture's
    weights: dict[str, float] = {}
    for name, entry in sources.items():
        part, weight = entry if isinstance(entry, tuple) else (entry, None)
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"the sources of a mixture need names; one is called {name!r}")
        if (weight is None) == (stages is None):
            told = "stages say the weights" if stages is not None else "a weight is needed: (view, weight)"
            raise ArgumentError(f"source {name!r}: {told}")
        if weight is not None:
            weights[name] = weight
        inner = Mixture.of(part)
        if inner.shares is None:
            raise ArgumentError(f"{name!r} is a mixture with stages; one within another must have constant weights")
        total = sum(inner.shares.values())
        names = {each: f"{name}/{each}" if each else name for each in inner.views}
        shares[name] = {names[each]: share / total for each, share in inner.shares.items()}
        views |= {names[each]: view for each, view in inner.views.items()}
    tokens = {name: _tokens_per_sample(view) if by == "tokens" else 1.0 for name, view in views.items()}

    def spread(asked: Mapping[str, float]) -> dict[str, float]:
        unknown = sorted(set(asked) - set(shares))
        if unknown:
            raise ArgumentError(f"a stage draws from {', '.join(unknown)}; the sources are {', '.join(shares)}")
        spread_weights = dict.fromkeys(views, 0.0)
        for name, weight in asked.items():
            mean = sum(share * tokens[each] for each, share in shares[name].items())
            spread_weights |= {each: weight * share / mean for each, share in shares[name].items()}
        return spread_weights

    asked = [Stage(weights)] if stages is None else stages
    spread_stages = [Stage(spread(stage.weights), samples=stage.samples, ramp=stage.ramp) for stage in asked]
    limits = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(views, max_epochs)
    unknown = sorted(set(limits) - set(views))
    if unknown:
        raise ArgumentError(f"max_epochs names {', '.join(unknown)}; the sources are {', '.join(views)}")
    constant = None if stages is not None else spread_stages[0].weights
    return Mixture(Schedule(spread_stages, list(views)), views, max_epochs=limits, shares=constant, by=by)


def _tokens_per_sample(view: View) -> float:
    """Mean number of tokens in a sample; for documents the mean number of bytes, which is in proportion."""
    return float(view.length or max(1, view.sample_bytes))


class Mixture:
    """Sources and their schedule. Made by `mix`, changed by `then`; a `Loader` takes it as it takes a view."""

    def __init__(
        self,
        schedule: Schedule,
        views: Mapping[str, View],
        *,
        max_epochs: Mapping[str, int | None] | None = None,
        shares: Mapping[str, float] | None = None,
        by: str = "samples",
    ) -> None:
        self.schedule = schedule
        self.views = {name: views[name] for name in schedule.names}
        """Views of the sources, by name, in the order of the schedule."""
        self.max_epochs = dict(max_epochs or {})
        """Limits on how often sources are seen, by name."""
        self.shares = shares
        """Weights of samples where they never change; None where they do."""
        self.by = by
        for name, view in self.views.items():
            if len(view) == 0:
                raise ArgumentError(f"source {name!r} is empty: {view} has no samples" if name else f"{view} is empty")
            limit = self.max_epochs.get(name)
            if limit is not None and limit < 1:
                raise ArgumentError(f"max_epochs of {name!r} is {limit}; it must be at least 1")

    @classmethod
    def of(cls, view: Part) -> "Mixture":
        """The mixture itself; a view as the mixture of one source, whose name is empty."""
        if isinstance(view, Mixture):
            return view
        return cls(Schedule([Stage({"": 1.0})], [""]), {"": view}, shares={"": 1.0})

    def then(self, at: int, weights: Mapping[str, float], *, sources: Mapping[str, View] | None = None) -> "Mixture":
        """The same mixture up to sample `at` of the run, and other weights from there on, perhaps with new sources.

        Weights count as those of the mixture do, samples or tokens. Sources that are not named weigh nothing. Every
        source goes on where it was: nothing is repeated. A checkpoint taken at or before `at` fits both mixtures.
        """
        for name in sources or {}:
            if name in self.views:
                raise ArgumentError(f"there is a source {name!r} already; it goes on with its own samples")
        views = {**self.views, **(sources or {})}
        unknown = sorted(set(weights) - set(views))
        if unknown:
            raise ArgumentError(f"weights name {', '.join(unknown)}; the sources are {', '.join(views)}")
        asked = dict.fromkeys(views, 0.0) | dict(weights)
        if self.by == "tokens":
            asked = {name: weight / _tokens_per_sample(views[name]) for name, weight in asked.items()}
        return Mixture(self.schedule.then(at, asked), views, max_epochs=self.max_epochs, by=self.by)

    @cached_property
    def joined(self) -> View:
        """The samples of all sources, one after the other; the view itself where there is one."""
        first, *others = self.views.values()
        return first.join(others) if others else first

    def budget(self, samples: int) -> list[Ledger]:
        """How many samples, and epochs, of each source a run of `samples` samples draws."""
        counts, targets = self.schedule.counts(samples).tolist(), self.schedule.targets(samples).tolist()
        return [
            Ledger(name, count, target, len(view), self.max_epochs.get(name))
            for (name, view), count, target in zip(self.views.items(), counts, targets, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Mixture({', '.join(f'{name}: {view}' for name, view in list(self.views.items())[:8])})"
