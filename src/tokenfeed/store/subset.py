"""`Subset`: some samples of a view, as a view; `Selection`: which ones; `SubsetSpec`: how both are opened again."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np

from tokenfeed.store.data import Data, new_bytes
from tokenfeed.store.numbers import as_indices, check_inside, slices
from tokenfeed.store.spec import ViewSpec
from tokenfeed.store.view import StoreRows, View
from tokenfeed.types import Bytes, Ints

__all__ = ["Chain", "Listed", "Selection", "Slice", "Subset", "SubsetSpec", "join_views"]


class Selection(ABC):
    """Numbers 0, 1, 2, … of a subset ↔ numbers of the samples in the view that it is a subset of."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def locate(self, numbers: Ints) -> Ints:
        """Numbers of the subset → samples of the view, as a new array of int64."""

    @abstractmethod
    def find(self, indices: Ints) -> Ints:
        """Samples of the view → numbers of the subset, −1 for those that are not in it."""


class Slice(Selection):
    """Samples [start, stop) of the view, in order."""

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop = start, max(start, stop)

    def __len__(self) -> int:
        return self._stop - self._start

    def locate(self, numbers: Ints) -> Ints:
        return numbers + self._start

    def find(self, indices: Ints) -> Ints:
        inside = (indices >= self._start) & (indices < self._stop)
        return np.where(inside, indices - self._start, -1)


class Listed(Selection):
    """Samples in a sorted array, each once."""

    def __init__(self, indices: Ints) -> None:
        self._indices = indices

    def __len__(self) -> int:
        return int(self._indices.size)

    def locate(self, numbers: Ints) -> Ints:
        return self._indices[numbers]

    def find(self, indices: Ints) -> Ints:
        if not len(self):
            return np.full(indices.size, -1)
        numbers = np.minimum(np.searchsorted(self._indices, indices), len(self) - 1)
        return np.where(self._indices[numbers] == indices, numbers, -1)


class Chain(Selection):
    """Selections one after the other, each counted in the view from a sample of its own on."""

    def __init__(self, parts: Sequence[tuple[int, Selection]]) -> None:
        """`parts` are (first sample, selection); what they select does not overlap."""
        self._parts = parts
        self._starts = np.cumsum([0, *(len(selection) for _, selection in parts)])
        self._bounds: list[int] = self._starts[:-1].tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def locate(self, numbers: Ints) -> Ints:
        if not numbers.size:
            return numbers.copy()
        least, most = (bisect_right(self._bounds, int(each)) - 1 for each in (numbers.min(), numbers.max()))
        if least == most:
            first, selection = self._parts[least]
            return first + selection.locate(numbers - self._bounds[least])
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        indices = np.empty(numbers.size, np.int64)
        for part, (first, selection) in enumerate(self._parts):
            rows = np.flatnonzero(which == part)
            if rows.size:
                indices[rows] = first + selection.locate(numbers[rows] - self._starts[part])
        return indices

    def find(self, indices: Ints) -> Ints:
        numbers = np.full(indices.size, -1)
        for start, (first, selection) in zip(self._starts.tolist(), self._parts, strict=False):
            found = selection.find(indices - first)
            numbers = np.where(found >= 0, found + start, numbers)
        return numbers


@dataclass(frozen=True)
class SubsetSpec(ViewSpec, ABC):
    """Some samples of the view that `base` describes. What comes along with a sample is said by `base`."""

    base: ViewSpec

    def __post_init__(self) -> None:
        for each in fields(ViewSpec):
            object.__setattr__(self, each.name, getattr(self.base, each.name))

    @abstractmethod
    def select(self, view: View) -> Selection:
        """The samples of the view."""

    @cached_property
    def sample(self) -> Self:
        return replace(self, base=self.base.sample)

    @property
    def unit(self) -> ViewSpec:
        return self.base.unit

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        for each in fields(ViewSpec):
            values.pop(each.name, None)
        return values | {"base": self.base.to_json()}

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        return super().parse(values | {"base": ViewSpec.from_json(values.get("base"))})


class Subset(View):
    """Some samples of a view, numbered 0, 1, 2, …

    View of 5 samples, selection 3 0 4:  sample 0 = sample 3 of the view, sample 1 = 0, sample 2 = 4; len = 3
    """

    def __init__(self, base: View, selection: Selection, spec: ViewSpec) -> None:
        super().__init__(base.data, spec, base.length, extra=base.layout.extra)
        self.base = base
        """View that the samples are of."""
        self.selection = selection
        self._size = len(selection)
        self.length, self.width = base.length, base.width

    def __len__(self) -> int:
        return self._size

    def rows(self, numbers: Ints) -> StoreRows:
        rows = self.base.rows(self._select(numbers))
        rows.numbers = numbers
        return rows

    def load(self, numbers: Ints, allocate: Callable[[int], Bytes] = new_bytes) -> StoreRows:
        rows = self.base.load(self._select(numbers), allocate)
        rows.numbers = numbers
        return rows

    def lengths(self, indices: Ints) -> Ints:
        return self.base.lengths(self._select(as_indices(indices)))

    def announce(self, indices: Ints, *, block_bytes: int = 0) -> None:
        self.base.announce(self._select(indices), block_bytes=block_bytes)

    def _select(self, numbers: Ints) -> Ints:
        check_inside(numbers, self._size)
        return self.selection.locate(numbers)

    @cached_property
    def _mean(self) -> Fraction:
        return Fraction(sum(int(self.lengths(part).sum()) for part in slices(len(self))), max(1, len(self)))

    @property
    def mean_length(self) -> Fraction:
        """As for every view. O(1) for windows; for others the lengths of all samples are looked up, once."""
        has_one_length = self.base.spec.unit.kind == "windows"
        return self.base.mean_length if has_one_length else self._mean

    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        found = self.selection.find(self.base.samples_touching(documents, table=table))
        return np.sort(found[found >= 0])

    def join(self, others: Sequence[View]) -> View:
        return join_views([self, *others])

    def __reduce__(self) -> Any:
        return (join_views, (list(self._parts),)) if self._parts else super().__reduce__()

    def _join(self, others: Sequence[Any], data: Data) -> View:
        raise NotImplementedError  # `join` joins the views that the samples are of


def join_views(views: Sequence[View]) -> View:
    """The samples of several views, one view after the other, as one view that reads them by one call."""
    if len(views) == 1:
        return views[0]
    bases = [view.base if isinstance(view, Subset) else view for view in views]
    whole = bases[0].join(bases[1:])
    if not any(isinstance(view, Subset) for view in views):
        return whole
    parts: list[tuple[int, Selection]] = []
    first = 0
    for view, base in zip(views, bases, strict=True):
        parts.append((first, view.selection if isinstance(view, Subset) else Slice(0, len(base))))
        first += len(base)
    joined = Subset(whole, Chain(parts), whole.spec)
    joined._parts = tuple(part for view in views for part in view.parts)
    return joined
