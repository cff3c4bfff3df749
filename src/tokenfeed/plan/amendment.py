"""`Amendment`: what changes from some sample of a run on, as data: JSON in and out, in states, plans and run files."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tokenfeed.errors import StateError, quantity, whole
from tokenfeed.plan.masks import Mask
from tokenfeed.plan.shares import Stage
from tokenfeed.store.spec import PackedSpec, ViewSpec

__all__ = ["Amendment", "PlanSource"]


@dataclass(frozen=True)
class PlanSource:
    """One source of a plan: how many samples it has, of which data, and what one sample is. Never bytes."""

    name: str
    """Empty for the only source of a run over one view."""
    num_samples: int
    data: str
    """Checksum of its data."""
    spec: ViewSpec
    """What one sample is."""
    max_epochs: int | None = None
    """Limit on how often its samples are seen; the run ends there."""
    paths: tuple[str, ...] = field(default=(), compare=False)
    """Where an amendment found its rows: a hint for opening them again, never their identity. Other rows are named by
    the run file."""
    view: ViewSpec | None = field(default=None, compare=False)
    """Its view as an amendment found it, where more than `spec` comes along with a sample."""

    @property
    def label(self) -> str:
        """What one sample is, as text that differs wherever samples do."""
        return (
            f"{self.spec} by algorithm {self.spec.algorithm}" if isinstance(self.spec, PackedSpec) else str(self.spec)
        )

    def to_json(self) -> dict[str, Any]:
        fields = {"name": self.name, "samples": self.num_samples, "data": self.data, "view": self.spec.to_json()}
        more = {"max_epochs": self.max_epochs, "paths": list(self.paths), "opens": self.view and self.view.to_json()}
        return fields | {name: value for name, value in more.items() if value not in (None, [])}

    @classmethod
    def from_json(cls, value: Any) -> "PlanSource":
        match value:
            case {"name": str(name), "samples": int(count), "data": str(data), "view": view}:
                limit, paths, opens = value.get("max_epochs"), value.get("paths", []), value.get("opens")
                numbers = count, 1 if limit is None else limit
                if all(type(each) is int and 0 < each < 1 << 62 for each in numbers) and _are_paths(paths):
                    opened = None if opens is None else ViewSpec.from_json(opens)
                    return cls(name, count, data, ViewSpec.from_json(view), limit, tuple(paths), opened)
        raise StateError(f"{str(value)[:200]} describes no source of a plan")


def _are_paths(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class Amendment:
    """What changes from sample `at` on; everything that is not named stays as it is. Made by `Plan.amend`."""

    at: int
    stages: tuple[Stage, ...] = ()
    """Weights of samples from there on, by the names of sources."""
    sources: tuple[PlanSource, ...] = ()
    """Sources that are new."""
    name: str | None = None
    """Name that the only source, which had none, has from there on: there are several now."""
    grown: tuple[PlanSource, ...] = ()
    """Rows that sources have more from there on, each under the name of its source."""
    masks: tuple[tuple[str, Mask], ...] = ()
    """(source, documents in which nothing is learned from there on)."""
    max_epochs: Mapping[str, int | None] = field(default_factory=dict)
    """Limits on how often sources are seen."""
    live: bool = field(default=False, compare=False)
    """Whether it was made while the run went on, and is no part of what the program gives a loader."""

    @cached_property
    def saved(self) -> str:
        """The amendment in a state: JSON, as text, which torch.distributed.checkpoint keeps as one value."""
        return json.dumps(replace(self, live=False).to_json(), separators=(",", ":"))

    def changes(self) -> Iterator[Any]:
        """What it does to the order of sources, and to what counts of them: the part that a state has a digest of."""
        for source in self.grown:
            yield [self.at, "grown", source.name, source.num_samples, source.data, source.label]
        for key, mask in sorted(self.masks, key=lambda each: each[0]):
            yield [self.at, "mask", key, mask.digest]

    def __str__(self) -> str:
        """`the mask`, `the change of weights and the growth of web`."""
        told = []
        if self.stages:
            told.append("the change of weights")
        if self.sources:
            told.append(f"the new source {', '.join(each.name for each in self.sources)}")
        if self.grown:
            names = ", ".join(each.name for each in self.grown)
            told.append(f"the growth of {names}" if names else "the growth of the data")
        if self.masks:
            told.append("the mask" if len(self.masks) == 1 else quantity(len(self.masks), "mask"))
        if self.max_epochs:
            told.append("the change of max_epochs")
        return " and ".join(told) or "an amendment that changes nothing"

    def to_json(self) -> dict[str, Any]:
        fields = {
            "at": self.at,
            "stages": [stage.to_json() for stage in self.stages],
            "sources": [source.to_json() for source in self.sources],
            "name": self.name,
            "grown": [source.to_json() for source in self.grown],
            "masks": {key: mask.to_json() for key, mask in self.masks},
            "max_epochs": dict(self.max_epochs),
            "live": self.live or None,
        }
        return {name: value for name, value in fields.items() if name == "at" or value not in (None, [], {})}

    @classmethod
    def from_json(cls, value: Any) -> "Amendment":
        try:
            unknown = value.keys() - _READERS.keys()
            if unknown:
                raise ValueError(f"it has {', '.join(sorted(unknown))}, which this tokenfeed does not know")
            found = {name: _READERS[name](each) for name, each in value.items() if each is not None}
            return cls(**found)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise StateError(f"{str(value)[:200]} describes no amendment ({error})") from error


def _number(value: Any) -> int:
    return whole("a number in it", value, bits=62)


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(map(_number, value))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its name is {value!r}")
    return value


def _sources(value: Any) -> tuple[PlanSource, ...]:
    return tuple(map(PlanSource.from_json, value))


_READERS: dict[str, Callable[[Any], Any]] = {
    "at": _number,
    "stages": lambda value: tuple(map(Stage.from_json, value)),
    "sources": _sources,
    "name": _name,
    "grown": _sources,
    "masks": lambda value: tuple((_name(key), Mask.from_json(each)) for key, each in value.items()),
    "max_epochs": lambda value: {name: None if each is None else _number(each) for name, each in value.items()},
    "live": bool,
}
"""What each field of an amendment is made of in JSON."""
