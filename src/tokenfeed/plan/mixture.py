"""`MixturePlan`: which sample of which source a run delivers as its k-th.

    k ──skipped ranges──► j ──schedule──► (source, its own number) ──the source's plan──► (epoch, index)

Samples of all sources are numbered one behind the other, as a view that joins them has them; so does `locate`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.locality import permute_local_sources
from tokenfeed.kernels.permutation import permute_sources
from tokenfeed.plan.locality import Locality, Shuffle, check_shuffle, locality_part, shuffle_from_json, shuffle_to_json
from tokenfeed.plan.plan import VERSION, Plan, Trace, check_parts, check_state
from tokenfeed.plan.schedule import Schedule
from tokenfeed.plan.skips import Ints, Skip, begun, jump, jump_back

__all__ = ["Ledger", "MixturePlan", "Source"]


@dataclass(frozen=True)
class Source:
    """What a plan knows of a source."""

    name: str
    num_samples: int
    data: str
    """A checksum of its data."""
    view: str
    """What one sample is."""
    max_epochs: int | None = None
    """How often its samples may be seen."""
    group: int = 1
    """How many samples stay together."""

    def to_json(self) -> list[Any]:
        return [self.name, self.num_samples, self.data, self.view, self.max_epochs, self.group]


@dataclass(frozen=True)
class Ledger:
    """What a source has given, of what it was to give."""

    source: str
    samples: int
    target: float
    """By the weights, as integers over a period: never further than one sample away."""
    epochs: float
    """How often the source was seen through."""


class MixturePlan:
    """k → (source, epoch, index). Every source is shuffled, and goes through its epochs, by itself."""

    def __init__(
        self,
        schedule: Schedule,
        sources: Sequence[Source],
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        skips: Sequence[Skip] = (),
    ) -> None:
        """`sources` in the order of the schedule's names. Skips of samples or documents of a source name it.

        A `Locality` as `shuffle` is that of every source: a run then reads from 2 · tile blocks of each at a time.
        """
        if [source.name for source in sources] != list(schedule.names):
            raise ArgumentError(
                f"the schedule is of {list(schedule.names)}, the sources are {[s.name for s in sources]}"
            )
        for source in sources:
            if source.num_samples < 1:
                raise ArgumentError(f"source {source.name!r} is empty: its view has no samples")
        self.schedule = schedule
        self.sources = tuple(sources)
        self.seed = seed
        self.shuffle = check_shuffle(shuffle)
        self.skips = tuple(skips)
        self._ranges = [skip.samples for skip in skips if skip.samples is not None]
        self._numbers = {source.name: number for number, source in enumerate(sources)}
        self._sizes = np.array([source.num_samples for source in sources], np.int64)
        self._groups = np.array([source.group for source in sources], np.int64)
        self.starts: Ints = np.concatenate([[0], np.cumsum(self._sizes)])
        """Where the samples of each source begin, one behind the other; and the end."""
        self.plans = [self._plan_of(source) for source in sources]
        self._seeds = np.array([plan.seed for plan in self.plans], np.int64)
        self._with_skips = [number for number, plan in enumerate(self.plans) if plan.skips]

    def _plan_of(self, source: Source) -> Plan:
        """The plan of one source by itself, with skips in its own numbers."""
        seed = int(checksum(f"{self.seed}/{source.name}".encode()), 16) >> 1
        skips = []
        for place, skip in enumerate(self.skips):
            if skip.samples is not None:
                continue
            if skip.source not in self._numbers:
                raise ArgumentError(f"{skip}: of which source? There are {', '.join(self._numbers)}")
            if skip.source == source.name and not skip.mask:
                earlier = [each.samples for each in self.skips[:place] if each.samples is not None]
                at = int(jump(np.array([skip.at]), earlier)[0])
                own = int(self.schedule.counts(at)[self._numbers[source.name]])
                skips.append(Skip(indices=skip.indices, at=own))
        return Plan(
            source.num_samples,
            data=source.data,
            view=source.view,
            seed=seed,
            shuffle=self.shuffle,
            skips=skips,
            group=source.group,
        )

    def source_number(self, name: str) -> int:
        if name not in self._numbers:
            raise ArgumentError(f"there is no source {name!r}; there are {', '.join(self._numbers)}")
        return self._numbers[name]

    def draw(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """(sources, epochs, indices) of samples of the run: each index counts in its own source. O(1) each."""
        sources, numbers = self.schedule.locate(jump(samples, self._ranges) if self._ranges else samples)
        for number in self._with_skips:
            chosen = sources == number
            numbers[chosen] = self.plans[number].positions(numbers[chosen])
        epochs, indices = np.empty_like(numbers), np.empty_like(numbers)
        if self.shuffle:
            groups = self._groups[sources]
            numbers, places = np.divmod(numbers, groups)
            sizes = self._sizes // self._groups
            if isinstance(self.shuffle, Locality):
                block, tile = self.shuffle.block, self.shuffle.tile
                permute_local_sources(sources, numbers, sizes, block, tile, self._seeds, epochs, indices)
            else:
                permute_sources(sources, numbers, sizes, self._seeds, epochs, indices)
            indices = indices * groups + places
        else:
            np.divmod(numbers, self._sizes[sources], out=(epochs, indices))
        return sources, epochs, indices

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices) of samples of the run; indices count through all sources, one behind the other."""
        sources, epochs, indices = self.draw(np.asarray(samples, np.int64))
        return epochs, indices + self.starts[sources]

    def find(self, source: str, index: int, *, epochs: Sequence[int]) -> Ints:
        """The k at which a sample of a source is delivered in these epochs of the source; fewer where it never is."""
        number = self.source_number(source)
        own = self.plans[number].find(index, epochs=epochs)
        found = jump_back(self.schedule.find(number, own), self._ranges) if own.size else own
        return found[found >= 0]

    @property
    def end(self) -> int | None:
        """How many samples the run has: to the end of the last stage, or to where a source would be seen too often."""
        ends = [] if self.schedule.total is None else [self.schedule.total]
        for number, source in enumerate(self.sources):
            if source.max_epochs is not None:
                most = self.plans[number].count(source.max_epochs)
                ends += [k for k in self.schedule.find(number, np.array([most])).tolist() if k >= 0]
        if not ends:
            return None
        end = min(ends)
        for start, stop in self._ranges:
            end = min(end, max(start, end - (stop - start)))
        return end

    def trace(self, samples: Sequence[int] | Ints) -> list[Trace]:
        """Where samples of the run come from."""
        numbers = np.asarray(samples, np.int64)
        if numbers.size and numbers.min() < 0:
            raise ArgumentError(f"a run has no sample {numbers.min()}")
        if numbers.size and self.end is not None and numbers.max() >= self.end:
            raise ArgumentError(f"the run ends with sample {self.end - 1:,}; there is no sample {numbers.max():,}")
        columns = [numbers.tolist(), *(each.tolist() for each in self.draw(numbers))]
        return [
            Trace(k, epoch, index, self.sources[source].name) for k, source, epoch, index in zip(*columns, strict=True)
        ]

    def ledger(self, num_delivered: int) -> list[Ledger]:
        """What every source has given among the first `num_delivered` samples (those of skipped ranges not counted)."""
        counts, targets = self._without_skipped(num_delivered, self.schedule.counts), self.schedule.targets
        goals = self._without_skipped(num_delivered, targets)
        return [
            Ledger(source.name, int(count), float(goal), float(count) / source.num_samples)
            for source, count, goal in zip(self.sources, counts, goals, strict=True)
        ]

    def _without_skipped(self, num_delivered: int, count: Any) -> Any:
        """Counts before sample `num_delivered` of the run, less those of the ranges that it jumped over."""
        reached = int(jump(np.array([num_delivered]), self._ranges)[0]) if self._ranges else num_delivered
        total = count(reached)
        for place, (start, stop) in enumerate(self._ranges):
            if num_delivered > start:
                first, last = (int(jump(np.array([k]), self._ranges[:place])[0]) for k in (start, stop))
                total = total - (count(last) - count(first))
        return total

    def _reached(self, num_delivered: int) -> int:
        """Behind the last sample, not before the next: a range that is skipped from here on changes nothing yet."""
        return int(jump(np.array([num_delivered - 1]), self._ranges)[0]) + 1 if num_delivered else 0

    def parts(self, num_delivered: int) -> dict[str, Any]:
        """What the first `num_delivered` samples depend on, part by part."""
        reached = self._reached(num_delivered)
        drawn = self.schedule.counts(reached) > 0
        sources = [source.to_json()[:4] for source, is_drawn in zip(self.sources, drawn, strict=True) if is_drawn]
        early = [skip.to_json() for skip in begun(self.skips, num_delivered)]
        return {
            "mixture": self.schedule.digest(reached),
            "sources": checksum(json.dumps(sources).encode()),
            "seed": self.seed if self.shuffle else None,
            "skips": checksum(json.dumps(early).encode()) if early else None,
            "locality": locality_part(self.shuffle),
        }

    def state(self, num_delivered: int) -> dict[str, Any]:
        """The checkpoint after `num_delivered` samples of the run."""
        return {"version": VERSION, "samples": num_delivered, "plan": self.parts(num_delivered)}

    def accept(self, state: Any) -> int:
        """The number of samples that a state says were delivered, if this plan would have delivered the same."""
        num_delivered, theirs = check_state(state)
        total = self.schedule.total
        if total is not None and self._reached(num_delivered) > total:
            raise PlanMismatchError(
                f"the checkpoint was taken after {num_delivered:,} samples; this schedule ends after {total:,}, and "
                "with these skips there are not as many"
            )
        check_parts(self.parts(num_delivered), theirs)
        return num_delivered

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "schedule": self.schedule.to_json(),
            "sources": [source.to_json() for source in self.sources],
            "seed": self.seed,
            "shuffle": shuffle_to_json(self.shuffle),
            "skips": [skip.to_json() for skip in self.skips],
        }

    @classmethod
    def from_json(cls, value: Any) -> "MixturePlan":
        try:
            return cls(
                Schedule.from_json(value["schedule"]),
                [_source_from_json(*source) for source in value["sources"]],
                seed=value["seed"],
                shuffle=shuffle_from_json(value["shuffle"]),
                skips=[Skip.from_json(skip) for skip in value["skips"]],
            )
        except (TypeError, KeyError) as error:
            raise StateError(f"{str(value)[:80]} describes no mixture ({error})") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixturePlan) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.sources[:8])
        return f"MixturePlan({len(self.sources)} sources: {names}; seed {self.seed if self.shuffle else None})"


def _source_from_json(*values: Any) -> Source:
    source = Source(*values)
    texts, counts = (source.name, source.data, source.view), (source.num_samples, source.max_epochs or 1, source.group)
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in counts):
        raise StateError(f"{str(values)[:80]} describe no source of a mixture")
    return source
