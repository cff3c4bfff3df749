"""Runs as sets: the samples of a view that a run has delivered, or never has, as views.

In an epoch that nothing has changed, the samples of a source come in the order P[0], P[1], …, P[n − 1]. After c of
them, those that were seen are P[0 … c), the others P[c … n): both are computed sample by sample, and take no memory.
Where the data grew in mid-epoch, or samples were left out by `skip_to`, the set is a sorted array.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np

from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.plan.amendment import PlanSource
from tokenfeed.plan.orders import Local
from tokenfeed.plan.plan import Plan
from tokenfeed.store.spec import ViewSpec
from tokenfeed.store.subset import Chain, Listed, Selection, Slice, Subset, SubsetSpec
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["RunSetSpec", "select"]

_SLICE = 1 << 20
Range = tuple[int, int]


@dataclass(frozen=True)
class RunSetSpec(SubsetSpec):
    """The samples that the first `samples` samples of a plan have among them, or all others."""

    kind: ClassVar[str] = "run set"

    plan: Plan
    """Plan of the run; that of the source alone, where nothing else changed its order."""
    samples: int
    source: str
    seen: bool
    left_out: tuple[Range, ...] = ()
    """Ranges of the first `samples` samples that the run did not deliver, in order."""

    def select(self, view: View) -> Selection:
        number, size = self.plan.source_number(self.source), len(view)
        known = self.plan.sources[number].num_samples
        is_plain = _is_plain(self.plan) and not self.left_out
        if is_plain and len(self.plan.sources) == 1 and size >= known:
            if self.samples >= known:
                return Slice(0, known) if self.seen else Slice(known, size)
            if self.seen:
                return _Ordered(self.plan, 0, self.samples)
            rest = _Ordered(self.plan, self.samples, known)
            return rest if size == known else Chain([(0, rest), (0, Slice(known, size))])
        bounds = [0, *(each for both in self.left_out for each in both), self.samples]
        delivered = list(zip(bounds[::2], bounds[1::2], strict=True))
        return Listed(np.flatnonzero(_mark(self.plan, delivered, number, size) == self.seen))

    def to_json(self) -> dict[str, Any]:
        values = super().to_json() | {"plan": self.plan.to_json()}
        left_out = [list(each) for each in values.pop("left_out")]
        return values | ({"left_out": left_out} if left_out else {})

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        unknown = values.keys() - {each.name for each in fields(cls)}
        match values:
            case {"samples": int(samples), "source": str(source), "seen": bool(seen), "plan": plan} if not unknown:
                left_out = tuple(map(tuple, values.get("left_out", ())))
                bounds = [0, *(each for both in left_out for each in both), samples]
                are_whole = all(type(each) is int for each in bounds) and all(len(each) == 2 for each in left_out)
                if are_whole and bounds == sorted(bounds) and samples < 1 << 62:
                    base = ViewSpec.from_json(values.get("base"))
                    return cls(base, Plan.from_json(plan), samples, source, seen, left_out)
        raise StateError(f"{str(values)[:200]} describes no set of samples, and so no view")

    def __str__(self) -> str:
        told = self.plan.to_json(), *self.left_out
        digest = checksum(str(told if self.left_out else told[0]).encode())[:8]
        of = f" of {self.source!r}" if self.source else ""
        return f"{self.base} {'seen' if self.seen else 'unseen'} after {self.samples}{of} of {digest}"


class _Ordered(Selection):
    """Samples [start, stop) of the first epoch of a plan over one view, in the order of the plan."""

    def __init__(self, plan: Plan, start: int, stop: int) -> None:
        self._plan, self._start, self._stop = plan, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def locate(self, numbers: Ints) -> Ints:
        return self._plan.locate(numbers + self._start)[2]

    def find(self, indices: Ints) -> Ints:
        known = self._plan.sources[0].num_samples
        samples = self._plan.find_all(np.clip(indices, 0, known - 1), 0, source=self._plan.sources[0].name)
        inside = (samples >= self._start) & (samples < self._stop) & (indices >= 0) & (indices < known)
        return np.where(inside, samples - self._start, -1)


def _is_plain(plan: Plan) -> bool:
    """Whether every source goes through all its samples, epoch after epoch, with nothing added."""
    return isinstance(plan.shuffle, bool | Local) and not any(any(each.changes()) for each in plan.amendments)


def _mark(plan: Plan, ranges: Sequence[Range], source: int, size: int) -> Bools:
    """Which of the first `size` samples of a source are in ranges of a plan. O(samples in them)."""
    marked = np.zeros(size, np.bool_)
    for start, stop in ranges:
        for begin in range(start, stop, _SLICE):
            sources, _, indices = plan.locate(np.arange(begin, min(begin + _SLICE, stop)))
            own = indices[sources == source]
            marked[own[own < size]] = True
            if marked.all():
                return marked
    return marked


def select(
    view: View, plan: Plan, num_delivered: int, left_out: Sequence[Range], source: str | None, *, seen: bool
) -> View:
    """The samples of a view that are among the first `num_delivered` samples of a plan, or all others.

    `left_out` are ranges of these that were not delivered.
    """
    number = _find_source(plan, view, source)
    found, key = plan.keyed_sources[number]
    name = found.name
    left_out = tuple((start, min(stop, num_delivered)) for start, stop in left_out if start < num_delivered)
    if _is_plain(plan) and not left_out:  # then how many came before is all that matters of the others
        num_delivered = plan.ledger(num_delivered)[number].samples
        plan = Plan([PlanSource(key, found.num_samples, found.data, found.spec)], seed=plan.seed, shuffle=plan.shuffle)
        name = key
    spec = RunSetSpec(view.spec, plan, num_delivered, name, seen, left_out)
    return Subset(view, spec.select(view), spec)


def _identities(plan: Plan, number: int) -> list[str]:
    """Identities of the data of a source: of the rows that it came with, and after every growth."""
    return list(accumulate((each.data for each in plan.rows(plan.sources[number].name)), "{}+{}".format))


def _find_source(plan: Plan, view: View, name: str | None) -> int:
    """The source of a plan that a view has the samples of, in this or another version of the store."""
    known = {view.identity, *(version.identity for version in view.data.versions)}
    wanted = range(len(plan.sources)) if name is None else [plan.source_number(name)]
    alike = [number for number in wanted if not known.isdisjoint(_identities(plan, number))]
    if not alike:
        data = ", ".join(f"{each.name or 'its data'} {each.data}" for each in (plan.sources[n] for n in wanted))
        raise PlanMismatchError(
            f"the run was not over the store of this view, whose identity is {view.identity}: the run was over {data}. "
            "Give a view of the store that the run was over, or of a later version of it"
        )
    found = [number for number in alike if plan.sources[number].spec == view.spec.sample]
    if not found:
        raise PlanMismatchError(
            f"the run was over {plan.sources[alike[0]].spec}, and this view is {view.spec.sample}: its samples are "
            "others. Give the view that the run was over"
        )
    if len(found) > 1:
        names = ", ".join(plan.sources[number].name for number in found)
        raise ArgumentError(f"several sources of the run are over this view: {names}. Say which: source=…")
    return found[0]
