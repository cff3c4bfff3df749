"""`Plan`: what a run delivers, as a pure function; how it is amended; and what checkpoints say of it."""

import json
from bisect import bisect_left
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Unpack

from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError, quantity, whole
from tokenfeed.plan.amending import Changes, Drafter, check_changes
from tokenfeed.plan.amendment import Amendment, PlanSource
from tokenfeed.plan.listed import Listed
from tokenfeed.plan.masks import Documents
from tokenfeed.plan.mixing import Mixture, Sources
from tokenfeed.plan.run_order import RunOrder, digest
from tokenfeed.plan.shares import Shares, some
from tokenfeed.plan.source import Shuffle, shuffle_from_json, shuffle_to_json
from tokenfeed.plan.state import VERSION, check_kind, check_parts
from tokenfeed.storage.local import read_bytes, replace_bytes
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

    def amend(self, at: int, **changes: Unpack[Changes]) -> "Plan":
        """The same run up to sample `at`, and from there on what is given; the rest goes on as it was.

        `weights`, by source, count as those of the mixture do; every source that is drawn is named, with 0 if it stops;
        or a list of `Stage`. `sources` adds views, which need weights; where the run began with one view, that view
        takes the name that `weights` give it. `grow` has rows of another store for a source (by its name; alone where
        there is one source): they are shuffled together with what is left of the epoch, nothing is lost or repeated,
        and the next epoch is over everything. `mask` has documents (by source) that are delivered, and nothing is
        learned in them: their numbers, or the path of a `.npy`, which many must lie in; those of rows that a source
        grew by are counted on.
        `max_epochs` limits how often sources are seen; {name: None} lifts a limit.

        A checkpoint taken at or before `at` fits both plans.
        """
        check_changes(changes)
        limits = changes.get("max_epochs")
        drafter = Drafter(self, whole("at", at))
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
        ours = self._base, self.seed, self.shuffle, self.by, self.amendments[:count]
        same = ours == (other._base, other.seed, other.shuffle, other.by, other.amendments)
        return self.amendments[count:] if same else None

    def first(self, count: int) -> "Plan":
        """The same plan with its first `count` amendments alone."""
        return self if count >= len(self.amendments) else self._again(self.amendments[:count], None)

    def over(self, given: Sources | None) -> "Plan":
        """The same plan, with the views that it is over."""
        plan = copy(self)
        plan.given = given
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

    def parts(self, num_delivered: int) -> dict[str, Any]:
        """What the first `num_delivered` samples depend on, part by part: the plan that a state carries.

        All words are always there, because `torch.distributed.checkpoint` loads only the keys that the new state has.
        """
        start, stop, known = self._steady
        if start <= num_delivered < stop:
            return dict(known)
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
        coming = [at for at, _ in self._changes[count : count + 1]]
        self._steady = num_delivered, min([until, *coming]) + 1, parts
        return dict(parts)

    def _tell_order(self) -> Any:
        """What differs from a shuffle of all: block and tile, or the digest of a list."""
        if isinstance(self.shuffle, bool):
            return None
        return self.shuffle.digest if isinstance(self.shuffle, Listed) else shuffle_to_json(self.shuffle)

    def state(self, num_delivered: int) -> dict[str, Any]:
        """The checkpoint after `num_delivered` samples of the run: at most 300 bytes of JSON."""
        return {"kind": "run", "version": VERSION, "samples": num_delivered, "plan": self.parts(num_delivered)}

    def accept(self, state: Any) -> int:
        """The number of samples that a state says were delivered, if this plan would have delivered the same.

        A list of the states of all ranks must say the same of all.
        """
        given = check_kind(state, "run")
        num_delivered, theirs = given.get("samples"), given.get("plan")
        if type(num_delivered) is not int or not 0 <= num_delivered < 1 << 62 or not isinstance(theirs, Mapping):
            raise StateError(f"the state says samples {num_delivered!r}, plan {theirs!r}; it is damaged")
        total = self.shares.total
        if total is not None and num_delivered > total:
            raise PlanMismatchError(
                f"the checkpoint was taken after {num_delivered:,} samples; this shares ends after {total:,}"
            )
        ours = self.parts(num_delivered)
        if theirs.keys() != ours.keys():
            raise StateError(f"the plan of the state has {some(list(theirs))}, not {some(list(ours))}; it is damaged")
        check_parts(ours, theirs)
        return num_delivered

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
        return isinstance(other, Plan) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

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
