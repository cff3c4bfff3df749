"""`Plan`: what a run delivers, as a pure function; how it is amended; and what checkpoints say of it."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tokenfeed.errors import ArgumentError, PlanMismatchError, SampleIndexError, StateError, quantity, whole
from tokenfeed.plan.amending import Changes, Drafter, check_changes
from tokenfeed.plan.amendment import Amendment, PlanSource
from tokenfeed.plan.listed import Listed
from tokenfeed.plan.masks import Documents
from tokenfeed.plan.mixing import Mixture, Sources
from tokenfeed.plan.run_order import RunOrder, digest
from tokenfeed.plan.shares import Shares, some
from tokenfeed.plan.source import Shuffle, shuffle_from_json, shuffle_to_json
from tokenfeed.plan.state import VERSION, SavedRun
from tokenfeed.storage.local import read_bytes, replace_bytes
from tokenfeed.store.subset import join_views
from tokenfeed.store.view import View

__all__ = ["Plan", "PlanSource"]

_LONGEST_LABEL = 40
"""Length of a text that is written out in a state, which is then at most 300 bytes of JSON; else its checksum is."""


class Plan(RunOrder):
    """k → (source, epoch, index) for k = 0, 1, 2, …

    Every source is shuffled, and goes through its epochs, by itself. Over one view of n samples, sample k has epoch
    k // n and index `Permutation(n, seed, epoch)[k % n]`, until the source grows. Two plans that agree on all k < K are
    the same to a checkpoint at K, whatever they do
    later: `amend` makes such plans.
    """

    @classmethod
    def of(
        cls,
        view: View | Mixture,
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        mask: Documents | Mapping[str, Documents] | None = None,
    ) -> "Plan":
        """The plan over a view or a mixture. `mask` holds from the beginning, as in `amend`."""
        mixture = Mixture.of(view)
        sources = [
            PlanSource(name, len(each), each.identity, each.spec.sample, mixture.max_epochs[name])
            for name, each in mixture.views.items()
        ]
        given = mixture.sources
        plan = cls(sources, mixture.shares, seed=seed, shuffle=shuffle, given=given, by=given.by)
        return plan if mask is None else plan.amend(0, mask=mask)

    def amend(self, at: int, *, live: bool = False, **changes: Unpack[Changes]) -> "Plan":
        """The same run up to sample `at`, and from there on what is given; the rest goes on as it was.

        `weights`, by source, count as those of the mixture do; every source that is drawn is named, with 0 if it stops;
        or a list of `Stage`. `sources` adds views, which need weights; where the run began with one view, that view
        takes the name that `weights` give it. `grow` has rows of another store for a source (by its name; alone where
        there is one source): they are shuffled together with what is left of the epoch, nothing is lost or repeated,
        and the next epoch is over everything. `mask` has documents (by source) that are delivered, and nothing is
        learned in them: their numbers, or the path of a `.npy`, which many must lie in; those of rows that a source
        grew by are counted on.
        `max_epochs` limits how often sources are seen; {name: None} lifts a limit.

        A checkpoint taken at or before `at` fits both plans. `live` amendments are those of a run that goes on: its
        states carry them, and a return to an earlier state forgets them.
        """
        check_changes(changes)
        limits = changes.get("max_epochs")
        drafter = Drafter(self, whole("at", at), live=live)
        drafter.draft(changes)
        plan = self.amended(drafter.amendment, drafter.sources)
        if limits is not None and plan.end is not None and plan.end < at:
            raise ArgumentError(
                f"max_epochs is {limits}: the run would have ended after {plan.end:,} samples, and this is sample "
                f"{at:,}. Allow one epoch more"
            )
        return plan

    def follows(self, other: "Plan") -> tuple[Amendment, ...] | None:
        """The amendments that this plan has after those of another; None if it is not that one, amended."""
        count = len(other.amendments)
        *base, ours = self._facts()
        *other_base, theirs = other._facts()
        return self.amendments[count:] if base == other_base and ours[:count] == theirs else None

    def left_behind(self, other: "Plan") -> list[int]:
        """Where the amendments of another plan begin that this one has not, though it began as the other did."""
        *base, ours = self._facts()
        *other_base, theirs = other._facts()
        left, behind = list(ours), []
        for each in theirs if base == other_base else ():
            if each in left:
                left.remove(each)
            else:
                behind.append(each.at)
        return behind

    def first(self, count: int) -> "Plan":
        """The same plan with its first `count` amendments alone."""
        return self if count >= len(self.amendments) else self._again(self.amendments[:count], None)

    def over(self, given: Sources | None) -> "Plan":
        """The same plan, with the views that it is over."""
        plan = copy(self)
        plan.given = given
        return plan

    def moved(self, paths: Mapping[tuple[str, str], tuple[str, ...]]) -> "Plan":
        """The same plan, where rows that amendments brought lie elsewhere: paths by the key of the source, and data."""

        def move(rows: Sequence[PlanSource]) -> tuple[PlanSource, ...]:
            return tuple(replace(each, paths=paths.get((each.name, each.data), each.paths)) for each in rows)

        plan = copy(self)
        plan.amendments = tuple(
            replace(each, sources=move(each.sources), grown=move(each.grown)) for each in self.amendments
        )
        plan._steady = 0, 0, {}, ()
        return plan

    @property
    def paths(self) -> dict[str, list[str]]:
        """Where the rows that every source came with lay when they were opened."""
        views = {} if self.given is None else self.given.views
        return {source.name: views[key].parts[0].paths for source, key in self.keyed_sources}

    @property
    def views(self) -> list[View]:
        """The views of all sources."""
        if self.given is None:
            raise ArgumentError("the plan was read from a file and is over no views: Run(path).plan() opens them")
        return [self.given.views[key] for key in self.shares.names]

    @property
    def program(self) -> "Plan":
        """The plan as the program gives it: without what was changed while the run went on."""
        given = [each for each in self.amendments if not each.live]
        if len(given) == len(self.amendments):
            return self
        plan = self._again(given, None)
        if self.given is None:
            return plan
        views = {}
        for key in plan.shares.names:
            rows = plan.rows_of(key)
            views[key] = join_views([view for row, view in self.row_views(key) if row in rows])
        return plan.over(self.given.only(views))

    def row_views(self, key: str) -> list[tuple[PlanSource, View]]:
        """The rows that a source has end to end, each with its view."""
        view = self.views[self.shares.names.index(key)]
        starts = np.cumsum([0, *map(len, view.parts)])
        found, start = [], 0
        for row in self.rows_of(key):
            stop = start + row.num_samples
            first, last = np.searchsorted(starts, [start, stop]).tolist()
            if starts[first] != start or starts[min(last, len(view.parts))] != stop:
                raise ArgumentError(f"{view} is not what {row.num_samples:,} samples of a source can be parted from")
            found.append((row, join_views(view.parts[first:last])))
            start = stop
        return found

    def parts(self, num_delivered: int) -> dict[str, Any]:
        """What the first `num_delivered` samples depend on, part by part.

        All words are always there, because `torch.distributed.checkpoint` loads only the keys that the new state has.
        """
        return dict(self._find_past(num_delivered)[0])

    def _find_past(self, num_delivered: int) -> tuple[dict[str, Any], tuple[str, ...]]:
        """(parts, changes) of the state after so many samples. Those found last are remembered."""
        start, stop, parts, changes = self._steady
        if start <= num_delivered < stop:
            return parts, changes
        mixture, begun, until = self.shares.past(num_delivered)
        drawn = [each for each, is_drawn in zip(self._first, begun, strict=True) if is_drawn or not each.name]
        count = bisect_left(self._changes, num_delivered, key=lambda each: each[0])
        parts = {
            "data": _summary([[each.name, each.num_samples, each.data] for each in drawn], {e.data for e in drawn}),
            "view": _summary([[each.name, each.label] for each in drawn], {each.label for each in drawn}),
            "mixture": mixture,
            "seed": self.seed if self.shuffle else None,
            "order": self._tell_order(),
            "amendments": digest([[], self._digests[count]]) if count else None,
        }
        changes = tuple(each.saved for each in self.amendments if each.live or 0 < each.at < num_delivered)
        coming = [each.at for each in self.amendments if each.at >= num_delivered][:1]
        self._steady = num_delivered, min([until, *coming]) + 1, parts, changes
        return parts, changes

    def _tell_order(self) -> Any:
        """What differs from a shuffle of all: block and tile, or the digest of a list."""
        if isinstance(self.shuffle, bool):
            return None
        return self.shuffle.digest if isinstance(self.shuffle, Listed) else shuffle_to_json(self.shuffle)

    def state(self, num_delivered: int) -> dict[str, Any]:
        """The checkpoint after `num_delivered` samples of the run: at most 300 bytes of JSON, and what was changed.

        Changes are those made while the run went on, and those that the program gave for a sample that is past. What
        it gave from the beginning is in the digests.
        """
        parts, changes = self._find_past(num_delivered)
        plan = {"kind": "run", "version": VERSION, "samples": num_delivered, "plan": dict(parts)}
        return {**plan, "changes": list(changes)}

    def accept(self, state: Any) -> tuple["Plan", int]:
        """What a run goes on with after a state: the plan, and the number of samples delivered.

        The plan is what the program gives, and the changes of the state: those that were made to this plan while a run
        went on are forgotten. It is over no views where the state brings rows. The first samples must depend on the
        same as those of the state. A list of the states of all ranks must say the same of all.
        """
        saved, program = SavedRun.read(state), self.program
        joint, told = saved.join(program.amendments), saved.parts
        try:
            plan = program if joint.missing and joint.unknown else self._with(joint.amendments)
        except (ArgumentError, SampleIndexError) as error:
            joint.check(program.parts(saved.samples), told)
            raise PlanMismatchError(f"the changes of the checkpoint cannot be made to this plan: {error}") from error
        ours = plan.parts(saved.samples)
        if told.keys() != ours.keys():
            raise StateError(f"the plan of the state has {some(list(told))}, not {some(list(ours))}; it is damaged")
        joint.check(ours, told)
        if plan.end is not None and saved.samples > plan.end:
            raise PlanMismatchError(
                f"the checkpoint was taken after {saved.samples:,} samples; this run ends after {plan.end:,}"
            )
        return plan, saved.samples

    def _with(self, amendments: Sequence[Amendment]) -> "Plan":
        """The same plan with these amendments; what the program gives, where there are no others."""
        ordered = sorted(amendments, key=lambda each: each.at)
        program = self.program
        return program if ordered == list(program.amendments) else self._again(ordered, None)

    def to_json(self) -> dict[str, Any]:
        sources, shares = self._base
        return {
            "version": VERSION,
            "sources": [source.to_json() for source in sources],
            "shares": shares.to_json(),
            "seed": self.seed,
            "shuffle": shuffle_to_json(self.shuffle),
            "by": self.by,
            "amendments": [amendment.to_json() for amendment in self.amendments],
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
                Shares.from_json(value["shares"]),
                seed=value["seed"],
                shuffle=shuffle_from_json(value["shuffle"]),
                by=str(value["by"]),
                amendments=[Amendment.from_json(amendment) for amendment in value["amendments"]],
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
        return isinstance(other, Plan) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.seed, self.by, len(self.amendments)))

    def _facts(self) -> tuple[Any, ...]:
        """What makes two plans equal: not where data lies, nor who amended them."""
        return self._base, self.seed, self.shuffle, self.by, self.amendments

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.sources[:8])
        many = f"{len(self.sources)} sources: {names}"
        what = many if names else f"{self.sources[0].num_samples:,} samples of {self.sources[0].spec}"
        order = f"seed {self.seed}" if self.shuffle else "in order"
        local = "" if isinstance(self.shuffle, bool) else f", {self.shuffle}"
        amended = f", {quantity(len(self.amendments), 'amendment')}" if self.amendments else ""
        return f"Plan({what}; {order}{local}{amended})"


def _summary(entries: list[list[Any]], texts: set[str]) -> str:
    """The text that all entries have in common, if it is one and short; else a checksum of them."""
    text = min(texts, default="")
    return text if len(texts) == 1 and len(text) <= _LONGEST_LABEL else digest(entries)
