"""`Plan`: which sample a run delivers as its k-th. A pure function; it knows counts, never bytes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError
from tokenfeed.kernels.checksum import checksum
from tokenfeed.kernels.locality import permute_local_run
from tokenfeed.kernels.permutation import permute_run
from tokenfeed.plan.locality import (
    Locality,
    LocalPermutation,
    Shuffle,
    check_shuffle,
    locality_part,
    shuffle_from_json,
    shuffle_to_json,
)
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.skips import Ints, Removals, Skip, begun, jump, jump_back
from tokenfeed.storage.local import read_bytes, replace_bytes

__all__ = ["Plan", "Trace", "View", "check_parts", "check_state"]

VERSION = 1


class View(Protocol):
    """What a plan asks of a view: how many samples, which data, and what a sample is."""

    def __len__(self) -> int: ...

    @property
    def identity(self) -> str:
        """A checksum of the data."""

    @property
    def description(self) -> str:
        """What one sample is, such as `windows(2048)`."""

    def samples_touching(self, documents: Sequence[int]) -> Ints:
        """The samples that any of these documents is part of."""

    # A view may also have `samples_per_group`, how many samples stay together whatever the shuffle, and `family`, what
    # it has in common with views of other lengths over the same groups.


@dataclass(frozen=True, slots=True)
class Trace:
    """Where the k-th sample of a run comes from."""

    sample: int
    """k, its number in the run."""
    epoch: int
    index: int
    """Its number in the view."""
    source: str | None = None
    """Of a mixture, the source that the view belongs to."""


class Plan:
    """k → (epoch, index) for k = 0, 1, 2, …: epoch k // n, index `Permutation(n, seed, epoch)[k % n]`, less the skips.

    With groups of m samples, groups are permuted: index `Permutation(n / m, seed, epoch)[k % n // m] · m + k % m`. With
    a `Locality` as `shuffle`, the permutation is a `LocalPermutation`.

    Two plans that agree on all k < K are the same to a checkpoint at K, whatever they do later.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        data: str,
        view: str,
        seed: int = 0,
        shuffle: Shuffle = True,
        skips: Sequence[Skip] = (),
        group: int = 1,
        family: str | None = None,
    ) -> None:
        """`skips` in the order in which they were made. Those by document need a view to find samples: `Plan.of`.

        Groups of `group` samples are shuffled, and stay together. Plans over views of one `family` may take each
        other's checkpoints: they have the same groups, of more or fewer samples.
        """
        if num_samples < 1:
            raise ArgumentError("there is nothing to load: the view has no samples")
        if group < 1 or num_samples % group:
            raise ArgumentError(f"{num_samples} samples are no whole number of groups of {group}")
        self.num_samples = num_samples
        self.group = group
        self.family = family
        self.data = data
        self.view = view
        self.seed = seed
        self.shuffle = check_shuffle(shuffle)
        self.skips = tuple(skips)
        Permutation(num_samples, seed=seed)  # checks both
        self._ranges: list[tuple[int, int]] = []
        self._removals = Removals(num_samples, self._places)
        for skip in self.skips:
            if skip.samples is not None:
                self._ranges.append(skip.samples)
            elif skip.mask:
                continue  # it changes no order
            elif skip.indices:
                if skip.indices[-1] >= num_samples or skip.indices[0] < 0:
                    raise ArgumentError(f"{skip} names a sample outside the view, which has {num_samples:,}")
                at = int(jump(np.array([skip.at]), self._ranges)[0])
                self._removals.add(at, np.array(skip.indices))
            else:
                raise ArgumentError(f"{skip}: which samples touch these documents, only a view can tell; use Plan.of")

    @classmethod
    def of(cls, view: View, *, seed: int = 0, shuffle: Shuffle = True, skips: Sequence[Skip] = ()) -> "Plan":
        """The plan over a view."""
        found = [_with_indices(skip, view) for skip in skips]
        return cls(
            len(view),
            data=view.identity,
            view=view.description,
            seed=seed,
            shuffle=shuffle,
            skips=found,
            group=getattr(view, "samples_per_group", 1),
            family=getattr(view, "family", None),
        )

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """(epochs, indices) of samples of the run. O(1) each, O(log s) with s samples removed."""
        samples = np.asarray(samples, np.int64)
        positions = self.positions(jump(samples, self._ranges) if self._ranges else samples)
        epochs, indices = np.empty_like(positions), np.empty_like(positions)
        if self.shuffle and self.group == 1:
            self._permute(positions, epochs, indices)
        elif self.shuffle:
            groups, places = np.divmod(positions, self.group)
            self._permute(groups, epochs, indices)
            indices = indices * self.group + places
        else:
            np.divmod(positions, self.num_samples, out=(epochs, indices))
        return epochs, indices

    def _permute(self, positions: Ints, epochs: Ints, indices: Ints) -> None:
        num_groups = self.num_samples // self.group
        if isinstance(self.shuffle, Locality):
            block, tile = self.shuffle.block, self.shuffle.tile
            permute_local_run(positions, num_groups, block, tile, self.seed, epochs, indices)
        else:
            permute_run(positions, num_groups, self.seed, epochs, indices)

    def positions(self, numbers: Ints) -> Ints:
        """Places in the endless shuffled stream, epoch · n + place in the epoch, of samples that are not left out."""
        return self._removals.to_positions(numbers)

    def find(self, index: int, *, epochs: Sequence[int]) -> Ints:
        """The k at which sample `index` of the view is delivered in these epochs; fewer where it is skipped."""
        if not 0 <= index < self.num_samples:
            raise ArgumentError(f"sample {index} is outside the view, which has {self.num_samples:,}")
        places = [int(self._places(epoch, np.array([index]))[0]) for epoch in epochs]
        positions = np.array([epoch * self.num_samples + place for epoch, place in zip(epochs, places, strict=True)])
        numbers = self._removals.to_numbers(positions.astype(np.int64))
        found = jump_back(numbers[numbers >= 0], self._ranges)
        return found[found >= 0]

    def count(self, epochs: int) -> int:
        """How many samples a run delivers in its first `epochs` epochs."""
        count = self._removals.count_before(epochs * self.num_samples)
        for start, stop in self._ranges:
            count = min(count, max(start, count - (stop - start)))
        return count

    def trace(self, samples: Sequence[int] | Ints) -> list[Trace]:
        """Where samples of the run come from."""
        numbers = np.asarray(samples, np.int64)
        if numbers.size and numbers.min() < 0:
            raise ArgumentError(f"a run has no sample {numbers.min()}")
        epochs, indices = self.locate(numbers)
        return [Trace(*each) for each in zip(numbers.tolist(), epochs.tolist(), indices.tolist(), strict=True)]

    def _places(self, epoch: int, indices: Ints) -> Ints:
        if not self.shuffle:
            return indices
        groups, places = np.divmod(indices, self.group)
        num_groups = self.num_samples // self.group
        order = Permutation(num_groups, self.seed, epoch)
        if isinstance(self.shuffle, Locality):
            order = LocalPermutation(num_groups, self.seed, epoch, self.shuffle)
        return np.asarray(order.inverse(groups)) * self.group + places

    def parts(self, num_delivered: int) -> dict[str, Any]:
        """What the first `num_delivered` samples depend on, part by part: the plan that a state carries."""
        early = [skip.to_json() for skip in begun(self.skips, num_delivered)]
        parts = {
            "data": self.data,
            "view": self.family or self.view,
            "seed": self.seed if self.shuffle else None,
            "skips": checksum(json.dumps(early).encode()) if early else None,
            "locality": locality_part(self.shuffle),
        }
        return parts if self.family is None else {**parts, "group": self.group}

    def state(self, num_delivered: int) -> dict[str, Any]:
        """The checkpoint after `num_delivered` samples of the run."""
        return {"version": VERSION, "samples": num_delivered, "plan": self.parts(num_delivered)}

    def accept(self, state: Any) -> int:
        """The number of samples that a state says were delivered, if this plan would have delivered the same."""
        num_delivered, theirs = check_state(state)
        per_group = theirs.get("group")
        is_of_family = self.family is not None and theirs.get("view") == self.family
        if is_of_family and type(per_group) is int and per_group > 0:
            num_delivered, rest = divmod(num_delivered * self.group, per_group)
            if rest:
                raise PlanMismatchError(
                    f"the checkpoint was taken within a group, of which {per_group} samples make one; to go on with "
                    f"{self.view}, take one after a whole number of groups"
                )
            theirs = {**theirs, "group": self.group}
        check_parts(self.parts(num_delivered), theirs)
        return num_delivered

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "num_samples": self.num_samples,
            "data": self.data,
            "view": self.view,
            "seed": self.seed,
            "shuffle": shuffle_to_json(self.shuffle),
            "skips": [skip.to_json() for skip in self.skips],
            "group": self.group,
            "family": self.family,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Plan":
        try:
            if value["version"] != VERSION:
                raise StateError(f"the plan has version {value['version']!r}; this tokenfeed reads {VERSION}")
            for name, kind in (("num_samples", int), ("data", str), ("view", str), ("seed", int), ("group", int)):
                if type(value[name]) is not kind:
                    raise StateError(f"{name} of the plan is {str(value[name])[:80]!r}; expected {kind.__name__}")
            return cls(
                value["num_samples"],
                data=value["data"],
                view=value["view"],
                seed=value["seed"],
                shuffle=shuffle_from_json(value["shuffle"]),
                skips=[Skip.from_json(skip) for skip in value["skips"]],
                group=value["group"],
                family=value["family"],
            )
        except (TypeError, KeyError) as error:
            raise StateError(f"{value!r} describes no plan ({error})") from error

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
        order = f"seed {self.seed}" if self.shuffle else "in order"
        if isinstance(self.shuffle, Locality):
            order += f", {self.shuffle}"
        return f"Plan({self.num_samples:,} samples of {self.view}, {order}, {len(self.skips)} skips)"


def check_state(state: Any) -> tuple[int, Mapping[str, Any]]:
    """How many samples a state says were delivered, and the parts of the plan that delivered them."""
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict with version, samples and plan, not {type(state).__name__}")
    if state.get("version") != VERSION:
        raise StateError(f"the state has version {state.get('version')!r}; this tokenfeed takes {VERSION}")
    if "rows" in state and "samples" not in state:
        raise StateError("this is the state of a stream of text; a Loader has another")
    num_delivered, theirs = state.get("samples"), state.get("plan")
    if type(num_delivered) is not int or not 0 <= num_delivered < 1 << 62 or not isinstance(theirs, Mapping):
        raise StateError(f"the state says samples {num_delivered!r}, plan {theirs!r}; it is damaged")
    return num_delivered, theirs


def check_parts(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise where a checkpoint was made with other parts than ours; the error says which differ and which agree."""
    different = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    if different:
        same = [name for name in ours if name not in different]
        told = "; ".join(f"{name} {theirs.get(name)!r}, this plan has {ours.get(name)!r}" for name in different)
        agree = f"{', '.join(same)} agree" if same else "nothing agrees"
        raise PlanMismatchError(
            f"the checkpoint was made with {told} ({agree}). Resume with what it was made with, or start anew."
        )


def _with_indices(skip: Skip, view: View) -> Skip:
    if not skip.documents or skip.mask:
        return skip
    touched = view.samples_touching(skip.documents)
    if touched.size == 0 and not skip.indices:
        raise ArgumentError(f"{skip}: no sample touches these documents")
    return Skip(documents=skip.documents, indices=(*skip.indices, *touched.tolist()), at=skip.at)
