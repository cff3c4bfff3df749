"""Where two runs part, and why, from their run files alone."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import StateError
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.shares import some
from tokenfeed.runs.legs import Leg
from tokenfeed.runs.run import Run
from tokenfeed.types import Ints

__all__ = ["Comparison", "Difference", "compare"]

_FOREVER = 1 << 60  # samples: no run gets there
_PLANNED = " Neither run is known to have got there: this is planned."
_STEPS_LOOKED_AT = 1 << 10  # steps compared one by one, where budgets of tokens differ
_LOOKED_AT = 1 << 20  # samples compared one by one, where plans are written differently and may still be the same


@dataclass(frozen=True)
class Difference:
    """One thing that differs, as it is in the first run and in the second."""

    part: str
    first: Any
    second: Any

    def __str__(self) -> str:
        if self.part == "amendments":
            told = (("first", self.first), ("second", self.second))
            return " and ".join(f"because of {some(each, str)} in the {run} run alone" for run, each in told if each)
        first, second = ("none" if value in (None, []) else str(value)[:200] for value in (self.first, self.second))
        return f"with {self.part} {first} in the first run and {second} in the second"


@dataclass(frozen=True)
class Comparison:
    """From where on two runs differ. `str` tells it in sentences."""

    step: int | None = None
    """First step that delivers other samples, or in another order."""
    samples: tuple[int, int] | None = None
    """Number, in each run, of the first sample of that step that differs."""
    epochs: tuple[int, int] | None = None
    """Epochs of that sample in each run, where it is the same row of the data in another epoch."""
    why: tuple[Difference, ...] = ()
    division_step: int | None = None
    """First step, before that, that delivers the same samples in another division among ranks."""
    division: tuple[Difference, ...] = ()
    note: str | None = None
    planned: bool = False
    """Whether neither run is known to have got to `step`."""
    division_planned: bool = False
    """Whether neither run is known to have got to `division_step`."""

    @property
    def same(self) -> bool:
        return self.step is None and self.division_step is None

    def __str__(self) -> str:
        told = ["The runs deliver the same samples in the same steps."] if self.same else []
        if self.division_step is not None:
            told.append(
                f"From step {self.division_step:,} on the runs deliver the same samples, divided differently among "
                f"ranks: {', and '.join(map(str, self.division))}." + _PLANNED * self.division_planned
            )
        if self.step is not None and self.samples is not None:
            first, second = self.samples
            what = f"other samples, the first at {first:,} and {second:,}"
            if self.epochs is not None:
                what = "the same rows of the data in another epoch, {} in the first run and {} in the second".format(
                    *self.epochs
                )
            told.append(
                f"From step {self.step:,} on the runs deliver {what}: {', and '.join(map(str, self.why))}."
                + _PLANNED * self.planned
            )
        return "\n".join([*told, *([] if self.note is None else [self.note])])


class _Progress(NamedTuple):
    """How far a run is at some step: it begins after `samples` samples."""

    leg: Leg
    step: int
    samples: int

    @property
    def pace(self) -> Any:
        """What decides how many samples each step takes: rows of all ranks, or their budget of tokens."""
        start = self.leg.start
        return start.rule.by_tokens, start.rule.rows * start.world_size

    @property
    def left(self) -> int:
        """Number of samples until the run ends."""
        stop = self.leg.start.stop
        return _FOREVER if stop is None else max(0, stop - self.samples)

    def count(self, stop_step: int | None) -> int:
        """Number of samples in the steps up to that one."""
        return self.left if stop_step is None else min(self.left, self.leg.begin(stop_step) - self.samples)

    def describe(self) -> dict[str, Any]:
        """What decides which rank takes which sample."""
        start, rule = self.leg.start, self.leg.start.rule
        return {
            "world size": start.world_size,
            "tokens" if rule.by_tokens else "batch size": rule.rows,
            "micro-batches": rule.parts,
            "balance": None if rule.cost is None else rule.cost.to_json(),
        }


def compare(first: Run, second: Run) -> Comparison:
    """Compare what two runs deliver, step by step: (source, epoch, index) of every row, in the order of the run.

    O(starts), and some 60 digests for every pair of plans that are not equal: runs of 10⁹ steps take no longer
    than short ones. Both are compared beyond what was run, as planned.
    """
    division: dict[str, Any] = {}
    found: dict[str, Any] = {}
    notes: list[str] = []
    for step, stop_step, ones, others in _walk(first, second):
        counts = [each.count(stop_step if ones.pace == others.pace else step + 1) for each in (ones, others)]
        offset = _first_difference(ones, others, min(counts), notes)
        ends = offset is None and counts[0] != counts[1]  # one of them has no more
        if ends:
            offset = min(counts)
        differing_step = None if offset is None else _step_of(ones, others, offset, ends)
        divided = ones.describe() != others.describe() and min(counts) > 0
        if divided and not division and differing_step != step:
            planned = _are_planned(ones, others, (ones.samples, others.samples))
            division = {"division_step": step, "division": tuple(_layout(ones, others)), "division_planned": planned}
        if offset is not None:
            samples = ones.samples + offset, others.samples + offset
            epochs = None if ends else _epochs(ones, others, samples)
            why = tuple(_reasons(ones, others, samples))
            planned = _are_planned(ones, others, samples)
            found = {"step": differing_step, "samples": samples, "epochs": epochs, "why": why, "planned": planned}
            break
    return Comparison(note="; ".join(dict.fromkeys(notes)) or None, **division, **found)


def _are_planned(ones: _Progress, others: _Progress, samples: tuple[int, int]) -> bool:
    return all(sample >= each.leg.reached for sample, each in zip(samples, (ones, others), strict=True))


def _walk(first: Run, second: Run) -> Iterator[tuple[int, int | None, _Progress, _Progress]]:
    """(first step, end, and how far each run is there) of the steps in which neither changes its layout or plan."""
    for run in (first, second):
        if not run.legs:
            raise StateError(f"{run.path} has no start: nothing was run, and nothing can be compared")
    legs = [run.legs[0] for run in (first, second)]
    begin = max([0, *(leg.first_step for leg in legs if leg.start.rule.by_tokens)])
    steps = {leg.first_step for run in (first, second) for leg in run.legs}
    ordered = sorted({begin, *(step for step in steps if step > begin)})
    for step, stop_step in zip(ordered, [*ordered[1:], None], strict=True):
        ones, others = _progress(first, step), _progress(second, step)
        yield step, stop_step, ones, others
        if ones.pace != others.pace and (ones.leg.start.rule.by_tokens or others.leg.start.rule.by_tokens):
            # Steps of two paces may be equal by chance, where tokens are counted.
            for each in range(step + 1, step + _STEPS_LOOKED_AT if stop_step is None else stop_step):
                yield each, each + 1, _progress(first, each), _progress(second, each)


def _progress(run: Run, step: int) -> _Progress:
    leg = run.leg_of(max(step, run.legs[0].first_step))
    return _Progress(leg, step, leg.begin(step))


def _step_of(ones: _Progress, others: _Progress, offset: int, ends: bool) -> int:
    """The step of the first sample that differs, or that only one of them has."""
    if ones.pace != others.pace:
        return ones.step
    longer = others if ends and ones.left <= offset else ones
    return longer.leg.step_of(longer.samples + offset)


def _first_difference(ones: _Progress, others: _Progress, count: int, notes: list[str]) -> int | None:
    """The first i < count for which sample ones.samples + i of one plan is not others.samples + i of the other."""
    plan, other = ones.leg.start.plan, others.leg.start.plan
    begin, same_from = ones.samples, 0
    if begin == others.samples:
        if plan == other:
            return None
        # Parts that differ once differ for good, so bisection finds the first samples that depend on others.
        differ = bisect_left(range(count + 1), True, key=lambda i: plan.parts(begin + i) != other.parts(begin + i))
        same_from = max(0, differ - 1)
    # Plans that are written differently may agree by chance, or, as a skip of what never comes, for good.
    looked_at, chunk = same_from, 256
    while looked_at < min(count, same_from + _LOOKED_AT):
        offsets = np.arange(looked_at, min(looked_at + chunk, count), dtype=np.int64)
        ids: dict[Any, int] = {}
        rows = [_content(each, start + offsets, ids) for each, start in ((plan, begin), (other, others.samples))]
        unequal = np.flatnonzero((rows[0] != rows[1]).any(axis=0))
        if unequal.size:
            return int(offsets[unequal[0]])
        looked_at, chunk = int(offsets[-1]) + 1, min(2 * chunk, 1 << 16)
    if looked_at < count:
        notes.append(
            f"the plans are written differently from sample {begin + same_from:,} on, and deliver the same in "
            f"the {looked_at - same_from:,} samples that were looked at"
        )
    return None


def _content(plan: Plan, samples: Ints, ids: dict[Any, int]) -> Ints:
    """Rows that are equal where samples are: a number for (source, data, view), the epoch, the index."""
    sources, epochs, indices = plan.locate(samples)
    numbers = [ids.setdefault((each.name, each.data, each.spec), len(ids)) for each in plan.sources]
    return np.stack([np.array(numbers, np.int64)[sources], epochs, indices])


def _epochs(ones: _Progress, others: _Progress, samples: tuple[int, int]) -> tuple[int, int] | None:
    """The epochs of two samples that differ in nothing else."""
    ids: dict[Any, int] = {}
    (source, epoch, index), (other_source, other_epoch, other_index) = (
        _content(each.leg.start.plan, np.array([sample]), ids)[:, 0].tolist()
        for each, sample in zip((ones, others), samples, strict=True)
    )
    return (epoch, other_epoch) if (source, index) == (other_source, other_index) else None


def _reasons(ones: _Progress, others: _Progress, samples: tuple[int, int]) -> Iterator[Difference]:
    plans = ones.leg.start.plan, others.leg.start.plan
    ends = [min(sample + 1, each.samples + each.left) for sample, each in zip(samples, (ones, others), strict=True)]
    first, second = (plan.parts(end) for plan, end in zip(plans, ends, strict=True))
    amended = [_amended(*each) for each in zip(plans, plans[::-1], ends, strict=True)]
    if any(amended):
        yield Difference("amendments", *amended)
    for name in first:
        if first[name] != second[name] and not (any(amended) and name in ("amendments", "mixture")):
            if name == "mixture":
                yield Difference("weights", *_tell_weights(*zip(plans, ends, strict=True)))
            else:
                yield Difference(name, *(_tell(plan, name, end) for plan, end in zip(plans, ends, strict=True)))
    if ones.left != others.left and samples[0] - ones.samples >= min(ones.left, others.left):
        yield Difference("end", ones.leg.start.stop, others.leg.start.stop)
    if (ones.samples, ones.pace) != (others.samples, others.pace):
        yield from _layout(ones, others)


def _layout(ones: _Progress, others: _Progress) -> Iterator[Difference]:
    if ones.samples != others.samples:
        yield Difference("first sample", ones.samples, others.samples)
    first, second = ones.describe(), others.describe()
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield Difference(name, first.get(name), second.get(name))


def _amended(plan: Plan, other: Plan, num_delivered: int) -> list[str]:
    """The amendments before some sample that another plan does not have."""
    ours = [(each, each.at) for each in plan.amendments if each not in other.amendments]
    return [f"{each} at sample {begin:,}" for each, begin in ours if begin < num_delivered]


def _tell(plan: Plan, name: str, num_delivered: int) -> Any:
    """A part of a plan, as one can read it."""
    by_source: dict[str, Any] = {
        "data": {source.name: source.data for source in plan.sources},
        "view": {source.name: str(source.spec) for source in plan.sources},
    }
    if name in by_source:
        return by_source[name].get("", by_source[name])  # the only source of a run over one view
    return plan.parts(num_delivered)[name]


def _tell_weights(*places: tuple[Plan, int]) -> list[str]:
    """The weights with which the last sample before each place was drawn; where they are equal, those of all stages."""
    lines, told = [], []
    for plan, num_delivered in places:
        stages = [
            (first, "one view" if list(stage.weights) == [""] else str(stage)) for first, stage in plan.shares.stages()
        ]
        by = " (by tokens)" if plan.by == "tokens" else ""
        lines.append(", then ".join(f"{stage} from sample {first:,} on" for first, stage in stages) + by)
        told.append(next(stage for first, stage in reversed(stages) if first < max(1, num_delivered)) + by)
    return lines if told[0] == told[1] else told
