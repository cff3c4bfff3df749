"""`Shares`: which source the k-th sample of a run is drawn from, and which of that source's own samples it is.

A *stage* has weights that hold from some sample on. Its sources are the leaves of a binary tree; every node divides its
samples between its two sides as evenly as whole samples allow (`kernels/shares.py`). Shares are exact for weights of
up to 2**49 in sum, and nothing is built but the tree, so the first sample is found at once.

Where weights change, a source may have had a part of a sample more or less than its share. The nodes of the next stage
begin with that, so errors do not add up: a source stays within two samples of its target while weights hold, and within
six after any changes.

    Stage({"web": 3, "code": 1}, 2), Stage({"web": 1, "code": 1}):

    k                 0   1   2    3   4    5
    stage             3 : 1   1 : 1
    drawn from        web web code web code web
    web, its target   ¾   1½  2    2½  3    3½         it has had 1 2 2 3 3 4
"""

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, SampleIndexError, StateError, quantity
from tokenfeed.kernels import shares as kernels
from tokenfeed.types import Bools, Floats, Ints

__all__ = ["Change", "Shares", "Stage", "fingerprint", "some"]

END = 1 << 62
"""Where stages without end are cut off: no run gets there."""
_MOST = 1 << 49
"""Whole weights are exact up to this sum."""
_ONE = 1 << 32
"""One sample, in the units of what a source is owed."""


def fingerprint(data: bytes) -> str:
    """16 hex digits that tell pasts apart: 1 µs, for there may be thousands."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def some(items: Sequence[Any], tell: Callable[[Any], str] = repr) -> str:
    """`'a', 'b', 'c' and 997 more`; `nothing`."""
    told = ", ".join(map(tell, items[:5]))
    return f"{told} and {len(items) - 5} more" if len(items) > 5 else told or "nothing"


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
        weights = {name: _weight(name, weight) for name, weight in self.weights.items()}
        if not any(weights.values()):
            raise ArgumentError(f"no source is drawn: the weights of {some(list(weights))} are 0; one must be above 0")
        object.__setattr__(self, "weights", weights)
        if self.samples is not None and (type(self.samples) is not int or not 0 < self.samples < END):
            raise ArgumentError(f"a stage lasts a positive whole number of samples, not {self.samples!r}")
        if self.asked is not None:
            object.__setattr__(self, "asked", Stage(self.asked).weights)

    def spread(self, weights: Mapping[str, float]) -> "Stage":
        """The same stage with the weights of samples that its own come to."""
        return replace(self, weights=weights, asked=None if weights == self.weights else self.weights)

    def to_json(self) -> list[Any]:
        fields = [dict(self.weights), self.samples]
        return fields if self.asked is None else [*fields, dict(self.asked)]

    @classmethod
    def from_json(cls, value: Any) -> "Stage":
        weights, samples, *asked = value
        if len(asked) > 1:
            raise ValueError(f"{str(value)[:80]} is no stage")
        return cls(weights, samples, *asked)

    def __str__(self) -> str:
        """`web 0.7, code 0.3`, as the weights were given."""
        return ", ".join(f"{name} {weight:g}" for name, weight in (self.asked or self.weights).items())


def _weight(name: str, value: Any) -> float:
    try:
        weight = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise ArgumentError(f"the weight of {name!r} is {value!r}; it must be a finite number, 0 or more")
    return weight


@dataclass(frozen=True)
class Change:
    """Stages that replace everything that was planned from sample `at` on."""

    at: int
    stages: tuple[Stage, ...]


class _Tree:
    """One stage: the sources that it draws from as leaves of a tree, and what all had and were owed before it."""

    def __init__(self, start: int, weights: Sequence[float], before: list[int], owed: list[int]) -> None:
        """`weights`, `before` and `owed` are by source; `owed` in units of 2**-32 of a sample."""
        self.start, self.before, self.owed = start, before, owed
        self.weights = _whole(weights)
        self.drawn = [source for source, weight in enumerate(self.weights) if weight]
        self.nodes: list[list[int]] = []
        self.parents = [-1] * len(before)
        surplus = sum(owed[source] for source in self.drawn) // len(self.drawn)
        """Sources that went took a debt along, which all the others share."""
        self._weights = [0, *accumulate(self.weights[source] for source in self.drawn)]
        self._owed = [0, *accumulate(owed[source] - surplus for source in self.drawn)]
        self.root = self._build(0, len(self.drawn))

    def _build(self, low: int, high: int) -> int:
        """The vertex of drawn sources [low, high). Children come before their node, cut where both sides weigh most
        alike.

        The phase of a node is a half, and what its left side is owed beyond its share of what both are owed: between
        −1 and 2 of `weight`. Where all are a half, a source of weight w0 below nodes of weights w1, w2, … is at most
        ½ · (1 + w0/w1 + w0/w2 + …) samples off its target.
        """
        if high - low == 1:
            return self.drawn[low]
        weights, owed = self._weights, self._owed
        middle = (weights[low] + weights[high]) // 2
        cut = bisect_left(weights, middle, low + 1, high - 1)
        if cut > low + 1 and middle - weights[cut - 1] < weights[cut] - middle:
            cut -= 1
        left_weight, weight = weights[cut] - weights[low], weights[high] - weights[low]
        due = (owed[cut] - owed[low]) * weight - (owed[high] - owed[low]) * left_weight
        phase = min(max(weight // 2 + due // _ONE, -weight), 2 * weight - 1)
        left, right = self._build(low, cut), self._build(cut, high)
        number = len(self.nodes)
        self.nodes.append([left_weight, weight, phase, left, right, -1])
        for child in (left, right):
            if child < 0:
                self.nodes[~child][kernels.PARENT] = number
            else:
                self.parents[child] = number
        return ~number

    def reach(self, num_samples: int) -> tuple[list[int], list[int]]:
        """Samples that each source had before sample `num_samples` of the run; and what it is owed there."""
        passed = num_samples - self.start
        counts, had = list(self.before), [0] * len(self.nodes)
        if self.root >= 0:
            counts[self.root] += passed
        else:
            had[~self.root] = passed
        for number in range(len(self.nodes) - 1, -1, -1):
            left_weight, weight, phase, left, right, _ = self.nodes[number]
            m = had[number]
            of_left = min(max((m * left_weight + phase) // weight, 0), m)
            for child, count in ((left, of_left), (right, m - of_left)):
                if child < 0:
                    had[~child] = count
                else:
                    counts[child] += count
        total, due = sum(self.weights), passed * _ONE
        changes = zip(self.owed, self.weights, counts, self.before, strict=True)
        return counts, [debt + due * weight // total - (now - then) * _ONE for debt, weight, now, then in changes]


def _whole(weights: Sequence[float]) -> list[int]:
    """Weights as whole numbers in the same proportions, of at most 2**49 in sum; those above 0 stay above 0."""
    ratios = [weight.as_integer_ratio() for weight in weights]
    bottom = math.lcm(*(below for _, below in ratios))
    whole = [above * (bottom // below) for above, below in ratios]
    common = math.gcd(*whole)
    whole = [weight // common for weight in whole]
    total = sum(whole)
    return whole if total <= _MOST else [max(weight * _MOST // total, 1) if weight else 0 for weight in whole]


class Shares:
    """k → (source, its own number) and back, O(log sources) each. A source's numbers run 0, 1, 2, … through all stages.

    Making one costs about 2 µs for each source of each stage. Sources are numbered as in `names`. Nothing later than a
    sample changes what is before it, so stages can be appended.
    """

    def __init__(self, stages: Sequence[Stage], names: Sequence[str], *, changes: Sequence[Change] = ()) -> None:
        """`changes` in the order in which they were made; see `then`."""
        self._first_names = tuple(names)
        self.changes: tuple[Change, ...] = (Change(0, tuple(stages)), *changes)
        self.names = _collect_names(self._first_names, self.changes)
        self._trees: list[_Tree] = []
        self._pasts: list[tuple[str, Bools]] = []
        """Of each tree: checksum of all up to it, and which sources they draw from."""
        self.total: int | None = 0
        """Samples until the last stage ends; None where it has no end."""
        for change in self.changes:
            self._append(change)

    def _append(self, change: Change) -> None:
        """Plan the stages of a change, instead of what was planned from its start on."""
        start, size = change.at, len(self.names)
        if self.total is not None and self.total < start:
            raise ArgumentError(f"a change at sample {start:,} leaves a gap: the stages before end at {self.total:,}")
        while self._trees and self._trees[-1].start >= start:
            self._trees.pop()
        del self._pasts[len(self._trees) :]
        before = owed = [0] * size
        if self._trees:
            before, owed = self._trees[-1].reach(start)
        for stage in change.stages:
            missing = [0] * (size - len(before))  # sources that are new
            stop = END if stage.samples is None else start + stage.samples
            weights = [stage.weights.get(name, 0.0) for name in self.names]
            self._trees.append(_Tree(start, weights, before + missing, owed + missing))
            self._pasts.append(self._sum_up(self._trees[-1]))
            start = stop
            if stop < END:
                before, owed = self._trees[-1].reach(stop)
        self.total = None if start == END else start
        for name in ("_starts", "_tables"):
            vars(self).pop(name, None)

    def _sum_up(self, tree: _Tree) -> tuple[str, Bools]:
        """What `past` tells of the stages up to a tree, which comes after those that were summed up before."""
        digest, drawn = self._pasts[-1] if self._pasts else ("", np.zeros(0, np.bool_))
        names = [self.names[source] for source in tree.drawn]
        weights = [tree.weights[source] for source in tree.drawn]
        drawn = self._pad(drawn)
        drawn[tree.drawn] = True
        return fingerprint(json.dumps([digest, tree.start, names, weights]).encode()), drawn

    @cached_property
    def _starts(self) -> list[int]:
        return [tree.start for tree in self._trees]

    @cached_property
    def _tables(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Starts, roots, nodes, samples before and parents of all stages, as the kernels take them."""
        size, first = len(self.names), 0
        before, parents = np.zeros((len(self._trees), size), np.int64), np.full((len(self._trees), size), -1)
        nodes, roots = [np.empty((0, kernels.COLUMNS), np.int64)], []
        for number, tree in enumerate(self._trees):
            before[number, : len(tree.before)] = tree.before
            above = np.array(tree.parents)
            parents[number, : above.size] = np.where(above < 0, -1, above + first)
            roots.append(tree.root if tree.root >= 0 else tree.root - first)
            if tree.nodes:
                table = np.array(tree.nodes, np.int64)
                sides = table[:, kernels.LEFT : kernels.RIGHT + 1]
                sides[sides < 0] -= first
                table[: len(table) - 1, kernels.PARENT] += first
                nodes.append(table)
                first += len(table)
        return np.array(self._starts), np.array(roots), np.concatenate(nodes), before, parents

    def at(self, samples: Ints) -> tuple[Ints, Ints]:
        """(sources, numbers) of samples of the run."""
        sources, numbers = np.empty((2, samples.size), np.int64)
        starts, roots, nodes, before, _ = self._tables
        total = END if self.total is None else self.total
        outside = kernels.find_sources(samples, starts, total, roots, nodes, before, sources, numbers)
        if outside >= 0:
            self._check(int(samples[outside]))
        return sources, numbers

    def place(self, source: int, numbers: Ints) -> Ints:
        """The k at which a source's own samples come; −1 for those that never do."""
        samples = np.empty_like(numbers)
        kernels.find_samples(source, numbers, *self._tables, samples)
        if self.total is not None:
            samples[samples >= self.total] = -1
        return samples

    def counts(self, num_samples: int) -> Ints:
        """How many of the first `num_samples` samples come from each source. O(sources)."""
        counts: Ints = self._pad(self._stage_before(num_samples).reach(num_samples)[0])
        return counts

    def targets(self, num_samples: int) -> Floats:
        """Samples due from each source after `num_samples`, through all stages."""
        counts, owed = self._stage_before(num_samples).reach(num_samples)
        due: Floats = self._pad(counts) + self._pad(owed) / _ONE
        return due

    def drawn_from(self, sample: int) -> list[str]:
        """Names of the sources that are drawn just before a sample, or later."""
        first = max(bisect_left(self._starts, sample) - 1, 0)
        drawn = {source for tree in self._trees[first:] for source in tree.drawn}
        return [self.names[source] for source in sorted(drawn)]

    def stages(self) -> list[tuple[int, Stage]]:
        """(first sample, stage) of all stages, as far as no later change replaces them."""
        found: list[tuple[int, Stage]] = []
        for change in self.changes:
            while found and found[-1][0] >= change.at:
                found.pop()
            starts = accumulate((stage.samples or 0 for stage in change.stages), initial=change.at)
            found += zip(starts, change.stages, strict=False)
        return found

    def then(self, at: int, *stages: Stage | Mapping[str, float]) -> "Shares":
        """The same for all k < at, then other stages; weights alone are a stage without end. Every source goes on.

        A source that a stage does not name weighs nothing; new ones are numbered after those there were. What a source
        was owed, it still is. `at` may not lie before an earlier change.
        """
        change = Change(at, tuple(stage if isinstance(stage, Stage) else Stage(stage) for stage in stages))
        again = copy(self)  # what is known of k < at need not be computed again
        again.changes = (*self.changes, change)
        again.names = _collect_names(self.names, again.changes[-2:])
        again._trees, again._pasts = [*self._trees], list(self._pasts)
        again._append(change)
        return again

    def follow(self, changes: Sequence[Change]) -> "Shares":
        """The same with changes, in their order: as `then` for each."""
        first, *others = self.changes
        return Shares(first.stages, self._first_names, changes=[*others, *changes]) if changes else self

    def digest(self, num_samples: int) -> str:
        """A checksum of what determines the first `num_samples` samples, and of nothing else: 16 hex digits."""
        return self.past(num_samples)[0]

    def past(self, num_samples: int) -> tuple[str, Bools, int]:
        """(digest, sources that it covers, number of samples up to which both stay what they are).

        The digest covers every stage that begins before: its start, and the weights of its sources by name. Where the
        last one ends, and what follows, does not matter. O(log stages).
        """
        if num_samples == 0:
            return fingerprint(b""), np.zeros(len(self.names), np.bool_), 0
        last = bisect_left(self._starts, num_samples) - 1
        digest, drawn = self._pasts[last]
        later = [*self._starts, END if self.total is None else self.total]
        return digest, self._pad(drawn), later[last + 1]

    def _pad(self, values: Any) -> Any:
        """One value for each source, 0 for those that came later."""
        found = np.zeros(len(self.names), np.asarray(values).dtype)
        found[: len(values)] = values
        return found

    def _stage_before(self, num_samples: int) -> _Tree:
        """The stage that sample num_samples − 1 lies in; for none at all, the first."""
        if num_samples > 0:
            self._check(num_samples - 1)
        elif num_samples < 0:
            raise ArgumentError(f"a number of samples cannot be negative: {num_samples}")
        return self._trees[max(bisect_left(self._starts, num_samples) - 1, 0)]

    def _check(self, sample: int) -> None:
        if not 0 <= sample < (END if self.total is None else self.total):
            end = "has no end" if self.total is None else f"ends after {self.total:,}; give its last stage no length"
            raise SampleIndexError(f"sample {sample} is outside the shares, which begin with 0 and {end}")

    def to_json(self) -> dict[str, Any]:
        """Stages and changes as they were given."""
        stages = [[each.at, [stage.to_json() for stage in each.stages]] for each in self.changes]
        return {"names": list(self._first_names), "changes": stages}

    @classmethod
    def from_json(cls, value: Any) -> "Shares":
        try:
            first, *changes = [Change(at, tuple(map(Stage.from_json, stages))) for at, stages in value["changes"]]
            return cls(first.stages, value["names"], changes=changes)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise StateError(f"{str(value)[:200]} describes no shares ({error})") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shares) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

    def __repr__(self) -> str:
        length = "no end" if self.total is None else f"{self.total:,} samples"
        changes = quantity(len(self.changes) - 1, "change")
        stages = quantity(sum(len(change.stages) for change in self.changes), "stage")
        return f"Shares({quantity(len(self.names), 'source')}, {stages}, {length}, {changes})"


def _collect_names(first: Sequence[str], changes: Sequence[Change]) -> tuple[str, ...]:
    """The names of all sources: the first ones, and those that changes add. Raises where stages cannot follow."""
    names, earliest = dict.fromkeys(first), 0
    for number, change in enumerate(changes):
        where = f"the change at sample {change.at}: " if number else ""
        if type(change.at) is not int or not earliest <= change.at < END:
            raise ArgumentError(f"{where}at is a whole number from {earliest:,} on, where the change before it begins")
        earliest = change.at
        if not change.stages:
            raise ArgumentError(f"{where}there are no stages")
        new = {name: None for stage in change.stages for name in stage.weights if name not in names}
        if new and not number:
            raise ArgumentError(f"a stage draws from {some(list(new))}; the sources are {some(list(names))}")
        names |= new
        is_first = not number and (not names or len(first) > len(names))
        if is_first or not all(isinstance(name, str) for name in (new if number else names)):
            raise ArgumentError(f"{where}sources need names, each its own: {some(list(first))}")
        for place, stage in enumerate(change.stages[:-1]):
            if stage.samples is None:
                raise ArgumentError(
                    f"{where}stage {place} has no end, so stage {place + 1} never begins; give it samples"
                )
        length = change.at + sum(stage.samples or 0 for stage in change.stages)
        if length >= END:
            raise ArgumentError(f"{where}the stages have {length:,} samples; the most is 2**62 - 1")
    return tuple(names)
