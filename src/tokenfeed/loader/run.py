"""The run file: an append-only record of what a run delivered, small enough to keep beside every checkpoint.

One JSON object a line: first the plan and where its data lies, then, at every start, resume or return to an earlier
checkpoint, the step, the samples delivered before it, the world size, the batch sizes and the time; the plan again
whenever it, or the place of its data, has changed. What step N delivered follows from the last line that begins at or
before it. How far the run got after its last start is not told: steps from there on are as they were planned.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, NotAStoreError, StateError
from tokenfeed.loader.provenance import (
    AnyPlan,
    Hints,
    Origins,
    Places,
    RowTrace,
    Sightings,
    Where,
    find_documents,
    find_samples,
    trace_rows,
)
from tokenfeed.loader.steps import BatchSizes, rows_of
from tokenfeed.plan.mixture import MixturePlan
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.skips import Ints
from tokenfeed.storage.local import read_bytes, reading, writing

__all__ = ["AnyPlan", "Leg", "Place", "Run", "RunFile", "Start"]

_MOST_ROWS = 1 << 22
"""Of all ranks in one step, in a run file that is to be believed."""


@dataclass(frozen=True)
class Start:
    """From `step` on, the run went on behind `samples` samples, on so many ranks."""

    step: int
    samples: int
    world_size: int
    batch_sizes: BatchSizes
    stop: int | None
    """Where a finite loader ends."""
    time: float
    plan: AnyPlan
    stores: Hints = field(default_factory=dict)
    """Where the data of each source lay."""


class Place(NamedTuple):
    """Where a sample was delivered."""

    step: int
    rank: int
    row: int
    """In the batch of that rank."""


class Stretch(NamedTuple):
    """From `step` on, behind `samples` samples, every step has so many rows on each rank."""

    step: int
    samples: int
    batch_size: int


class Leg:
    """Steps [first_step, stop_step) of a run, as they were finally run: by one start that no later one overrides."""

    def __init__(self, start: Start, stop_step: int | None) -> None:
        self.start = start
        self.first_step = start.step
        self.stop_step = stop_step
        """None for the last leg."""

    @cached_property
    def stop(self) -> int | None:
        """The samples delivered when it ends; None without end."""
        start = self.start
        if self.stop_step is None:
            return start.stop
        end = start.batch_sizes.after(start.samples, self.stop_step - start.step, start.world_size)
        return end if start.stop is None else min(end, start.stop)

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Its parts of equal batch size. O(stages of the batch size)."""
        world_size, stages = self.start.world_size, self.start.batch_sizes.to_json()
        step, samples = self.start.step, self.start.samples
        found = []
        for (_, size), (change, _) in zip(stages, [*stages[1:], (None, None)], strict=True):
            if change is not None and samples >= change:
                continue
            found.append(Stretch(step, samples, size))
            if change is not None:
                steps = -(-(change - samples) // (size * world_size))
                step, samples = step + steps, samples + steps * size * world_size
        return [each for each in found if self.stop_step is None or each.step < self.stop_step]

    def holds(self, samples: Ints) -> Any:
        """Which samples of the run it delivers."""
        inside = samples >= self.start.samples
        return inside if self.stop is None else inside & (samples < self.stop)

    def place(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """(steps, ranks, rows) of samples that it delivers."""
        first_steps, begins, sizes = np.array(self.stretches, np.int64).T
        which = np.searchsorted(begins, samples, side="right") - 1
        steps, within = np.divmod(samples - begins[which], sizes[which] * self.start.world_size)
        rows, ranks = np.divmod(within, self.start.world_size)
        return first_steps[which] + steps, ranks, rows


class Run:
    """What a run delivered, from its run file alone; the stores are needed for what is in the rows."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with reading(str(path)):
            is_there = self.path.is_file()
        if not is_there:
            raise NotAStoreError(f"there is no run file {path}")
        self.starts = _parse(read_bytes(self.path), str(path))
        self._opened: dict[Any, Any] = {}

    @cached_property
    def legs(self) -> list[Leg]:
        """The starts that were not overridden at once by a later one, each with the steps that it has in the end."""
        legs: list[Leg] = []
        for start in reversed(self.starts):
            stop_step = legs[-1].first_step if legs else None
            if stop_step is None or start.step < stop_step:
                legs.append(Leg(start, stop_step))
        return legs[::-1]

    def _origins(self, start: Start, stores: Places | None) -> Origins:
        return Origins(start.plan, start.stores, stores, self._opened)

    def _governing(self, step: int) -> Start:
        """The start that step `step` belongs to: a later line overrides an earlier one from its step on."""
        for start in reversed(self.starts):
            if start.step <= step:
                return start
        raise ArgumentError(f"{self.path} has no step {step}")

    def samples(self, step: int, *, rank: int | None = None) -> list[int]:
        """The samples of the run that a step delivered: of one rank row by row, or of all ranks in order."""
        start = self._governing(step)
        begin = start.batch_sizes.after(start.samples, step - start.step, start.world_size)
        size = start.batch_sizes.at(begin)
        if rank is not None and not 0 <= rank < start.world_size:
            raise ArgumentError(f"step {step} ran on {start.world_size} ranks; there was no rank {rank}")
        if start.stop is not None and begin >= start.stop:
            raise ArgumentError(f"{self.path} has no step {step}: the run ended after {start.stop:,} samples")
        if rank is None:
            samples = list(range(begin, begin + size * start.world_size))
        else:
            samples = [int(sample) for sample in rows_of(begin, size, rank, start.world_size)]
        return [sample for sample in samples if start.stop is None or sample < start.stop]

    def trace(self, step: int, *, rank: int | None = None, stores: Places | None = None) -> list[RowTrace]:
        """Where the rows of a step came from: of one rank row by row, or of all ranks in the order of the run.

        Samples, epochs and indices follow from the run file. Shards, documents and payloads are looked up in the stores
        when they are asked for: where they were when the run began, or where `stores` says, by the name of the source,
        or alone for a run over one view. A store that is not what the run was over is an error.
        """
        start = self._governing(step)
        samples = self.samples(step, rank=rank)
        if rank is None:
            rows, ranks = np.divmod(np.arange(len(samples)), start.world_size)
        else:
            rows, ranks = np.arange(len(samples)), np.full(len(samples), rank)
        return trace_rows(self._origins(start, stores), samples, ranks.tolist(), rows.tolist())

    def place(self, sample: int) -> Place:
        """The step, rank and row of sample k, the inverse of `samples`. O(starts + stages of the batch size).

        A sample that was delivered again, after a return to an earlier checkpoint, is where it came last.
        """
        numbers = np.array([sample])
        for leg in reversed(self.legs):
            if leg.holds(numbers)[0]:
                return Place(*(int(each[0]) for each in leg.place(numbers)))
        raise ArgumentError(f"{self.path} has no sample {sample}: {self._tell_range()}")

    def _tell_range(self) -> str:
        if not self.legs:
            return "nothing was started"
        stop = self.legs[-1].stop
        end = "has no end" if stop is None else f"ends with sample {stop - 1:,}"
        return f"it begins with sample {self.legs[0].start.samples:,} and {end}"

    def find(
        self,
        document: int | None = None,
        *,
        source: str | None = None,
        epochs: Sequence[int] = range(1),
        where: Where | None = None,
        stores: Places | None = None,
    ) -> Sightings:
        """Every row, in the order of the steps, in which a document is delivered in some epochs (of its source).

        The document is named by its number in the store; or by its payload, `where={"url": "…"}` or a function of the
        payload, which reads all payloads of the `source`, or of all sources. Otherwise the cost is that of the rows
        found: what is not looked for is not looked at. `stores` as for `trace`.

        Rows are those that `trace` tells: of steps that were run several times, the last. Those after the last start
        are reported whether the run has got there or not, which its file does not tell.
        """
        if (document is None) == (where is None):
            raise ArgumentError("which document? Give its number, or where=… to find it by its payload")
        by_plan: dict[int, list[Leg]] = {}
        for leg in self.legs:
            by_plan.setdefault(id(leg.start.plan), []).append(leg)
        parts = [(self._origins(legs[0].start, stores), legs) for legs in by_plan.values()]
        if any(source in origins.names for origins, _ in parts):  # it may have been added on the way
            parts = [part for part in parts if source in part[0].names]
        touching: dict[tuple[str, str], list[tuple[int, Ints]]] = {}
        names: list[str | None] = []
        found = [np.empty((8, 0), np.int64)]
        for origins, legs in parts:
            for name in origins.choose(source, one=document is not None):
                identity = origins.identity(name)
                if identity not in touching:
                    touching[identity] = list(_touching(origins.view(name), origins.table(name), document, where))
                found += _find_rows(legs, name, touching[identity], epochs, len(names))
                names.append(name)
        rows = np.concatenate(found, axis=1)
        return Sightings(rows[:, np.lexsort((rows[6], rows[0], rows[1]))], names)

    def step_at(self, num_delivered: int, *, plan: AnyPlan | None = None) -> int:
        """The step that comes after so many samples (of that plan) were delivered."""
        for start in reversed(self.starts):
            delivered = num_delivered if plan is None else _recount(num_delivered, plan, start.plan)
            if start.samples <= delivered:
                return start.step + start.batch_sizes.steps_between(start.samples, delivered, start.world_size)
        return 0


class RunFile:
    """Writes a run file. Lines are appended whole, and a line that a crash cut short is dropped by the next writer."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def begin(
        self,
        plan: AnyPlan,
        num_delivered: int,
        world_size: int,
        batch_sizes: BatchSizes,
        stop: int | None,
        *,
        stores: Hints | None = None,
    ) -> None:
        """Note that the run goes on from here. `stores` tells where its data lies."""
        known: Sequence[Start] = ()
        step = 0
        with reading(str(self._path)):
            is_there = self._path.exists()
        if is_there:
            run = Run(self._path)
            known, step = run.starts, run.step_at(num_delivered, plan=plan)
        hints = {name: list(paths) for name, paths in (stores or {}).items()}
        lines: list[dict[str, Any]] = []
        if not known or known[-1].plan != plan or known[-1].stores != hints:
            lines.append({"plan": plan.to_json(), "stores": hints})
        lines.append(
            {
                "step": step,
                "samples": num_delivered,
                "world_size": world_size,
                "batch_sizes": batch_sizes.to_json(),
                "stop": stop,
                "time": round(time.time(), 3),
            }
        )
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":
                        text = "\n" + text
                file.write(text.encode())


def _parse(data: bytes, path: str) -> list[Start]:
    starts: list[Start] = []
    plan: AnyPlan | None = None
    stores: Hints = {}
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number + 1 == len(lines) or _was_cut(line):
                continue
            raise StateError(f"{path}, line {number + 1}: not valid JSON ({error})") from error
        try:
            if "plan" in fields:
                plan, stores = _plan_from_json(fields["plan"]), _hints_from_json(fields.get("stores"))
                continue
            if plan is None:
                raise StateError(f"{path} does not begin with a plan")
            sizes = BatchSizes.from_json(fields["batch_sizes"])
            step, samples = _count(fields, "step"), _count(fields, "samples")
            world_size = _count(fields, "world_size", least=1)
            stop = None if fields["stop"] is None else _count(fields, "stop")
            if sizes.largest * world_size > _MOST_ROWS:
                raise StateError(f"{sizes.largest * world_size:,} rows in a step; at most {_MOST_ROWS:,} are expected")
            starts.append(Start(step, samples, world_size, sizes, stop, float(fields["time"]), plan, stores))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StateError(f"{path}, line {number + 1}: {error}") from error
    return starts


def _count(fields: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """A whole number that kernels can count with."""
    value = fields[name]
    if type(value) is not int or not least <= value < 1 << 62:
        raise StateError(f"{name} is {str(value)[:80]}; expected a whole number from {least} to 2**62")
    return value


def _plan_from_json(value: Any) -> AnyPlan:
    return MixturePlan.from_json(value) if "schedule" in value else Plan.from_json(value)


def _hints_from_json(value: Any) -> Hints:
    """Run files of before have none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(paths, list) and all(isinstance(path, str) for path in paths) for paths in value.values()
    ):
        raise StateError(f"stores are {value!r}; expected lists of paths by the name of the source")
    return value


def _recount(num_delivered: int, plan: AnyPlan, other: AnyPlan) -> int:
    """How many samples of another plan, of windows of another length over the same groups, are so many of this one."""
    if isinstance(plan, Plan) and isinstance(other, Plan) and None is not plan.family == other.family:
        return num_delivered * other.group // plan.group
    return num_delivered


def _touching(view: Any, table: str, document: int | None, where: Where | None) -> Iterator[tuple[int, Ints]]:
    """(document, samples that it is part of) for every document that is looked for."""
    if document is not None:
        yield document, view.samples_touching([document])
    elif where is not None:
        for number in find_documents(view._data.spans[table], where):
            yield number, view.samples_touching([number])


def _find_rows(
    legs: Sequence[Leg], source: str | None, touching: Sequence[tuple[int, Ints]], epochs: Sequence[int], number: int
) -> Iterator[Ints]:
    """Where legs with one plan deliver the samples of documents: the columns of `Sightings`."""
    if not touching:
        return
    indices = np.concatenate([samples for _, samples in touching])
    documents = np.repeat([document for document, _ in touching], [samples.size for _, samples in touching])
    for epoch in epochs:
        samples = find_samples(legs[0].start.plan, source, indices, epoch)
        for leg in legs:
            held = leg.holds(samples)
            same = np.full((2, np.count_nonzero(held)), [[epoch], [number]])
            places = leg.place(samples[held])
            yield np.stack([samples[held], *places, same[0], indices[held], documents[held], same[1]])


def _was_cut(line: bytes) -> bool:
    """Whether a crash may have ended this line early."""
    return line.startswith(b"{") and not line.endswith(b"}")
