"""`tokenfeed.mix`: several views as one, drawn from by weights that may change on the way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.work import ReadableView
from tokenfeed.plan.locality import Shuffle
from tokenfeed.plan.mixture import MixturePlan, Source
from tokenfeed.plan.schedule import Schedule, Stage
from tokenfeed.plan.skips import Skip
from tokenfeed.store.batch import Batch
from tokenfeed.store.data import Bytes
from tokenfeed.store.reader import Ints, Reader

__all__ = ["Budget", "Mixture", "mix"]

View = Any
Sources = Mapping[str, Any]


@dataclass(frozen=True)
class Budget:
    """What a number of samples means for one source."""

    source: str
    available: int
    """Samples that it has."""
    samples: int
    """That the run would draw from it."""
    epochs: float
    max_epochs: int | None

    @property
    def is_exceeded(self) -> bool:
        """Whether it means more epochs than were allowed."""
        return self.max_epochs is not None and self.samples > self.available * self.max_epochs


def mix(
    sources: Sources,
    *,
    stages: Sequence[Stage] | None = None,
    by: str = "samples",
    max_epochs: int | Mapping[str, int] | None = None,
) -> "Mixture":
    """Views to be drawn from in turn: `mix({"web": (web, 0.7), "code": (code, 0.3)})`.

    Weights are relative, and count samples, or with `by="tokens"` tokens: they are then divided by the mean size of a
    source's samples. They become integers over a period, so that what every source has given is never further than one
    sample from its share. `stages` change them on the way (sources that a stage does not name weigh nothing); sources
    are then views without weights:

        mix({"web": web, "code": code}, stages=[Stage({"web": 1}, samples=10**6), Stage({"web": 0.5, "code": 0.5})])

    A source may itself be a mixture of constant weights, whose sources are then called `outer/inner`. `max_epochs`, for
    all or by name, ends the run where a source would be seen more often; `Mixture.budget` tells beforehand.
    """
    views: dict[str, View] = {}
    given: dict[str, dict[str, float]] = {}
    """The weights of the sources that a name stands for: itself, or those of a nested mixture."""
    weights: dict[str, float] = {}
    for name, entry in sources.items():
        view, weight = entry if isinstance(entry, tuple) else (entry, None)
        if (weight is None) == (stages is None):
            told = "stages say the weights" if stages is not None else "a weight is needed: (view, weight)"
            raise ArgumentError(f"source {name!r}: {told}")
        if weight is not None:
            weights[name] = weight
        if isinstance(view, Mixture):
            if view.shares is None:
                raise ArgumentError(f"{name!r} is a mixture with stages; one within another must have constant weights")
            total = sum(view.shares.values())
            given[name] = {f"{name}/{inner}": share / total for inner, share in view.shares.items()}
            views |= {f"{name}/{inner}": each for inner, each in view.views.items()}
        else:
            given[name] = {name: 1.0}
            views[name] = view
    if not views:
        raise ArgumentError("a mixture needs at least one source")
    if by not in ("samples", "tokens"):
        raise ArgumentError(f"by is {by!r}; it must be 'samples' or 'tokens'")
    sizes = {name: max(1, view.sample_bytes) if by == "tokens" else 1 for name, view in views.items()}

    def spread(asked: Mapping[str, float]) -> dict[str, float]:
        unknown = sorted(set(asked) - set(given))
        if unknown:
            raise ArgumentError(f"a stage draws from {', '.join(unknown)}; the sources are {', '.join(given)}")
        shares = dict.fromkeys(views, 0.0)
        for name, weight in asked.items():
            shares |= {inner: weight * share / sizes[inner] for inner, share in given[name].items()}
        return shares

    plain = [Stage(weights)] if stages is None else list(stages)
    spread_stages = [Stage(spread(stage.weights), samples=stage.samples, ramp=stage.ramp) for stage in plain]
    limits = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(views, max_epochs)
    unknown = sorted(set(limits) - set(views))
    if unknown:
        raise ArgumentError(f"max_epochs names {', '.join(unknown)}; the sources are {', '.join(views)}")
    shares = None if stages is not None else spread_stages[0].weights
    return Mixture(Schedule(spread_stages, list(views)), views, limits, shares)


class Mixture:
    """Sources and their schedule. Made by `mix`, changed by `then`; a `Loader` takes it as it takes a view."""

    def __init__(
        self,
        schedule: Schedule,
        views: Mapping[str, View],
        max_epochs: Mapping[str, int | None],
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """`shares` are the weights where they never change."""
        self.schedule = schedule
        self.shares = shares
        self.views = dict(views)
        self._max_epochs = dict(max_epochs)
        for name, view in self.views.items():
            if len(view) == 0:
                raise ArgumentError(f"source {name!r} is empty: {view} has no samples")
            limit = self._max_epochs.get(name)
            if limit is not None and limit < 1:
                raise ArgumentError(f"max_epochs of {name!r} is {limit}; it must be at least 1")

    def then(self, at: int, weights: Mapping[str, float], *, sources: Mapping[str, View] | None = None) -> "Mixture":
        """The same mixture up to sample `at` of the run, and other weights from there on, perhaps with new sources.

        Sources that are not named weigh nothing. Every source goes on where it was: nothing is repeated. A checkpoint
        taken at or before `at` fits both mixtures.
        """
        added = dict(sources or {})
        for name in added:
            if name in self.views:
                raise ArgumentError(f"there is a source {name!r} already; it goes on with its own samples")
        views = {**self.views, **added}
        unknown = sorted(set(weights) - set(views))
        if unknown:
            raise ArgumentError(f"weights name {', '.join(unknown)}; the sources are {', '.join(views)}")
        return Mixture(self.schedule.then(at, dict.fromkeys(views, 0.0) | dict(weights)), views, self._max_epochs)

    def plan(self, *, seed: int = 0, shuffle: Shuffle = True, skips: Sequence[Skip] = ()) -> MixturePlan:
        """Which sample of which source comes when."""
        sources = [
            Source(
                name,
                len(view),
                view.identity,
                view.description,
                self._max_epochs.get(name),
                getattr(view, "samples_per_group", 1),
            )
            for name, view in self._ordered.items()
        ]
        found = [self._with_indices(skip) for skip in skips]
        return MixturePlan(self.schedule, sources, seed=seed, shuffle=shuffle, skips=found)

    def _with_indices(self, skip: Skip) -> Skip:
        if not skip.documents or skip.mask:
            return skip
        if skip.source not in self.views:
            raise ArgumentError(f"{skip}: of which source? There are {', '.join(self.views)}")
        touched = self.views[skip.source].samples_touching(skip.documents).tolist()
        if not touched and not skip.indices:
            raise ArgumentError(f"{skip}: no sample of {skip.source} touches these documents")
        return Skip(documents=skip.documents, indices=(*skip.indices, *touched), at=skip.at, source=skip.source)

    @property
    def _ordered(self) -> dict[str, View]:
        return {name: self.views[name] for name in self.schedule.names}

    @cached_property
    def joined(self) -> ReadableView:
        """The samples of all sources, one behind the other."""
        first, *others = self._ordered.values()
        for name, view in self._ordered.items():
            if not hasattr(first, "join") or not hasattr(view, "join") or view.__class__ is not first.__class__:
                raise ArgumentError(f"sources must be views of one kind; {name!r} is {view}, the first is {first}")
        joined: ReadableView = first.join(others)
        return joined

    @property
    def sample_bytes(self) -> int:
        """About how many bytes of columns a sample has."""
        return self.joined.sample_bytes

    def read(self, indices: Ints, *, allocate: Callable[[int], Bytes]) -> Batch:
        """Samples by their numbers through all sources."""
        return self.joined.read(indices, allocate=allocate)

    def announce(self, indices: Ints) -> None:
        """Begin to fetch what `read` will need, as far as it lies elsewhere. Does not wait."""
        self.joined.announce(indices)

    @property
    def reader(self) -> Reader:
        """What all sources are read by."""
        return self.joined.reader

    def budget(self, samples: int) -> list[Budget]:
        """How many samples, and epochs, of each source a run of `samples` samples draws."""
        counts = self.schedule.counts(samples)
        return [
            Budget(name, len(view), int(count), int(count) / len(view), self._max_epochs.get(name))
            for (name, view), count in zip(self._ordered.items(), counts, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Mixture({', '.join(f'{name}: {view}' for name, view in list(self.views.items())[:8])})"
