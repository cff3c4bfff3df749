"""Specs: what a view's samples are, as data. A spec is JSON in and out; `store.view(spec)` opens the view again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from tokenfeed.errors import ArgumentError, StateError

__all__ = ["LOSS_MASK", "PACKING_ALGORITHM", "DocumentsSpec", "PackedSpec", "ViewSpec", "WindowsSpec"]

PACKING_ALGORITHM = 1
"""The rows of a packing plan depend on lengths, width and this number. It changes when `kernels/bestfit.py` does."""


LOSS_MASK = "loss_mask"
"""Column that says which items are learned, in every view that is not told otherwise."""
_KINDS: dict[str, type["ViewSpec"]] = {}
_DELIVERY = {"is_delivery": True}
"""Marks a field that says what comes along with a sample, not which items the sample has."""


@dataclass(frozen=True, kw_only=True)
class ViewSpec:
    """What one sample is. Subclasses are the kinds of views."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            _KINDS[cls.kind] = cls

    columns: tuple[str, ...] = field(default=(), metadata=_DELIVERY)
    """Columns to read with every batch, beyond the primary one."""
    spans: tuple[str, ...] = field(default=(), metadata=_DELIVERY)
    """Span tables whose payloads are read with every batch."""
    loss_mask: str | None = field(default=None, metadata=_DELIVERY)
    """Column whose zeros mark items that must not be learned."""
    loss_weights: str | None = field(default=None, metadata=_DELIVERY)
    """Column of the weights of items as targets."""
    table: str = field(default="documents", metadata=_DELIVERY)
    """Span table that documents are numbered in."""

    @cached_property
    def sample(self) -> Self:
        """The same spec, reduced to what decides which items a sample has."""
        identity = {each.name: getattr(self, each.name) for each in fields(self) if not each.metadata}
        return type(self)(**identity)

    @property
    def unit(self) -> "ViewSpec":
        """Spec of all samples of the kind: that of the whole view, where this one is of some of its samples."""
        return self.sample

    def to_json(self) -> dict[str, Any]:
        """The spec as a JSON object; delivery fields at their defaults are left out."""
        values: dict[str, Any] = {"kind": self.kind}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not (each.metadata and value == each.default):
                values[each.name] = list(value) if isinstance(value, tuple) else value
        return values

    @staticmethod
    def from_json(value: Any) -> "ViewSpec":
        """The spec that `to_json` wrote. A StateError where it is not one."""
        if not isinstance(value, Mapping) or value.get("kind") not in _KINDS:
            raise StateError(f"{str(value)[:80]} describes no view; expected one of kind {', '.join(_KINDS)}")
        try:
            return _KINDS[value["kind"]].parse({name: each for name, each in value.items() if name != "kind"})
        except (ArgumentError, TypeError) as error:  # a TypeError names a field that is missing or unknown
            raise StateError(f"{str(value)[:200]} describes no view: {error}") from error

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """The spec of this kind with the fields that `to_json` wrote."""
        types = {each.name: str(each.type) for each in fields(cls)}
        return cls(**{name: _checked(name, each, types.get(name, "str")) for name, each in values.items()})


def _checked(name: str, value: Any, declared: str) -> Any:
    if isinstance(value, ViewSpec):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = tuple(value)
    accepted = tuple if "tuple" in declared else bool if "bool" in declared else int if "int" in declared else str
    if type(value) is not accepted:
        raise StateError(f"field {name!r} of a view is {str(value)[:80]!r}; expected {accepted.__name__}")
    return value


@dataclass(frozen=True)
class WindowsSpec(ViewSpec):
    """Items [i·length, i·length + length + extra) of the store."""

    kind: ClassVar[str] = "windows"

    length: int
    extra: int = 1

    def __post_init__(self) -> None:
        if not all(isinstance(each, int | np.integer) for each in (self.length, self.extra)):
            raise ArgumentError(f"windows of length {self.length!r}, extra {self.extra!r}; both must be whole numbers")
        if self.length < 1 or self.extra < 0:
            raise ArgumentError(f"windows of length {self.length}, extra {self.extra}; they must be at least 1 and 0")

    def __str__(self) -> str:
        return f"windows({self.length}{'' if self.extra == 1 else f', extra={self.extra}'})"


@dataclass(frozen=True)
class DocumentsSpec(ViewSpec):
    """One span of a table is one sample."""

    kind: ClassVar[str] = "documents"

    table: str = field(default="documents", kw_only=True)
    """Span table whose spans are the samples."""

    def __str__(self) -> str:
        return f"documents({self.table!r})"


@dataclass(frozen=True)
class PackedSpec(ViewSpec):
    """One row of a packing plan is one sample: `length` + 1 items."""

    kind: ClassVar[str] = "packed"

    length: int
    table: str = field(default="documents", kw_only=True)
    """Span table whose spans are packed."""
    algorithm: int = field(default=PACKING_ALGORITHM, kw_only=True)
    cache: str | None = field(default=None, kw_only=True, metadata=_DELIVERY)
    """Folder of the packing plan, where it is not in one of the usual places."""

    def __str__(self) -> str:
        table = "" if self.table == "documents" else f", table={self.table!r}"
        return f"packed({self.length}{table})"
