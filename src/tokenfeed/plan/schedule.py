"""`Schedule`: which source the k-th sample of a run is drawn from, and which of that source's own samples it is.

Stages are cut into *segments*. A segment repeats one table of sources from its start to its stop. A stage is one
segment of whole periods, and where its length is no multiple of the period, a second segment for the tail, whose counts
are rounded. Rounding leaves a source owed or ahead at the end of a stage (to 2**-32 of a sample), and the tables of the
next stage begin with that, so errors do not add up, however many stages there are.

    Stage({"web": 0.7, "code": 0.3}, 25), Stage({"web": 0.5, "code": 0.5}):

    segment     table                  counts   samples before it   owed before it
    [0, 20)     w c w w w c w w c w    7 3      0 0                 0 0
    [20, 25)    w c w w w              4 1      14 6                0 0        due 3.5 and 1.5: one is rounded up
    [25, …)     c w                    1 1      18 7                −½ ½       so code comes first

k = 17 is place 7 of period 1: a `w` with rank 5, web's own number 0 + 1·7 + 5 = 12.

A run stays within one sample of `targets` at every k, over any number of stages (1 − 1/(2n − 2) of n sources in the
first). A table depends on stages before it and never on what comes later, so that stages can be appended. The price:
where weights jump while several sources are owed at once, no rule can keep all within one sample; then they are further
away for a moment (1.5 samples in the worst of 10,000 random schedules), and it does not add up.

Targets are by whole counts of a period of at most 2**20, which differ from the weights asked for by `rounding`.
"""

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError, StateError, quantity
from tokenfeed.kernels import mixture as kernels
from tokenfeed.plan.rounding import ONE, apportion, due, normalise, rationalise, scale, some
from tokenfeed.plan.segments import MOST_PLACES, MOST_SOURCES, Many, Segment, pad, stack
from tokenfeed.types import Bools, Floats, Ints

__all__ = ["Change", "Schedule", "Stage", "fingerprint"]

Before = tuple[Ints, Ints]
"""Samples that each source had, and that it was owed, before some point."""
_MANY = 16  # changes that are computed together, or segments that are looked up together
_MOST_OWED = 64 * ONE  # far above what any schedule comes to, and far below what tables can take
END = (1 << 63) - 1  # where stages without end are cut off: no run gets there


def fingerprint(data: bytes) -> str:
    """16 hex digits that tell pasts apart: 1 µs, for there may be thousands."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@dataclass(frozen=True)
class Stage:
    """Weights that hold for a number of samples. They need not add up to 1; a source of weight 0 is not drawn."""

    weights: Mapping[str, float]
    samples: int | None = None
    """Length of the stage. Only the last stage may leave it out, and then has no end."""
    asked: Mapping[str, float] | None = field(default=None, compare=False, repr=False)
    """Weights as they were given, where those of samples follow from them: by tokens."""

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping):
            raise ArgumentError(f"weights of a stage are a dict of source name to weight, not {self.weights!r}")
        given = self.weights.values()
        if not all(type(each) is float and 0 <= each < math.inf for each in given) or not any(given):
            normalise(list(given), list(self.weights))  # says what is wrong, if anything is
        object.__setattr__(self, "weights", {name: float(weight) for name, weight in self.weights.items()})
        if self.samples is not None and (type(self.samples) is not int or not 0 < self.samples < END):
            raise ArgumentError(f"a stage lasts a positive whole number of samples, not {self.samples!r}")
        if self.asked is not None:
            object.__setattr__(self, "asked", Stage(self.asked).weights)

    def spread(self, weights: Mapping[str, float]) -> "Stage":
        """The same stage with the weights of samples that its own come to."""
        return replace(self, weights=weights, asked=None if weights == self.weights else self.weights)

    def to_json(self) -> list[Any]:
        fields = [dict(self.weights), self.samples, False]
        return fields if self.asked is None else [*fields, dict(self.asked)]

    @classmethod
    def from_json(cls, value: Any) -> "Stage":
        weights, samples, constant, *asked = value
        if constant is not False or len(asked) > 1:
            raise ValueError(f"{str(value)[:80]} is no stage")
        return cls(weights, samples, *asked)

    def __str__(self) -> str:
        """`web 0.7, code 0.3`, as the weights were given."""
        return ", ".join(f"{name} {weight:g}" for name, weight in (self.asked or self.weights).items())


@dataclass(frozen=True)
class Change:
    """Stages that replace everything a schedule would have done from sample `at` on."""

    at: int
    stages: tuple[Stage, ...]
    counts: tuple[int, ...] | None = field(default=None, compare=False)
    """Samples that each source had before, where that is known: finding them costs the time of delivering them."""

    @property
    def is_simple(self) -> bool:
        """Whether it is of weights that hold for good."""
        return len(self.stages) == 1 and self.stages[0].samples is None


class Schedule:
    """k → (source, its own sample number) and back, O(1) each. A source's numbers run 0, 1, 2, … through all stages.

    Making one costs about 60 µs a segment, 0.5 ms with 1,000 sources. The table of a segment is built when it is first
    needed, at 0.1 µs and 12 bytes a place (12 MiB at most), and the six tables used last are kept. Sources are
    numbered as in `names`.
    """

    def __init__(self, stages: Sequence[Stage], names: Sequence[str], *, changes: Sequence[Change] = ()) -> None:
        """`changes` in the order in which they were made; see `then`."""
        self._first_names = tuple(names)
        self.chapters: tuple[Change, ...] = (Change(0, tuple(stages)), *changes)
        self.names = _collect_names(self._first_names, self.chapters)
        nothing = np.zeros(len(names), np.int64)
        self._segments: list[Segment] = []
        self._end: Before = nothing, nothing
        self._pasts: list[tuple[str, Bools]] = []
        self._many: Many | None = None
        """All segments together, once samples of several were looked up."""
        self.total: int | None = 0
        simple = len(self.chapters)
        while simple and self.chapters[simple - 1].is_simple:
            simple -= 1
        if len(self.chapters) - simple < _MANY:
            simple = len(self.chapters)
        for chapter in self.chapters[: simple + 1]:
            self._append(chapter)
        if self.chapters[simple + 1 :]:
            self._append_many(self.chapters[simple + 1 :])

    def _append_many(self, changes: Sequence[Change]) -> None:
        """As `_append` for each, where every change is of weights for good: some µs each where counts are known."""
        first = self._segments[-1].start
        by_start = {change.at: change for change in changes}
        if first in by_start:
            self._append(by_start.pop(first))
        last = self._segments.pop()
        changes = list(by_start.values())
        weights = [change.stages[0].weights for change in changes]
        asked = scale(
            np.array([[each.get(name, 0.0) for name in self.names] for each in weights]).reshape(-1, len(self.names))
        )
        starts = np.array([last.start, *by_start], np.int64)
        rates = np.concatenate([last.rates[None], rationalise(asked)])
        bases, carry = np.empty_like(rates), np.empty_like(rates)
        bases[0], carry[0] = last.bases, last.carry
        known = next((place for place, each in enumerate(changes) if each.counts is None), len(changes))
        for row, change in zip(bases[1:], changes[:known], strict=False):
            counts = change.counts or ()
            if len(counts) > row.size:
                raise StateError(f"the change of weights at {change.at} tells counts of {len(counts)} sources")
            row[:] = (*counts, *[0] * (row.size - len(counts)))
        _carry_on(starts[: known + 1], rates, bases, carry)
        kernels.follow(starts[known:], rates[known:], bases[known:], carry[known:])
        stops = [*starts[1:].tolist(), END]
        rows = zip(starts.tolist(), stops, rates, rates, bases, carry, [last.shares, *asked], strict=True)
        self._segments += [Segment(*row) for row in rows]
        self._end = bases[-1], carry[-1]

    def _append(self, chapter: Change) -> None:
        """Append the segments of a chapter, instead of what was planned from its start on."""
        start = chapter.at
        if self.total is not None and self.total < start:
            raise ArgumentError(f"a change at sample {start:,} leaves a gap: the stages before end at {self.total:,}")
        while self._segments and self._segments[-1].stop > start:
            last = self._segments.pop()
            self._end = last.bases, last.carry
            if last.start < start:
                self._segments.append(last := replace(last, stop=start))
                self._end = last.count(start), last.owed(start)
        del self._pasts[len(self._segments) :]
        state = pad(self._end[0], len(self.names)), pad(self._end[1], len(self.names))
        for stage in chapter.stages:
            shares = scale(np.array([stage.weights.get(name, 0.0) for name in self.names]))
            (rates,) = rationalise(shares[None])
            period, length = int(rates.sum()), stage.samples
            stop = min(END if length is None else start + length, END)
            whole = END if length is None else start + length // period * period
            while start < stop:
                counts = rates
                if start == whole:
                    counts, drawn, places = np.zeros_like(rates), np.flatnonzero(rates), stop - start
                    counts[drawn] = apportion((state[1] + due(rates, period, places))[drawn], places)
                end = whole if start < whole else stop
                segment = Segment(start, end, rates, counts, *state, shares)
                self._segments.append(segment)
                start = end
                if end < END:
                    state = segment.count(end), segment.owed(end)
        self.total, self._end = None if start == END else start, state

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.start for segment in self._segments]

    @cached_property
    def _bases(self) -> Ints:
        return stack([*(segment.bases for segment in self._segments), self._end[0]], len(self.names))

    @cached_property
    def _are_many(self) -> bool:
        """Whether segments are looked up together: the last alone is so long that it needs no others."""
        if len(self._segments) <= _MANY or len(self.names) > MOST_SOURCES:
            return False
        return sum(each.places for each in self._segments[:-1]) <= MOST_PLACES

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """(sources, numbers) of samples of the run: 10 ns each, and 5 µs for every segment that they lie in."""
        samples = np.asarray(samples, np.int64)
        sources, numbers = np.empty_like(samples), np.empty_like(samples)
        if samples.size:
            first = int(samples[0])
            self._check(first)
            many = self._many
            if many is not None and first < many.stop and many.locate(samples, sources, numbers):
                return sources, numbers
            # Nearly always all are in one segment, and nothing else need be looked at.
            if self._segments[self._before(first + 1)].locate(samples, sources, numbers) < samples.size:
                self._check(int(samples.min()))
                self._check(int(samples.max()))
                if many is None and self._are_many:
                    self._many = Many(self._segments[:-1], len(self.names))
                    return self.locate(samples)
                for j in self._segments_of(np.array(self._starts, np.int64), samples):
                    self._segments[j].locate(samples, sources, numbers)
        return sources, numbers

    def find(self, source: int, numbers: Ints) -> Ints:
        """The k at which a source's own samples are delivered; −1 for those that never are, or not below 2**63 − 1."""
        if not 0 <= source < len(self.names):
            raise ArgumentError(f"there is no source {source}; the schedule has {len(self.names)}: {some(self.names)}")
        numbers = np.asarray(numbers, np.int64)
        samples = np.full_like(numbers, -1)
        limits = self._bases[:, source] if self.total is not None else self._bases[:-1, source]
        for j in self._segments_of(limits, numbers):
            if not 0 <= j < len(self._segments):
                continue
            segment = self._segments[j]
            if source < segment.counts.size and segment.counts[source]:
                table, i = segment.table, int(np.searchsorted(segment.active, source))
                positions = table.positions[table.offsets[i] : table.offsets[i + 1]]
                limit = int(limits[j + 1]) if j + 1 < limits.size else END
                args = segment.start, segment.stop, int(limits[j]), limit, positions, segment.size
                kernels.invert(numbers, *args, samples)
        return samples

    def counts(self, num_samples: int) -> Ints:
        """How many of the first `num_samples` samples come from each source. O(sources)."""
        place = bisect_left(self._starts, num_samples)
        if place < len(self._segments) and self._starts[place] == num_samples:
            return pad(self._segments[place].bases, len(self.names))
        return pad(self._segments[self._before(num_samples)].count(num_samples), len(self.names))

    def targets(self, num_samples: int) -> Floats:
        """Samples due from each source after `num_samples`, through all stages; `counts` is within one of them."""
        segment = self._segments[self._before(num_samples)]
        return pad(segment.count(num_samples) + segment.owed(num_samples) / ONE, len(self.names))

    def drawn_from(self, sample: int) -> list[str]:
        """Names of the sources that are drawn just before a sample, or later."""
        first = max(bisect_left(self._starts, sample) - 1, 0)
        rates = stack((each.rates for each in self._segments[first:]), len(self.names))
        return [self.names[i] for i in np.flatnonzero(rates.any(axis=0)).tolist()]

    def stages(self) -> list[tuple[int, Stage]]:
        """(first sample, stage) of all stages, as far as no later change replaces them."""
        found: list[tuple[int, Stage]] = []
        for chapter in self.chapters:
            while found and found[-1][0] >= chapter.at:
                found.pop()
            lengths = accumulate((stage.samples or 0 for stage in chapter.stages), initial=chapter.at)
            found += zip(lengths, chapter.stages, strict=False)
        return found

    @property
    def rounding(self) -> float:
        """The largest difference between a normalised weight and the share that its source is drawn with."""
        return max(float(np.abs(each.rates / each.period - each.shares).max()) for each in self._segments)

    def then(self, at: int, *stages: Stage | Mapping[str, float]) -> "Schedule":
        """The same for all k < at, then other stages; weights alone are a stage without end. Every source goes on.

        A source that a stage does not name weighs nothing; new ones are numbered after those there were. What a source
        was owed, it still is. `at` may not lie before an earlier change.
        """
        change = Change(at, tuple(stage if isinstance(stage, Stage) else Stage(stage) for stage in stages))
        again = copy(self)  # what is known of k < at need not be computed again
        again.chapters = (*self.chapters, change)
        again.names = _collect_names(self.names, again.chapters[-2:])
        again._segments, again._pasts, again._many = list(self._segments), list(self._pasts), None
        for name in ("_starts", "_bases", "_are_many"):
            vars(again).pop(name, None)
        again._append(change)
        return again

    def follow(self, changes: Sequence[Change]) -> "Schedule":
        """The same with changes, in their order: as `then` for each, and faster for many."""
        first, *others = self.chapters
        return Schedule(first.stages, self._first_names, changes=[*others, *changes])

    def digest(self, num_samples: int) -> str:
        """A checksum of what determines the first `num_samples` samples, and of nothing else: 16 hex digits."""
        return self.past(num_samples)[0]

    def past(self, num_samples: int) -> tuple[str, Bools, int]:
        """(digest, sources that it covers, number of samples up to which both stay what they are).

        It covers every segment that begins before: its start, its table, and the names of the sources in it. Where the
        last one ends, and what follows, does not matter. O(1); the first time O(segments).
        """
        if num_samples == 0:
            return fingerprint(b""), np.zeros(len(self.names), np.bool_), 0
        last = self._before(num_samples)
        named: dict[bytes, tuple[str, Bools]] = {}
        for segment in self._segments[len(self._pasts) : last + 1]:
            digest, drawn = self._pasts[-1] if self._pasts else ("", np.zeros(0, np.bool_))
            active = segment.rates > 0
            which = active.tobytes()
            if which not in named:
                named[which] = json.dumps([self.names[i] for i in segment.active.tolist()]), active
            names, active = named[which]
            tables: Iterable[Ints] = (segment.counts, segment.rates, segment.phases)
            if not active.all():
                tables = [each[active] for each in tables]
            told = f'["{digest}", {segment.start}, {names}]'  # JSON, for a tenth of the time
            digest = fingerprint(b"".join([told.encode(), *(each.tobytes() for each in tables)]))
            if drawn is not active:
                drawn = pad(drawn, active.size) | active
                drawn = active if (drawn == active).all() else drawn
            self._pasts.append((digest, drawn))
        digest, drawn = self._pasts[last]
        return digest, pad(drawn, len(self.names)), self._segments[last].stop

    def _segments_of(self, limits: Ints, numbers: Ints) -> list[int]:
        """The segments that the numbers lie in, where segment j begins with limits[j]."""
        if not numbers.size:
            return []
        ends = np.searchsorted(limits, [numbers.min(), numbers.max()], side="right") - 1
        if ends[0] == ends[1]:
            return [int(ends[0])]
        found: list[int] = np.unique(np.searchsorted(limits, numbers, side="right") - 1).tolist()
        return found

    def _before(self, num_samples: int) -> int:
        """The segment that sample num_samples − 1 lies in; for none at all, the first."""
        if num_samples > 0:
            self._check(num_samples - 1)
        elif num_samples < 0:
            raise ArgumentError(f"a number of samples cannot be negative: {num_samples}")
        return max(bisect_left(self._starts, num_samples) - 1, 0)

    def _check(self, sample: int) -> None:
        if not 0 <= sample < (END if self.total is None else self.total):
            end = "has no end" if self.total is None else f"ends after {self.total:,}; give its last stage no length"
            raise SampleIndexError(f"sample {sample} is outside the schedule, which begins with 0 and {end}")

    def to_json(self) -> dict[str, Any]:
        """Stages and changes as they were given."""
        stages = [[each.at, [stage.to_json() for stage in each.stages]] for each in self.chapters]
        return {"names": list(self._first_names), "chapters": stages}

    @classmethod
    def from_json(cls, value: Any) -> "Schedule":
        try:
            first, *changes = [Change(at, tuple(map(Stage.from_json, stages))) for at, stages in value["chapters"]]
            return cls(first.stages, value["names"], changes=changes)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise StateError(f"{str(value)[:200]} describes no schedule ({error})") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_many": None}  # a cache, of up to 24 MiB

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

    def __repr__(self) -> str:
        length = "no end" if self.total is None else f"{self.total:,} samples"
        changes = quantity(len(self.chapters) - 1, "change")
        stages = quantity(sum(len(chapter.stages) for chapter in self.chapters), "stage")
        return f"Schedule({quantity(len(self.names), 'source')}, {stages}, {length}, {changes})"


def _collect_names(first: Sequence[str], chapters: Sequence[Change]) -> tuple[str, ...]:
    """The names of all sources: the first ones, and those that changes add. Raises where stages cannot follow."""
    names, earliest = dict.fromkeys(first), 0
    for number, chapter in enumerate(chapters):
        where = f"the change at sample {chapter.at}: " if number else ""
        if type(chapter.at) is not int or not earliest <= chapter.at < END:
            raise ArgumentError(f"{where}at is a whole number from {earliest:,} on, where the change before it begins")
        earliest = chapter.at
        if not chapter.stages:
            raise ArgumentError(f"{where}there are no stages")
        new = {name: None for stage in chapter.stages for name in stage.weights if name not in names}
        if new and not number:
            raise ArgumentError(f"a stage draws from {some(list(new))}; the sources are {some(list(names))}")
        names |= new
        is_first = not number and (not names or len(first) > len(names))
        if is_first or not all(isinstance(name, str) for name in (new if number else names)):
            raise ArgumentError(f"{where}sources need names, each its own: {some(list(first))}")
        for place, stage in enumerate(chapter.stages[:-1]):
            if stage.samples is None:
                raise ArgumentError(
                    f"{where}stage {place} has no end, so stage {place + 1} never begins; give it samples"
                )
        length = chapter.at + sum(stage.samples or 0 for stage in chapter.stages)
        if length >= END:
            raise ArgumentError(f"{where}the stages have {length:,} samples; the most is 2**63 - 2")
    return tuple(names)


def _carry_on(starts: Ints, rates: Ints, bases: Ints, carry: Ints) -> None:
    """Set what sources are owed at each start, after the first, from what they have had there.

    Raises where no schedule can have given them that.
    """
    if starts.size < 2:
        return
    lengths, drawn = np.diff(starts), np.diff(bases[: starts.size], axis=0)
    periods = rates[: starts.size - 1].sum(axis=1)
    places = lengths % periods
    used = rates[: starts.size - 1]
    whole, rest = np.divmod(used * places[:, None], periods[:, None])
    owed = whole * ONE + rest * ONE // periods[:, None]
    owed[np.arange(len(owed)), used.argmax(axis=1)] += places * ONE - owed.sum(axis=1)
    owed -= (drawn - used * (lengths // periods)[:, None]) * ONE
    carry[1 : starts.size] = carry[0] + np.cumsum(owed, axis=0)
    if (drawn.sum(axis=1) != lengths).any() or drawn.min() < 0 or np.abs(carry[: starts.size]).max() > _MOST_OWED:
        raise StateError("the counts of sources at a change of weights cannot be: the plan is damaged")
