"""`Plan`: which sample of which source a run delivers as its k-th. A pure function; it knows counts, never bytes.

    k ──skipped ranges──► j ──schedule──► (source, its own number) ──order of the source──► (epoch, index)

A run over one view is a mixture of one source, whose name is empty: the schedule is then the identity.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError, quantity
from tokenfeed.kernels.checksum import checksum
from tokenfeed.plan.mixing import Ledger, Mixture
from tokenfeed.plan.order import INT64, Orders
from tokenfeed.plan.permutation import Locality, Shuffle, shuffle_from_json, shuffle_to_json
from tokenfeed.plan.schedule import Schedule, Stage
from tokenfeed.plan.skips import Ranges, Skip, check_skips
from tokenfeed.plan.state import VERSION, check_kind, check_parts
from tokenfeed.storage.local import read_bytes, replace_bytes
from tokenfeed.store.spec import PackedSpec, ViewSpec
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = ["Plan", "PlanSource", "Trace"]

_LONGEST_LABEL = 40
"""Length of a text that is written out in a state, which is then at most 300 bytes of JSON; else its checksum is."""


@dataclass(frozen=True)
class PlanSource:
    """One source of a plan: how many samples it has, of which data, and what one sample is. Never bytes or paths."""

    name: str
    """Empty for the only source of a run over one view."""
    num_samples: int
    data: str
    """Checksum of its data."""
    spec: ViewSpec
    """What one sample is."""
    max_epochs: int | None = None
    """Limit on how often its samples are seen; the run ends there."""

    @property
    def label(self) -> str:
        """What one sample is, as text that differs wherever samples do."""
        return (
            f"{self.spec} by algorithm {self.spec.algorithm}" if isinstance(self.spec, PackedSpec) else str(self.spec)
        )

    def to_json(self) -> dict[str, Any]:
        fields = {"name": self.name, "samples": self.num_samples, "data": self.data, "view": self.spec.to_json()}
        return fields if self.max_epochs is None else {**fields, "max_epochs": self.max_epochs}

    @classmethod
    def from_json(cls, value: Any) -> "PlanSource":
        match value:
            case {"name": str(name), "samples": int(count), "data": str(data), "view": view}:
                limit = value.get("max_epochs")
                if all(type(each) is int and 0 < each < 1 << 62 for each in (count, 1 if limit is None else limit)):
                    return cls(name, count, data, ViewSpec.from_json(view), limit)
        raise StateError(f"{str(value)[:200]} describes no source of a plan")


@dataclass(frozen=True, slots=True)
class Trace:
    """Where the k-th sample of a run comes from."""

    sample: int
    """k, its number in the run."""
    epoch: int
    """Epoch of its source."""
    index: int
    """Its number in the view of its source."""
    source: str
    """Name of its source; empty where the run is over one view."""


class Plan:
    """k → (source, epoch, index) for k = 0, 1, 2, …

    Every source is shuffled, and goes through its epochs, by itself. Over one view of n samples, sample k has epoch
    k // n and index `Permutation(n, seed, epoch)[k % n]`, less the skips; `Orders` tells the rule with groups and with
    locality. Two plans that agree on all k < K are the same to a checkpoint at K, whatever they do later.
    """

    def __init__(
        self,
        sources: Sequence[PlanSource],
        schedule: Schedule | None = None,
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        skips: Sequence[Skip] = (),
    ) -> None:
        """`sources` in the order of the schedule's names; one source needs no schedule.

        Skips by document need a view to find samples: `Plan.of`. A `Locality` as `shuffle` holds for every source: a
        run then reads from 2 · tile blocks of each at a time.
        """
        if schedule is None:
            schedule = Schedule([Stage({source.name: 1.0 for source in sources})], [source.name for source in sources])
        if [source.name for source in sources] != list(schedule.names):
            raise ArgumentError(
                f"the schedule is of {list(schedule.names)}, the sources are {[each.name for each in sources]}"
            )
        self.sources = tuple(sources)
        self.schedule = schedule
        self.seed = seed
        if not isinstance(shuffle, bool | Locality):
            raise ArgumentError(f"shuffle is {shuffle!r}; it must be True, False or a Locality")
        self.shuffle = shuffle
        self.skips = skips = check_skips(skips)
        self.starts: Ints = np.cumsum([0, *(source.num_samples for source in sources)])
        """Joined number of the first sample of each source, where all are numbered one after the other; and the end."""
        self._orders = Orders(
            [source.num_samples for source in sources],
            [source.spec.samples_per_group for source in sources],
            [_seed_of(source.name, seed) for source in sources],
            shuffle,
        )
        self._ranges = Ranges([skip.samples for skip in skips if skip.samples is not None])
        for skip in sorted((skip for skip in skips if skip.samples is None), key=lambda skip: skip.at):
            number = self.source_number(skip.source)
            if skip.where is not None or not (skip.indices or skip.mask):
                raise ArgumentError(f"{skip}: only a view can tell which samples touch these documents; use Plan.of")
            if not skip.mask:  # which changes no order
                reached = int(self._ranges.jump(np.array([skip.at]))[0])
                self._orders.remove(number, skip.indices, int(schedule.counts(reached)[number]))
        self._changes = [skip.at if skip.samples is None else self._ranges.retreat(skip.samples[0]) for skip in skips]
        """The first k that each skip may change."""
        self._is_alone = len(sources) == 1 and schedule.total is None
        """Whether the numbers of the only source are those of the run."""
        self._steady: tuple[int, int, dict[str, Any]] = 0, 0, {}
        """(start, stop, parts): for all k in [start, stop), `parts(k)` is this."""

    @classmethod
    def of(cls, view: View | Mixture, *, seed: int = 0, shuffle: Shuffle = True, skips: Sequence[Skip] = ()) -> "Plan":
        """The plan over a view or a mixture."""
        mixture = Mixture.of(view)
        sources = [
            PlanSource(name, len(each), each.identity, each.spec.sample, mixture.max_epochs[name])
            for name, each in mixture.views.items()
        ]
        # A plan without skips tells the sources apart, so that what is wrong with a skip is told the same way.
        plain = cls(sources, mixture.schedule, seed=seed, shuffle=shuffle)
        views = list(mixture.views.values())
        found = [
            skip if skip.samples is not None else skip.resolve(views[plain.source_number(skip.source)])
            for skip in check_skips(skips)
        ]
        return cls(sources, mixture.schedule, seed=seed, shuffle=shuffle, skips=found) if found else plain

    def source_number(self, name: str | None) -> int:
        """The place of a source in `sources`; without a name, of the only one."""
        names = [source.name for source in self.sources]
        if name is None and len(names) == 1:
            return 0
        if name is None:
            raise ArgumentError(f"of which source? Give source=…; there are {', '.join(names)}")
        if names == [""] and name:
            raise ArgumentError(f"there is no source {name!r}: the run is over one view, without a name; leave it out")
        if name not in names:
            raise ArgumentError(f"there is no source {name!r}; there are {', '.join(names)}")
        return names.index(name)

    def locate(self, samples: Sequence[int] | Ints) -> tuple[Ints, Ints, Ints]:
        """(sources, epochs, indices) of samples of the run; each index counts in its own source.

        O(1) each, O(log s) with s samples removed. Over one view, 3 µs a call and 15 ns a sample.
        """
        numbers = np.asarray(samples, INT64)
        if self._ranges:
            numbers = self._ranges.jump(numbers)
        if self._is_alone:
            return np.zeros(numbers.size, INT64), *self._orders.locate(None, numbers)
        sources, numbers = self.schedule.locate(numbers)
        return sources, *self._orders.locate(sources, numbers)

    def without_skips(self, samples: Any) -> Any:
        """Numbers of samples in the run without skipped ranges: what `Skip(samples=…)` and `then(at=…)` count in."""
        return self._ranges.jump(samples)

    def find(self, index: int, *, epochs: Sequence[int], source: str | None = None) -> Ints:
        """The k at which a sample is delivered in these epochs of its source; fewer where it is skipped."""
        check_epochs(epochs)
        found = [self.find_all([index], epoch, source=source) for epoch in epochs]
        samples = np.concatenate([np.empty(0, np.int64), *found])
        return samples[samples >= 0]

    def find_all(self, indices: Sequence[int] | Ints, epoch: int, *, source: str | None = None) -> Ints:
        """The k at which samples of a source are delivered in one of its epochs, −1 where never.

        100 ns each; 20 µs each where samples of the source are skipped.
        """
        number = self.source_number(source)
        given, size = np.asarray(indices, np.int64), self.sources[number].num_samples
        if given.size and not (given.min() >= 0 and given.max() < size):
            raise ArgumentError(f"samples {given.min()} to {given.max()} are asked for; the view has {size:,}")
        own = self._orders.find(number, given, epoch)
        found = own if self._is_alone else self.schedule.find(number, own)
        return self._ranges.jump_back(found) if self._ranges else found

    @cached_property
    def end(self) -> int | None:
        """How many samples the run has: to the end of the last stage, or until a source would be seen too often."""
        limits = [(number, each.max_epochs) for number, each in enumerate(self.sources) if each.max_epochs is not None]
        ends = [self._count(number, limit) for number, limit in limits]
        if self.schedule.total is not None:
            ends.append(self._ranges.retreat(self.schedule.total))
        return min((end for end in ends if end is not None), default=None)

    def count(self, epochs: int) -> int:
        """How many samples the run delivers in `epochs` epochs of its only source."""
        if len(self.sources) > 1:
            raise ArgumentError(
                "sources of a mixture have epochs of their own; give the last stage a length, or mix(…, max_epochs=…)"
            )
        return min(end for end in (self._count(0, epochs), self.end) if end is not None)

    def _count(self, number: int, epochs: int) -> int | None:
        """How many samples come before a source would begin its next epoch after so many; None if it never does."""
        own = self._orders.count(number, epochs)
        sample = int(self.schedule.find(number, np.array([own]))[0])
        return None if sample < 0 else self._ranges.retreat(sample)

    def trace(self, samples: Sequence[int] | Ints) -> list[Trace]:
        """Where samples of the run come from."""
        numbers = np.asarray(samples, np.int64)
        if numbers.size and numbers.min() < 0:
            raise ArgumentError(f"a run has no sample {numbers.min()}")
        if numbers.size and self.end is not None and numbers.max() >= self.end:
            raise ArgumentError(f"the run ends with sample {self.end - 1:,}; there is no sample {numbers.max():,}")
        columns = (each.tolist() for each in (numbers, *self.locate(numbers)))
        return [
            Trace(k, epoch, index, self.sources[source].name) for k, source, epoch, index in zip(*columns, strict=True)
        ]

    def ledger(self, num_delivered: int) -> list[Ledger]:
        """What every source has given among the first `num_delivered` samples (those of skipped ranges not counted)."""
        reached = self._reached(num_delivered)
        jumps = [(start, stop) for start, stop in self._ranges if start < reached]
        counts, targets = (
            (count(reached) - sum(count(stop) - count(start) for start, stop in jumps)).tolist()
            for count in (self.schedule.counts, self.schedule.targets)
        )
        return [
            Ledger(source.name, count, target, source.num_samples, source.max_epochs)
            for source, count, target in zip(self.sources, counts, targets, strict=True)
        ]

    def _reached(self, num_delivered: int) -> int:
        """Where the schedule is after the last sample: a range that is skipped from here on changes nothing yet."""
        return int(self._ranges.jump(np.array([num_delivered - 1]))[0]) + 1 if num_delivered else 0

    def early_skips(self, num_delivered: int) -> list[Skip]:
        """The skips that may change any of the first `num_delivered` samples."""
        return [skip for skip, first in zip(self.skips, self._changes, strict=True) if first < num_delivered]

    def parts(self, num_delivered: int) -> dict[str, Any]:
        """What the first `num_delivered` samples depend on, part by part: the plan that a state carries.

        All words are always there, because `torch.distributed.checkpoint` loads only the keys that the new state has.
        """
        start, stop, known = self._steady
        if start <= num_delivered < stop:
            return dict(known)
        reached = self._reached(num_delivered)
        mixture, begun, until = self.schedule.past(reached)
        drawn = [each for each, is_drawn in zip(self.sources, begun, strict=True) if is_drawn or not each.name]
        alone = drawn[0].spec if len(drawn) == 1 else None
        family = None if alone is None else alone.family
        early = sorted(json.dumps(skip.to_json()) for skip in self.early_skips(num_delivered))
        parts = {
            "data": _summary([[each.name, each.num_samples, each.data] for each in drawn], {e.data for e in drawn}),
            "view": family or _summary([[each.name, each.label] for each in drawn], {each.label for each in drawn}),
            "mixture": mixture,
            "seed": self.seed if self.shuffle else None,
            "skips": _digest(early) if early else None,
            "locality": None if isinstance(self.shuffle, bool) else shuffle_to_json(self.shuffle),
            "group": alone.samples_per_group if alone is not None and family else None,
        }
        ends = [first for first in self._changes if first >= num_delivered]
        self._steady = num_delivered, min([num_delivered + until - reached, *ends]) + 1, parts
        return dict(parts)

    def state(self, num_delivered: int) -> dict[str, Any]:
        """The checkpoint after `num_delivered` samples of the run: at most 300 bytes of JSON."""
        return {"kind": "run", "version": VERSION, "samples": num_delivered, "plan": self.parts(num_delivered)}

    @property
    def _family(self) -> str | None:
        """What the only source has in common with views of other lengths over the same groups."""
        return self.sources[0].spec.family if len(self.sources) == 1 else None

    def accept(self, state: Any) -> int:
        """The number of samples that a state says were delivered, if this plan would have delivered the same.

        A state of windows of another length over the same groups is accepted after a whole number of groups, and counts
        in samples of this plan.
        """
        given = check_kind(state, "run")
        num_delivered, theirs = given.get("samples"), given.get("plan")
        if type(num_delivered) is not int or not 0 <= num_delivered < 1 << 62 or not isinstance(theirs, Mapping):
            raise StateError(f"the state says samples {num_delivered!r}, plan {theirs!r}; it is damaged")
        per_group = theirs.get("group")
        if self._family is not None and theirs.get("view") == self._family and type(per_group) is int and per_group > 0:
            group = self.sources[0].spec.samples_per_group
            if group != per_group and (theirs.get("skips") or self.early_skips(num_delivered * group // per_group)):
                raise PlanMismatchError(
                    f"the checkpoint was taken after a skip took effect, with {per_group} samples in a group; "
                    f"{self.sources[0].spec} has {group}. Samples of another length lose other items by the same skip, "
                    "so the run cannot go on where it was: keep the length, or change it before the skip begins"
                )
            num_delivered, rest = divmod(num_delivered * group, per_group)
            if rest:
                raise PlanMismatchError(
                    f"the checkpoint was taken within a group of {per_group} samples; to go on with "
                    f"{self.sources[0].spec}, take one after a whole number of groups"
                )
            theirs = {**theirs, "group": group}
        total = self.schedule.total
        if total is not None and self._reached(num_delivered) > total:
            raise PlanMismatchError(
                f"the checkpoint was taken after {num_delivered:,} samples; this schedule ends after {total:,}, and "
                "with these skips there are not as many"
            )
        check_parts(self.parts(num_delivered), theirs)
        return num_delivered

    def recount(self, num_delivered: int, other: "Plan") -> int:
        """So many samples, in those of another plan: it may have windows of another length over the same groups."""
        if self._family is None or self._family != other._family:
            return num_delivered
        group, others = self.sources[0].spec.samples_per_group, other.sources[0].spec.samples_per_group
        return num_delivered * others // group

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "sources": [source.to_json() for source in self.sources],
            "schedule": self.schedule.to_json(),
            "seed": self.seed,
            "shuffle": shuffle_to_json(self.shuffle),
            "skips": [skip.to_json() for skip in self.skips],
        }

    @classmethod
    def from_json(cls, value: Any) -> "Plan":
        try:
            if value["version"] != VERSION:
                raise StateError(f"the plan has version {value['version']!r}; this tokenfeed reads {VERSION}")
            if type(value["seed"]) is not int:
                raise StateError(f"seed of the plan is {str(value['seed'])[:80]!r}; expected a whole number")
            return cls(
                [PlanSource.from_json(source) for source in value["sources"]],
                Schedule.from_json(value["schedule"]),
                seed=value["seed"],
                shuffle=shuffle_from_json(value["shuffle"]),
                skips=[Skip.from_json(skip) for skip in value["skips"]],
            )
        except (TypeError, KeyError) as error:
            raise StateError(f"{str(value)[:200]} describes no plan ({error})") from error

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        replace_bytes(Path(path), json.dumps(self.to_json()).encode())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read what `save` wrote. The data need not be there."""
        try:
            return cls.from_json(json.loads(read_bytes(Path(path))))
        except (ValueError, RecursionError) as error:
            raise StateError(f"{path} holds no plan: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.sources[:8])
        many = f"{len(self.sources)} sources: {names}"
        what = many if names else f"{self.sources[0].num_samples:,} samples of {self.sources[0].spec}"
        order = f"seed {self.seed}" if self.shuffle else "in order"
        local = "" if isinstance(self.shuffle, bool) else f", {self.shuffle}"
        return f"Plan({what}; {order}{local}, {quantity(len(self.skips), 'skip')})"


def check_epochs(epochs: Any) -> None:
    """Refuse a number where epochs to look at are asked for: it may be one epoch, or how many."""
    if isinstance(epochs, str) or not isinstance(epochs, Iterable):
        raise ArgumentError(
            f"epochs is {epochs!r}; expected the epochs to look at: epochs=[2] for that one, epochs=range(2) for the "
            "first two"
        )


def _seed_of(name: str, seed: int) -> int:
    """The seed of a source: that of the run for the source without a name, else one of its own."""
    return int(checksum(f"{seed}/{name}".encode()), 16) >> 1 if name else seed


def _summary(entries: list[list[Any]], texts: set[str]) -> str:
    """The text that all entries have in common, if it is one and short; else a checksum of them."""
    text = min(texts, default="")
    return text if len(texts) == 1 and len(text) <= _LONGEST_LABEL else _digest(entries)


def _digest(value: Any) -> str:
    return checksum(json.dumps(value).encode())
