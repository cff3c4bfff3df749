"""Where two runs part, from their run files alone: both sides as they are."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tokenfeed.errors import StateError
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.legs import Leg
from tokenfeed.runs.run import Run
from tokenfeed.types import Bools, Ints

__all__ = ["Comparison", "Difference", "compare"]

_END = 1 << 60  # samples: no run gets there
_STEPS_LOOKED_AT = 1 << 10  # steps compared one by one, where they take different numbers of samples or tokens
_LOOKED_AT = 1 << 20  # samples compared one by one, where plans differ and may still deliver the same


@dataclass(frozen=True)
class Difference:
    """One thing that differs, as it is in the first run and in the second."""

    part: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Comparison:
    """From where on two runs differ."""

    step: int | None = None
    """First step that delivers other rows, or in another order."""
    why: tuple[Difference, ...] = ()
    """The first row that differs, or that one run alone has in that step, and all that differs before it."""
    planned: bool = False
    """Whether neither run is known to have got to that row."""
    division_step: int | None = None
    """First step, before that, that delivers the same rows in another division among ranks."""
    division: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not looked at."""

    @property
    def same(self) -> bool:
        return self.step is None and self.division_step is None

    def to_json(self) -> dict[str, Any]:
        return {"same": self.same, **asdict(self)}


class _PlanPair:
    """Two plans: how far they are the same, and which rows of theirs are."""

    def __init__(self, plan: Plan, other: Plan) -> None:
        self.plans = plan, other
        # What digests cover only grows with the number of samples: once they differ, they differ for good.
        differ = bisect_left(range(_END), True, key=lambda count: plan.parts(count) != other.parts(count))
        self.shared = _END if differ == _END else max(0, differ - 1)
        """Number of first samples that are the same for certain: both plans have the same digests for them."""

    @cached_property
    def _common(self) -> Ints:
        """How many samples each source of the first plan has in common with each of the second, from the beginning."""
        ones, others = (_versions(plan) for plan in self.plans)
        return np.array([[max((size for *_, size in one & other), default=0) for other in others] for one in ones])

    def differ(self, samples: Ints, others: Ints) -> Bools:
        """Which samples of the first plan are other rows of the data, or of another epoch, than those of the second."""
        source, epoch, index = self.plans[0].locate(samples)
        other, other_epoch, other_index = self.plans[1].locate(others)
        unequal: Bools = (epoch != other_epoch) | (index != other_index) | (index >= self._common[source, other])
        return unequal


def _versions(plan: Plan) -> list[set[tuple[str, str, int]]]:
    """(what a sample is, data, number of samples) of every source, when it came and after each growth."""
    found = []
    for source in plan.sources:
        rows = plan.rows(source.name)
        data = accumulate((each.data for each in rows), "{}+{}".format)
        sizes = accumulate(each.num_samples for each in rows)
        found.append({(source.label, *version) for version in zip(data, sizes, strict=True)})
    return found


def compare(first: Run, second: Run) -> Comparison:
    """Compare what two runs deliver, step by step: (source, epoch, index) of every row, in the order of the run.

    O(starts), and some 60 digests for every pair of plans: runs of 10⁹ steps take no longer than short ones. Both are
    compared beyond what was run, as planned, from the first step on that both tell of.
    """
    for run in (first, second):
        if not run.legs:
            raise StateError(f"{run.path} has no start: nothing was run, and nothing can be compared")
    scan, found = _Scan(), dict[str, Any]()
    for step, stop_step, legs in _walk(first, second, scan.notes):
        begins = [leg.begin(step) for leg in legs]
        left = [_END if leg.start.stop is None else max(0, leg.start.stop - leg.begin(step)) for leg in legs]
        counts = left
        if stop_step is not None:
            counts = [min(each, leg.begin(stop_step) - leg.begin(step)) for each, leg in zip(left, legs, strict=True)]
        offset = scan.find(legs, begins, min(counts))
        if offset is None and counts[0] != counts[1]:  # one of them has no more
            offset = min(counts)
        places = [(leg, begin + (offset or 0), each) for leg, begin, each in zip(legs, begins, left, strict=True)]
        if offset is not None:
            found["step"] = min(leg.step_of(sample) for leg, sample, each in places if offset < each)
        division = _differences(*map(_describe_division, legs))
        if division and "division" not in found and found.get("step") != step and min(counts) > 0:
            found |= {"division_step": step, "division": division}
        if offset is not None:
            found["why"] = _differences(*(_describe(leg, sample) for leg, sample, _ in places))
            found["planned"] = all(sample >= leg.reached for leg, sample, _ in places)
            break
    return Comparison(**{"why": scan.why, **found}, notes=tuple(scan.notes))


def _walk(first: Run, second: Run, notes: list[str]) -> Iterator[tuple[int, int | None, tuple[Leg, Leg]]]:
    """(first step, end, both legs) of all steps that both tell of, cut where a leg ends; where the legs take different
    numbers of samples or tokens, one by one.
    """
    begins = [run.legs[0].first_step for run in (first, second)]
    begin = max(begins)
    if min(begins) < begin:
        notes.append(f"steps before {begin:,} were not looked at: one of the run files tells nothing of them")
    ones, others = ({leg.first_step: leg for leg in run.legs} for run in (first, second))
    legs = first.leg_of(begin), second.leg_of(begin)
    edges = [begin, *sorted(step for step in {*ones, *others} if step > begin)]
    for step, stop_step in pairwise([*edges, None]):
        assert step is not None
        legs = ones.get(step, legs[0]), others.get(step, legs[1])
        if len({(leg.start.rule.by_tokens, leg.width) for leg in legs}) == 1:
            yield step, stop_step, legs
            continue
        last = step + _STEPS_LOOKED_AT if stop_step is None else min(stop_step, step + _STEPS_LOOKED_AT)
        for each in range(step, last):
            if all(leg.start.stop is not None and leg.begin(each) >= leg.start.stop for leg in legs):
                return
            yield each, each + 1, legs
        if last != stop_step:
            notes.append(f"steps from {last:,} on, before the next start, were not looked at")


class _Scan:
    """Finds the first rows that differ: by digests, and row by row where these no longer tell."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], _PlanPair] = {}
        self._left = _LOOKED_AT
        self.notes: list[str] = []
        self.why: tuple[Difference, ...] = ()
        """What differs in plans that deliver the same rows all the same, as far as was looked at."""

    def find(self, legs: tuple[Leg, Leg], begins: list[int], count: int) -> int | None:
        """The first i < count for which sample begins[0] + i of one leg is not sample begins[1] + i of the other."""
        key = id(legs[0].plan), id(legs[1].plan)
        pair = self._pairs[key] = self._pairs.get(key) or _PlanPair(legs[0].plan, legs[1].plan)
        first = at = min(count, max(0, pair.shared - begins[0])) if begins[0] == begins[1] else 0
        chunk = 256
        while at < count and self._left > 0:
            offsets = np.arange(at, min(at + chunk, at + self._left, count), dtype=np.int64)
            unequal = np.flatnonzero(pair.differ(begins[0] + offsets, begins[1] + offsets))
            if unequal.size:
                return int(offsets[unequal[0]])
            at, chunk, self._left = int(offsets[-1]) + 1, min(2 * chunk, 1 << 16), self._left - offsets.size
        if first < count and not self.why:
            self.why = _differences(*(_describe(leg, begin + first) for leg, begin in zip(legs, begins, strict=True)))
            if at < count:
                self.notes.append(
                    f"the plans differ from sample {begins[0] + first:,} on, and deliver the same rows in the "
                    f"{at - first:,} samples that were looked at"
                )
        return None


def _describe(leg: Leg, sample: int) -> dict[str, Any]:
    """A row, if the run has it, and what it follows from."""
    start, plan = leg.start, leg.plan
    end = sample + 1 if start.stop is None else min(sample + 1, start.stop)
    first, stage = next(each for each in reversed(plan.shares.stages()) if each[0] < max(1, end))
    return {
        **(asdict(plan.trace([sample])[0]) if end > sample else {}),
        **plan.parts(end),
        "weights": f"{stage} from sample {first:,} on{' (by tokens)' if plan.by == 'tokens' else ''}",
        "last change": next((f"{each} at sample {each.at:,}" for each in plan.amendments[::-1] if each.at < end), None),
        "end": start.stop,
        **_describe_division(leg),
    }


def _describe_division(leg: Leg) -> dict[str, Any]:
    """What decides which rank takes which sample."""
    start, rule = leg.start, leg.start.rule
    return {
        "world size": start.world_size,
        "tokens" if rule.by_tokens else "batch size": rule.rows,
        "micro-batches": rule.parts,
        "balance": None if rule.cost is None else rule.cost.to_json(),
    }


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Difference, ...]:
    names = [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]
    return tuple(Difference(name, first.get(name), second.get(name)) for name in names)
