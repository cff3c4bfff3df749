"""Documents, or samples of a view, and the rows of a run that deliver them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.plan.masks import Where, find_documents
from tokenfeed.plan.plan import Plan
from tokenfeed.runs.data import RunData
from tokenfeed.runs.legs import Leg
from tokenfeed.runs.trace import RunRow, are_masked
from tokenfeed.store.view import View
from tokenfeed.types import Ints

__all__ = ["Seen", "Sightings", "Wanted", "count_epochs", "find_rows"]

Parts: TypeAlias = Sequence[tuple[RunData, Sequence[Leg]]]
"""Legs by their plan, over its data; the plan of the last leg comes last."""

_END = 1 << 62
_NO_DOCUMENT = -1


@dataclass(frozen=True, slots=True)
class Seen(RunRow):
    """A row that delivers what was looked for, or is planned to."""

    document: int | None
    """Number of the document; None where a sample of the view was looked for."""
    masked: bool
    """Whether `loss_mask` leaves the document out of the loss."""


class Sightings(Sequence[Seen]):
    """Rows that deliver documents. Kept as arrays: a document of 10⁸ items is in 48,829 windows of 2,048."""

    def __init__(
        self,
        columns: Ints,
        names: Sequence[str],
        epochs: Mapping[str, list[int]],
        not_looked_at: Sequence[str],
        why: str,
    ) -> None:
        """`columns` are the fields of `Seen`, one array each, with a number in `names` for the source."""
        self._columns, self._names = columns, names
        self.epochs = epochs
        """The epochs that were looked at, by the name of the source."""
        self.not_looked_at = not_looked_at
        """What may hold more of them: later epochs, say."""
        self.why = why
        """Why there are none: no document has such a payload, or these epochs deliver none."""

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    @property
    def num_planned(self) -> int:
        """How many of them the run is not known to have delivered."""
        return int(self._columns[7].sum())

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Sightings(self._columns[:, place], self._names, self.epochs, self.not_looked_at, self.why)
        sample, epoch, index, source, step, rank, row, planned, back, start, document, masked = self._columns[
            :, place
        ].tolist()
        number = None if document == _NO_DOCUMENT else document
        state = bool(planned), bool(back), start, number, bool(masked)
        return Seen(sample, epoch, index, self._names[source], step, rank, row, *state)

    def to_json(self, most: int | None = None) -> dict[str, Any]:
        """The first `most` rows, and what was looked at."""
        return {
            "epochs": self.epochs,
            "not_looked_at": list(self.not_looked_at),
            "total": len(self),
            "num_planned": self.num_planned,
            "why": self.why,
            "rows": [asdict(each) for each in self[:most]],
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self[:4]))}{', …' if len(self) > 4 else ''}] ({len(self):,} rows)"


@dataclass(frozen=True)
class Wanted:
    """What is looked for: a document by its number or its payload, or a sample of the view by its number."""

    document: int | None
    index: int | None
    where: Where | None

    def check(self, view: View) -> None:
        """Refuse a number that the newest data does not have."""
        if self.index is not None and not 0 <= self.index < len(view):
            raise ArgumentError(f"index is {self.index:,}; the view has {len(view):,} samples")
        if self.document is not None:
            view.samples_touching([self.document])

    def find(self, view: View) -> tuple[Ints, Ints]:
        """(documents, samples): which samples of a view are it, or touch it; none where it came later."""
        if self.index is not None:
            found = np.array([self.index] if self.index < len(view) else [], np.int64)
            return np.full_like(found, _NO_DOCUMENT), found
        if self.document is not None:
            documents = [self.document] if view.span_table is None or self.document < len(view.span_table) else []
        else:
            assert self.where is not None
            documents = find_documents(view, self.where)
        touching = [view.samples_touching([each]) for each in documents]
        numbers = np.repeat(np.array(documents, np.int64), [each.size for each in touching])
        return numbers, np.concatenate([np.empty(0, np.int64), *touching])


def find_rows(parts: Parts, wanted: Wanted, source: str | None, asked: Sequence[int] | None) -> Sightings:
    """Every row in which legs deliver what is wanted, in the order of the steps.

    Without `asked`, the epochs that any leg reached, and the one under way.
    """
    if any(source in data.names for data, _ in parts):  # it may have been added on the way
        parts = [part for part in parts if source in part[0].names]
    chosen = [(data, legs, name) for data, legs in parts for name in _choose(data.plan, source, wanted)]
    looked_at = {name: range(count_epochs(parts, name)) if asked is None else asked for *_, name in chosen}
    epochs = {name: sorted(set(each)) for name, each in looked_at.items()}
    last, last_legs, name = chosen[-1]
    wanted.check(last.view(name))
    names = [name for *_, name in chosen]
    known: dict[Any, tuple[Ints, Ints]] = {}
    columns = [np.empty((12, 0), np.int64)]
    for number, (data, legs, name) in enumerate(chosen):
        view = data.view(name)
        key = view.identity, view.spec.sample
        if key not in known:
            known[key] = wanted.find(view)
        columns += _find_in(data.plan, legs, name, number, *known[key], epochs[name])
    rows = np.concatenate(columns, axis=1)
    rows = rows[:, np.lexsort((rows[10], rows[0], rows[4]))]
    not_looked_at = ["other epochs"] if asked is not None else list(_tell_rest(last, last_legs[-1].stop, epochs))
    first = min(leg.first_sample for _, legs in parts for leg in legs)
    if first:
        not_looked_at.append(f"samples before {first:,}, of which the run file tells nothing")
    has_none = wanted.where is not None and not any(documents.size for documents, _ in known.values())
    why = "no document has such a payload" if has_none else "no row of these epochs delivers it"
    return Sightings(rows, names, epochs, not_looked_at, "" if rows.size else why)


def _choose(plan: Plan, source: str | None, wanted: Wanted) -> list[str]:
    """The source of that name; without a name the only one, or all where payloads tell."""
    names = [each.name for each in plan.sources]
    return names if source is None and wanted.where is not None else [names[plan.source_number(source)]]


def count_epochs(parts: Parts, name: str) -> int:
    """Number of epochs of a source that legs have reached, with the one of its next sample."""
    longest = [(data.plan, max(legs, key=lambda leg: leg.reached)) for data, legs in parts if name in data.names]
    return max(_count_begun(plan, name, leg.reached, leg.stop) for plan, leg in longest)


def _count_begun(plan: Plan, name: str, num_samples: int, stop: int | None) -> int:
    """Number of epochs of a source in the first samples of a run, with the one of its next, if it has one."""
    number = plan.source_number(name)
    drawn = plan.ledger(num_samples)[number].samples
    samples = plan.shares.place(number, np.array([max(drawn - 1, 0), drawn]))
    epochs = plan.locate(samples[(samples >= 0) & (samples < (_END if stop is None else stop))])[1]
    return 1 + int(epochs.max(initial=0))


def _tell_rest(data: RunData, stop: int | None, epochs: Mapping[str, list[int]]) -> Iterator[str]:
    """The epochs that come after those that were looked at, if there are any before the end."""
    for name, looked_at in epochs.items():
        if name in data.names and (stop is None or _count_begun(data.plan, name, stop, stop) > len(looked_at)):
            yield f"epochs{f' of {name}' if len(epochs) > 1 else ''} from {len(looked_at)} on"


def _find_in(
    plan: Plan, legs: Sequence[Leg], name: str, number: int, documents: Ints, indices: Ints, epochs: Sequence[int]
) -> list[Ints]:
    """The columns of `Sightings` of the rows in which legs deliver samples of a source: O(rows found + legs)."""
    runs = [plan.find_all(indices, epoch, source=name) for epoch in epochs if indices.size]
    if not runs:
        return []
    samples = np.concatenate(runs)
    order = np.argsort(samples, kind="stable")
    again = np.tile([indices, documents], len(runs))  # once for each epoch
    columns = np.stack([samples, np.repeat(epochs, indices.size), *again])[:, order]
    found = []
    for leg in legs:
        low, high = np.searchsorted(columns[0], [leg.first_sample, _END if leg.stop is None else leg.stop])
        if low < high:
            given, epoch, index, document = columns[:, low:high]
            state = given >= leg.reached, leg.rolled_back, leg.number, document
            rows = given, epoch, index, number, *leg.place(given), *state, are_masked(plan, name, given, document)
            found.append(np.stack([np.broadcast_to(each, given.shape).astype(np.int64) for each in rows]))
    return found
