"""Runs as sets: the samples of a view that a run has delivered, or never has, as views.

In an epoch that nothing has changed, the samples of a source come in the order P[0], P[1], …, P[n − 1]. After c of
them, those that were seen are P[0 … c), the others P[c … n): both are computed sample by sample, and take no memory.
Where samples were skipped, or the data grew in mid-epoch, the set is a sorted array.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.plan.amending import with_length
from tokenfeed.plan.amendment import PlanSource
from tokenfeed.plan.plan import Plan
from tokenfeed.store.spec import ViewSpec
from tokenfeed.store.subset import Chain, Listed, Selection, Slice, Subset, SubsetSpec
from tokenfeed.store.view import View
from tokenfeed.types import Bools, Ints

__all__ = ["RunSetSpec", "select"]

_SLICE = 1 << 20


@dataclass(frozen=True)
class RunSetSpec(SubsetSpec):
    """The samples that the first `samples` samples of a plan have among them, or all others."""

    kind: ClassVar[str] = "run set"

    plan: Plan
    """Plan of the run; that of the source alone, where nothing else changed its order."""
    samples: int
    source: str
    seen: bool

    def select(self, view: View) -> Selection:
        number, size = self.plan.source_number(self.source), len(view)
        known = self.plan.sources[number].num_samples
        if _is_plain(self.plan) and len(self.plan.sources) == 1 and size >= known:
            if self.samples >= known:
                return Slice(0, known) if self.seen else Slice(known, size)
            if self.seen:
                return _Ordered(self.plan, 0, self.samples)
            rest = _Ordered(self.plan, self.samples, known)
            return rest if size == known else Chain([(0, rest), (0, Slice(known, size))])
        return Listed(np.flatnonzero(_mark(self.plan, self.samples, number, size) == self.seen))

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"plan": self.plan.to_json()}

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        unknown = values.keys() - {each.name for each in fields(cls)}
        match values:
            case {"samples": int(samples), "source": str(source), "seen": bool(seen), "plan": plan} if not unknown:
                if 0 <= samples < 1 << 62:
                    return cls(ViewSpec.from_json(values.get("base")), Plan.from_json(plan), samples, source, seen)
        raise StateError(f"{str(values)[:200]} describes no set of samples, and so no view")

    def __str__(self) -> str:
        digest = checksum(str(self.plan.to_json()).encode())[:8]
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
    """Whether every source goes through its epochs one after the other, with nothing left out or added."""
    return not any(each.ranges or any(each.changes()) for each in plan.amendments)


def _mark(plan: Plan, num_delivered: int, source: int, size: int) -> Bools:
    """Which of the first `size` samples of a source are among the first `num_delivered` of a plan. O(num_delivered)."""
    marked = np.zeros(size, np.bool_)
    last = plan.sources[source].spec.samples_per_group
    for start, stop, group in _stretches(plan, num_delivered, source):
        for begin in range(start, stop, _SLICE):
            sources, _, indices = plan.locate(np.arange(begin, min(begin + _SLICE, stop)))
            own = indices[sources == source]
            first, end = own * last // group, -(-(own + 1) * last // group)  # where the length was another
            for place in range(int((end - first).max(initial=0))):
                here = first + place
                marked[here[(here < end) & (here < size)]] = True
            if marked.all():
                return marked
    return marked


def _stretches(plan: Plan, num_delivered: int, source: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, samples of a group) of the samples of one length."""
    turns, specs = zip(*plan.eras, strict=True)
    starts = [min(plan.retreat(turn), num_delivered) for turn in turns]
    unit = plan.sources[source].spec
    for start, stop, spec in zip(starts, [*starts[1:], num_delivered], specs, strict=True):
        group = unit.samples_per_group
        if len(specs) > 1:
            group = with_length(unit, spec.length, repr(plan.sources[source].name)).samples_per_group
        yield start, stop, group


def select(view: View, plan: Plan, num_delivered: int, source: str | None, *, seen: bool) -> View:
    """The samples of a view that are among the first `num_delivered` samples of a plan, or all others."""
    number = _find_source(plan, view, source)
    found, key = plan.keyed_sources[number]
    name = found.name
    if _is_plain(plan):  # then how many came before is all that matters of the others
        num_delivered = plan.ledger(num_delivered)[number].samples
        plan = Plan([PlanSource(key, found.num_samples, found.data, found.spec)], seed=plan.seed, shuffle=plan.shuffle)
        name = key
    spec = RunSetSpec(view.spec, plan, num_delivered, name, seen)
    return Subset(view, spec.select(view), spec)


def _identities(plan: Plan, number: int) -> list[str]:
    """Identities of the data of a source, from the first version that the run was over to the last."""
    key = plan.schedule.names[number]
    first = [PlanSource.from_json(each) for each in plan.to_json()["sources"]]
    added = [each for amendment in plan.amendments for each in (*amendment.sources, *amendment.grown)]
    return [each.data for each in (*first, *added) if each.name == key]


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
