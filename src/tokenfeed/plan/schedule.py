"""`Schedule`: which source the k-th sample of a run is drawn from, and which of that source's own samples it is.

Stages are cut into *segments*. A segment repeats one period, a table of sources with whole counts, from its start to
its stop. A stage is one segment of whole periods, and where its length is no multiple of the period, a second segment
for the tail, with a period of its own. Rounding leaves a source owed or ahead at the end of a segment (to 2**-32 of a
sample); the next rounding takes that into account, so errors do not add up from stage to stage.

    Stage({"web": 0.7, "code": 0.3}, 25), Stage({"web": 0.5, "code": 0.5}):

    segment     period                 counts   samples before it
    [0, 20)     w c w w w c w w c w    7 3      0 0
    [20, 25)    w w c w w              4 1      14 6    owed 3.5 and 1.5: one is rounded up, the other down
    [25, …)     w c                    1 1      18 7    ahead and owed half a sample, should there be another tail

k = 17 is place 7 of period 1: a `w` with rank 5, web's own number 0 + 1·7 + 5 = 12.

How close a run stays to its weights, where n sources are drawn:

* to `targets`, straight lines between the whole counts at the ends of segments: within 1 − 1/(2n − 2) at every k;
* to the cumulated weights at the end of a stage: within 1, and 1.04 in the worst of some 1,000 random schedules whose
  sources came and went (a tail is rounded without knowing what comes later, so that stages can be appended);
* except where a source is owed less than one sample of a stage (or period), and gets one; and where no period up to
  2**20 holds the weights of a longer stage: they are then off by at most 2**-20. `report` shows by how much.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError, StateError
from tokenfeed.kernels import mixture as kernels
from tokenfeed.kernels.checksum import checksum
from tokenfeed.plan.rounding import LONGEST_PERIOD, cut_stage, divide, normalise, rationalise, some
from tokenfeed.plan.segments import Segment
from tokenfeed.types import Bools, Floats, Ints

__all__ = ["Change", "Schedule", "Share", "Stage", "rationalise"]

RAMP_STEPS = 256
END = (1 << 63) - 1  # where stages without end are cut off: no run gets there


@dataclass(frozen=True)
class Stage:
    """Weights that hold for a number of samples. They need not add up to 1; a source of weight 0 is not drawn."""

    weights: Mapping[str, float]
    samples: int | None = None
    """Length of the stage. Only the last stage may leave it out, and then has no end."""
    ramp: bool = False
    """Whether weights change linearly from those of the stage before to these: in min(256, samples) steps, each with
    the weights at its middle."""

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping):
            raise ArgumentError(f"weights of a stage are a dict of source name to weight, not {self.weights!r}")
        object.__setattr__(self, "weights", dict(self.weights))
        normalise(list(self.weights.values()), list(self.weights))
        if self.samples is not None and (type(self.samples) is not int or not 0 < self.samples < END):
            raise ArgumentError(f"a stage lasts a positive whole number of samples, not {self.samples!r}")
        if self.ramp and self.samples is None:
            raise ArgumentError("a ramp needs to know over how many samples: Stage(weights, samples, ramp=True)")

    def to_json(self, names: Sequence[str]) -> list[Any]:
        return [[float(self.weights[name]) for name in names], self.samples, self.ramp]

    @classmethod
    def from_json(cls, value: Any, names: Sequence[str]) -> "Stage":
        weights, samples, ramp = value
        return cls(dict(zip(names, weights, strict=True)), samples, ramp)


@dataclass(frozen=True)
class Change:
    """Stages that replace everything a schedule would have done from sample `at` on."""

    at: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one source in a run. Weights are normalised, one for each stage that begins within the budget."""

    name: str
    samples: int
    asked: tuple[float, ...]
    rationalised: tuple[float, ...]
    """Count / period; for a ramp, of its last step."""


class Schedule:
    """k → (source, its own sample number) and back, O(1) each. A source's numbers run 0, 1, 2, … through all stages.

    Making one costs about 60 µs a segment, 0.5 ms with 1,000 sources. The table of a period is built when it is first
    needed, at 0.1 µs and 12 bytes a place (12 MiB at most), and the 64 MiB of tables used last are kept. Sources are
    numbered as in `names`.
    """

    def __init__(self, stages: Sequence[Stage], names: Sequence[str], *, changes: Sequence[Change] = ()) -> None:
        """`changes` in the order in which they were made; see `then`."""
        self.chapters = (Change(0, tuple(stages)), *changes)
        self._first_names = tuple(names)
        self.names = _collect_names(self._first_names, self.chapters)
        self._stages: list[tuple[int, Floats, Floats]] = []  # start, weights asked, weights rationalised
        self._segments: list[Segment] = []
        realised = np.zeros(len(self.names), np.int64)
        stop = 0
        for chapter, cut in zip(self.chapters, [*(each.at for each in changes), END], strict=True):
            stop = self._append(chapter, cut, realised)
            if stop < cut < END:
                raise ArgumentError(f"a change at sample {cut:,} leaves a gap: the schedule before it ends at {stop:,}")
        self.total = None if stop == END else stop
        self._starts = [segment.start for segment in self._segments]
        self._bases = np.stack([*(segment.bases for segment in self._segments), realised])
        self._digests: dict[tuple[int, int], str] = {}

    def _append(self, chapter: Change, cut: int, realised: Ints) -> int:
        """Append the segments of a chapter that begin before `cut`. Returns where they end; `realised` follows."""
        start = chapter.at
        carry = np.zeros_like(realised)  # a change takes the realised counts as they are: nothing is owed
        before = self._segments[-1].shares if self._segments else None
        for stage in chapter.stages:
            if start >= cut:
                break
            asked = normalise([stage.weights.get(name, 0.0) for name in self.names], self.names)
            self._stages.append((start, asked, asked))
            for length, shares in _steps(stage, before, asked):
                if start >= cut:
                    break
                counts, period = divide(shares, min(length or END, LONGEST_PERIOD), lift=not stage.ramp)
                self._stages[-1] = (self._stages[-1][0], asked, counts / period)
                pieces = (
                    [(counts, END)] if length is None else cut_stage(shares, counts, length, carry, lift=not stage.ramp)
                )
                for places, size in pieces:
                    stop = min(start + size, cut)
                    if start < stop:
                        self._segments.append(Segment.of(start, stop, places, realised.copy(), shares))
                        if stop < END:
                            realised[:] = self._segments[-1].count(stop)
                        start = stop
            before = asked
        return start

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """(sources, numbers) of samples of the run: 10 ns each, and 5 µs for every segment that they lie in."""
        samples = np.asarray(samples, np.int64)
        sources, numbers = np.empty_like(samples), np.empty_like(samples)
        if samples.size:
            first = int(samples[0])
            self._check(first)
            # Nearly always all are in one segment, and nothing else need be looked at.
            if self._segments[self._before(first + 1)].locate(samples, sources, numbers) < samples.size:
                self._check(int(samples.min()))
                self._check(int(samples.max()))
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
            i = int(np.searchsorted(segment.active, source))
            if i < segment.active.size and segment.active[i] == source:
                table = segment.table
                positions = table.positions[table.offsets[i] : table.offsets[i + 1]]
                limit = int(limits[j + 1]) if j + 1 < limits.size else END
                args = segment.start, segment.stop, int(limits[j]), limit, positions, segment.period
                kernels.invert(numbers, *args, samples)
        return samples

    def counts(self, num_samples: int) -> Ints:
        """How many of the first `num_samples` samples come from each source. O(sources)."""
        return self._segments[self._before(num_samples)].count(num_samples)

    def targets(self, num_samples: int) -> Floats:
        """Samples due from each source after `num_samples`, by rationalised weights; `counts` is within one of them."""
        segment = self._segments[self._before(num_samples)]
        periods, places = divmod(num_samples - segment.start, segment.period)
        targets = segment.bases.astype(np.float64)
        targets[segment.active] += segment.counts * periods + segment.counts * places / segment.period
        return targets

    def report(self, num_samples: int) -> list[Share]:
        """The share of each source in a run of `num_samples` samples, by the weights asked for and as rationalised."""
        counts = self.counts(num_samples).tolist()
        begun = [(asked, got) for start, asked, got in self._stages if start < max(num_samples, 1)]
        return [
            Share(name, counts[i], tuple(float(a[i]) for a, _ in begun), tuple(float(g[i]) for _, g in begun))
            for i, name in enumerate(self.names)
        ]

    def then(self, at: int, *stages: Stage | Mapping[str, float]) -> "Schedule":
        """The same for all k < at, then other stages; weights alone are a stage without end. Every source goes on.

        The stages name every source there was (weight 0 to stop drawing it), and may name new ones, which are numbered
        after them. Samples that the old stages still owed are forgotten. `at` may not lie before an earlier change. A
        ramp begins at the weights that k = at − 1 was drawn with.
        """
        given = tuple(stage if isinstance(stage, Stage) else Stage(stage) for stage in stages)
        first, *changes = self.chapters
        return Schedule(first.stages, self._first_names, changes=[*changes, Change(at, given)])

    def digest(self, num_samples: int) -> str:
        """A checksum of what determines the first `num_samples` samples, and of nothing else: 16 hex digits.

        It covers every segment that begins before: its start, its counts in the order of the sources, and the names of
        those drawn. Where the last one ends, and what follows, does not matter. O(sources); the first time O(segments).
        """
        if num_samples == 0:
            return checksum(b"")
        last = self._before(num_samples)
        known = last
        while known > 0 and (known - 1, -1) not in self._digests:
            known -= 1
        before = self._digests[known - 1, -1] if known else ""
        for j in range(known, last):
            before = self._digests[j, -1] = self._extend(before, j, self._segments[j].stop)
        drawn = int(np.count_nonzero(self._drawn(last, num_samples)))
        if (last, drawn) not in self._digests:  # sources drawn only ever become more, so their number tells which
            self._digests[last, drawn] = self._extend(before, last, num_samples)
        return self._digests[last, drawn]

    def steady_until(self, num_samples: int) -> int | None:
        """The number of samples up to which `digest` stays what it is; None where it may change at the next sample."""
        segment = self._segments[self._before(num_samples)]
        return segment.stop if num_samples - segment.start >= segment.period else None

    def _drawn(self, j: int, stop: int) -> Bools:
        segment = self._segments[j]
        if stop - segment.start >= segment.period:
            return np.ones(segment.active.size, np.bool_)
        return np.asarray((segment.count(stop) > segment.bases)[segment.active])

    def _extend(self, before: str, j: int, stop: int) -> str:
        segment = self._segments[j]
        drawn = zip(segment.active.tolist(), self._drawn(j, stop).tolist(), strict=True)
        names = [self.names[i] if seen else None for i, seen in drawn]
        return checksum(json.dumps([before, segment.start, segment.counts.tolist(), names]).encode())

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

    def to_json(self) -> list[dict[str, Any]]:
        """Stages and changes as they were given. Weights are lists, in the order of the names known by then."""
        names: list[str] = []
        chapters = []
        for number, chapter in enumerate(self.chapters):
            known = chapter.stages[0].weights if number else self._first_names
            new = [name for name in known if name not in names]
            names += new
            stages = [stage.to_json(names) for stage in chapter.stages]
            chapters.append({"at": chapter.at, "names": new, "stages": stages})
        return chapters

    @classmethod
    def from_json(cls, value: Any) -> "Schedule":
        try:
            names: list[str] = []
            chapters = []
            for chapter in value:
                names = [*names, *chapter["names"]]
                stages = tuple(Stage.from_json(each, names) for each in chapter["stages"])
                chapters.append(Change(chapter["at"], stages))
            return cls(chapters[0].stages, value[0]["names"], changes=chapters[1:])
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise StateError(f"{str(value)[:200]} describes no schedule ({error})") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

    def __repr__(self) -> str:
        length = "no end" if self.total is None else f"{self.total:,} samples"
        changes = len(self.chapters) - 1
        return f"Schedule({len(self.names)} sources, {len(self._stages)} stages, {length}, {changes} changes)"


def _steps(stage: Stage, before: Floats | None, asked: Floats) -> Iterator[tuple[int | None, Floats]]:
    """The constant pieces of a stage, as (samples, normalised weights)."""
    if not stage.ramp or stage.samples is None:
        yield stage.samples, asked
        return
    if before is None:
        raise ArgumentError("the first stage cannot be a ramp: there are no weights before it to start from")
    steps = min(RAMP_STEPS, stage.samples)
    for step in range(steps):
        way = (2 * step + 1) / (2 * steps)
        length = stage.samples * (step + 1) // steps - stage.samples * step // steps
        yield length, before * (1 - way) + asked * way


def _collect_names(first: Sequence[str], chapters: Sequence[Change]) -> tuple[str, ...]:
    """The names of all sources, if every stage of every chapter gives each source there is by then a weight."""
    names = list(first)
    earliest = 0
    for number, chapter in enumerate(chapters):
        where = f"the change at sample {chapter.at}: " if number else ""
        if type(chapter.at) is not int or not earliest <= chapter.at < END:
            raise ArgumentError(f"{where}at is a whole number from {earliest:,} on, where the change before it begins")
        earliest = chapter.at
        if not chapter.stages:
            raise ArgumentError(f"{where}there are no stages")
        if number:
            names += [name for name in chapter.stages[0].weights if name not in names]
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"{where}sources need names, each its own: {some(names)}")
        known = set(names)
        length = chapter.at
        for place, stage in enumerate(chapter.stages):
            missing = [name for name in names if name not in stage.weights]
            unknown = [name for name in stage.weights if name not in known]
            if missing or unknown:
                raise ArgumentError(
                    f"{where}stage {place} has no weight for {some(missing)} and one for {some(unknown)}, which "
                    "is no source; give every source a weight, 0 where it is not drawn"
                )
            if stage.samples is None and place + 1 < len(chapter.stages):
                raise ArgumentError(
                    f"{where}stage {place} has no end, so stage {place + 1} never begins; give it samples"
                )
            length += stage.samples or 0
        if length >= END:
            raise ArgumentError(f"{where}the stages have {length:,} samples; the most is 2**63 - 2")
    return tuple(names)
