"""`PlanSource`: what a plan knows of one source."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenfeed.errors import StateError
from tokenfeed.store.spec import ViewSpec
from tokenfeed.store.view import View

__all__ = ["PlanSource"]


@dataclass(frozen=True)
class PlanSource:
    """One source of a plan: how many samples it has, of which data, and what one sample is. Never bytes or paths."""

    name: str
    """Empty for the only source of a run over one view."""
    num_samples: int
    data: str
    """Checksum of its data."""
    view: Mapping[str, Any]
    """What one sample is: the JSON form of a `ViewSpec`, such as `{"kind": "windows", "length": 2048}`."""
    max_epochs: int | None = None
    """Limit on how often its samples are seen; the run ends there."""

    @classmethod
    def of(cls, name: str, view: View, max_epochs: int | None = None) -> "PlanSource":
        return cls(name, len(view), view.identity, view.spec.sample.to_json(), max_epochs)

    @cached_property
    def spec(self) -> ViewSpec:
        """What one sample is. Raises StateError where a file that was read describes no view."""
        return ViewSpec.from_json(self.view)

    @property
    def label(self) -> str:
        """What one sample is, as text that differs wherever samples do."""
        algorithm = self.view.get("algorithm")
        return str(self.spec) if algorithm is None else f"{self.spec} by algorithm {algorithm}"

    def to_json(self) -> dict[str, Any]:
        fields = {"name": self.name, "samples": self.num_samples, "data": self.data, "view": dict(self.view)}
        return fields if self.max_epochs is None else {**fields, "max_epochs": self.max_epochs}

    @classmethod
    def from_json(cls, value: Any) -> "PlanSource":
        match value:
            case {"name": str(name), "samples": count, "data": str(data), "view": view}:
                limit = value.get("max_epochs")
                if _is_count(count) and (limit is None or _is_count(limit)):
                    source = cls(name, count, data, view, limit)
                    _ = source.spec  # checks the view
                    return source
        raise StateError(f"{str(value)[:200]} describes no source of a plan")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 62
