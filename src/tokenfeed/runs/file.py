"""The run file: an append-only record of what a run delivered, small enough to keep beside every checkpoint.

One JSON object a line. The first line holds the plan and where its data lies:

    {"kind": "run", "version": 2, "plan": {…}, "stores": {"": ["/data/store"]}}

At every start, resume or return to an earlier checkpoint, and whenever the run is amended or resized, a line follows
with the training step, the samples delivered before it, the world size, the batch sizes, how many batches are a step,
and the time. A line `{"amend": [{"at": K, …}], "stores": {…}}` comes before it where the plan was amended, and the
first line again where it is another plan. The last start that begins at or before step N tells what step N delivers: an
amendment changes nothing that was delivered before it. A line `{"reached": K}` tells that K samples were delivered:
what comes later is planned. It is written at every `state_dict()`, when the loader is closed or collected, at the end
of the process, and while the run goes on: every second at first, and after 100 seconds whenever the run is 1% older. So
a run of four months has about 1,200 such lines, and a crash leaves at most 1% of its time unknown.

The file of a stream begins with `{"kind": "stream", …}`, and tells where it was started, on how many ranks, and over
what. Which documents a step delivered does not follow from it: that would take reading the text up to there.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, NotFoundError, StateError, TokenfeedError
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.state import VERSION, check_kind
from tokenfeed.plan.steps import BatchSizes, Stretch
from tokenfeed.storage.local import read_bytes, reading, writing
from tokenfeed.types import Bools, Ints

__all__ = ["Leg", "Paths", "RunFile", "Start", "StepRow", "find_legs", "find_step", "read_starts"]

Paths = Mapping[str, Sequence[str]]
"""Where the data of each source lay when the run began; the source of a run over one view has an empty name."""

_SHORTEST_PAUSE = 1.0  # seconds between two notes of a young run
_GROWTH = 0.01  # of its age, between two notes of an older one
_MOST_ROWS = 1 << 22
"""Limit on the rows of all ranks in one step; a run file that says more is damaged."""


@dataclass(frozen=True)
class StreamStart:
    """A start or resume: from `step` on, the run went on after `samples` samples, on so many ranks."""

    step: int
    samples: int
    world_size: int
    batch_sizes: BatchSizes
    stop: int | None
    """Number of samples at which a finite loader ends."""
    time: float
    reached: int
    """Number of samples known to be delivered before the next start."""
    accumulate: int = 1
    """Number of batches that are one training step."""

    @property
    def rows(self) -> BatchSizes:
        """Rows per rank and training step."""
        return self.batch_sizes.times(self.accumulate)


@dataclass(frozen=True, kw_only=True)
class Start(StreamStart):
    """A start of a run over stored data."""

    plan: Plan
    """The plan with all later amendments: they change nothing of what this start delivered."""
    stores: Paths


class RunFile:
    """Writes a run file. Lines are appended whole, and a line that a crash cut short is dropped by the next writer.

    Progress is noted only in the process that began the run, and only while its start is the last one in the file: what
    an earlier loader reached says nothing about a later start.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._process: int | None = None
        self._size = 0
        """Bytes of the file after our last line."""
        self._delivered = self._reached = 0
        self._began = self._due = 0.0
        self._starts: list[StreamStart] = []
        """Starts that the file tells of."""
        self._header: Any = None
        """What it said last of what the run is over, when it was read."""
        self._plan: Plan | None = None
        """The plan that we noted last."""

    def begin(
        self,
        what: Mapping[str, Any],
        num_delivered: int,
        world_size: int,
        batch_sizes: BatchSizes,
        *,
        stop: int | None = None,
        plan: Plan | None = None,
        step: int | None = None,
        accumulate: int = 1,
    ) -> None:
        """Note that a run goes on from here. `what` tells what it is over, beside a `plan`, which a stream has not.

        `step` is the training step that comes next, where the caller knows it and the file may not.
        """
        with reading(str(self._path)):
            is_there = self._path.exists()
        if not is_there or self._process != os.getpid() or not self._is_last():
            lines = _read(self._path, "stream" if plan is None else "run") if is_there else []
            self._starts = [start for start, _ in lines]
            self._header, self._plan = lines[-1][1] if lines else None, None
        start = {
            "step": find_step(self._starts, num_delivered) if step is None else step,
            "samples": num_delivered,
            "world_size": world_size,
            "batch_sizes": batch_sizes.to_json(),
            **({} if accumulate == 1 else {"accumulate": accumulate}),
            "stop": stop,
            "time": round(time.time(), 3),
        }
        self._append([*self._tell(what, plan, num_delivered), start])
        self._starts.append(_read_start(start))
        self._plan = plan
        self._process = os.getpid()
        self._delivered = self._reached = num_delivered
        self._began = time.monotonic()
        self._due = self._began + _SHORTEST_PAUSE

    def _tell(self, what: Mapping[str, Any], plan: Plan | None, num_delivered: int) -> list[dict[str, Any]]:
        """The lines that must precede a start: none, amendments, or what the run is over."""
        header = {"kind": "run", "version": VERSION, "plan": None if plan is None else plan.to_json(), **what}
        if plan is None:
            header = {"kind": "stream", "version": VERSION, **what}
            return [] if self._header == json.loads(json.dumps(header)) else [header]
        before = self._header if self._plan is None else None
        if self._plan is not None:
            new = plan.follows(self._plan)
        else:
            new = None if before is None else plan.follows_json(before["plan"])
        same_stores = before is None or before["stores"] == what["stores"]
        if new == () and same_stores:
            return []
        if new and all(plan.begins(each) >= num_delivered for each in new):
            return [{"amend": [each.to_json() for each in new], **what}]
        return [header]

    def deliver(self, num_delivered: int) -> None:
        """So many samples were delivered: a look at the clock, and a note of 40 µs where one is due."""
        self._delivered = num_delivered
        now = time.monotonic()
        if now >= self._due:
            self._due = now + max(_SHORTEST_PAUSE, _GROWTH * (now - self._began))
            with suppress(TokenfeedError):  # a full disk must not cost a batch; checkpoints raise it
                self.note()

    def note(self) -> None:
        """Note how many samples were delivered, unless it is known."""
        if self._delivered > self._reached and self._process == os.getpid() and self._is_last():
            self._append([{"reached": self._delivered}])
            self._reached = self._delivered
            self._starts[-1] = replace(self._starts[-1], reached=self._reached)

    def _is_last(self) -> bool:
        """Whether nobody else has written to the file, or removed it."""
        with reading(str(self._path)):
            return self._path.exists() and self._path.stat().st_size == self._size

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":  # a crash cut this line short
                        text = "\n" + text
                file.write(text.encode())
                file.flush()
                self._size = file.seek(0, 2)


def read_starts(path: Path) -> list[Start]:
    """The starts that the file of a run tells of, in order."""
    with reading(str(path)):
        is_there = path.is_file()
    if not is_there:
        raise NotFoundError(f"there is no run file {path}")
    plans: dict[int, Plan] = {}
    starts = []
    for start, header in _read(path, "run", check=True):
        if id(header) not in plans:
            try:
                plans[id(header)] = Plan.from_json(header["plan"])
            except (ArgumentError, KeyError, OverflowError, RecursionError) as error:
                raise StateError(f"{path}: {error}") from error
        starts.append(Start(**vars(start), plan=plans[id(header)], stores=header["stores"]))
    return starts


def _read(path: Path, kind: str, *, check: bool = False) -> list[tuple[StreamStart, Any]]:
    """Every start, and what the run is over then: for a run, with all amendments that follow without a break."""
    starts: list[tuple[StreamStart, Any]] = []
    header: Any = None
    for number, fields in _read_lines(path):
        try:
            if "amend" in fields:
                _check_stores(fields["stores"])
                header["plan"]["amendments"] += fields["amend"]
                header["stores"] = fields["stores"]
            elif "plan" in fields or "kind" in fields:
                header = _check_header(fields, kind)
                if check and kind == "run":
                    Plan.from_json(header["plan"])
            elif header is None:
                raise StateError("the file does not begin with a plan; it is no run file")
            elif "reached" in fields:
                start, held = starts[-1]
                starts[-1] = replace(start, reached=max(start.reached, _count(fields, "reached"))), held
            else:
                starts.append((_read_start(fields), header))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise StateError(f"{path}, line {number}: {error}") from error
    return starts


def _read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, value) of every line; lines that a crash cut short are left out."""
    lines = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) or (line.startswith(b"{") and not line.endswith(b"}")):
                continue
            raise StateError(f"{path}, line {number}: not valid JSON ({error})") from error
        yield number, value


def _check_header(fields: Any, kind: str) -> Any:
    if kind == "run" and isinstance(fields, Mapping) and fields.get("kind") == "stream":
        raise StateError(
            "this is the run file of a stream, and cannot be traced: the rows of a stream do not follow from a plan. "
            "batch.documents says which documents a batch holds, when it is delivered"
        )
    header = check_kind(fields, kind)
    if kind == "run":
        _check_stores(header["stores"])
    return header


def _check_stores(stores: Any) -> None:
    if not isinstance(stores, Mapping) or not all(
        isinstance(paths, list) and all(isinstance(path, str) for path in paths) for paths in stores.values()
    ):
        raise StateError(f"stores are {str(stores)[:200]}; expected lists of paths by the name of the source")


def _read_start(fields: Mapping[str, Any]) -> StreamStart:
    sizes = BatchSizes.from_json(fields["batch_sizes"])
    step, samples = _count(fields, "step"), _count(fields, "samples")
    world_size = _count(fields, "world_size", least=1)
    stop = None if fields["stop"] is None else _count(fields, "stop")
    accumulate = _count({"accumulate": 1, **fields}, "accumulate", least=1)
    if sizes.largest * world_size * accumulate > _MOST_ROWS:
        told = f"{sizes.largest * world_size * accumulate:,} rows in a step"
        raise StateError(f"{told}; at most {_MOST_ROWS:,} are expected")
    return StreamStart(step, samples, world_size, sizes, stop, float(fields["time"]), samples, accumulate)


def _count(fields: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """A whole number that kernels can count with."""
    value = fields[name]
    if type(value) is not int or not least <= value < 1 << 62:
        raise StateError(f"{name} is {str(value)[:80]}; expected a whole number from {least} to 2**62")
    return value


class StepRow(NamedTuple):
    """The row that delivers a sample."""

    step: int
    rank: int
    row: int
    """Row in the batch of that rank."""


class Leg:
    """Steps [first_step, stop_step) of a run, as they were finally run: by one start that no later one overrides."""

    def __init__(self, start: Start, stop_step: int | None) -> None:
        self.start = start
        self.first_step = start.step
        self.stop_step = stop_step
        """None for the last leg."""

    @cached_property
    def stop(self) -> int | None:
        """Number of samples delivered when it ends; None without end."""
        if self.stop_step is None:
            return self.start.stop
        start = self.start
        end = start.rows.after(start.samples, self.stop_step - start.step, start.world_size)
        return end if start.stop is None else min(end, start.stop)

    @property
    def reached(self) -> int:
        """Number of samples known to be delivered; those of the last leg that come later are planned."""
        return self.start.reached if self.stop_step is None or self.stop is None else self.stop

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Its parts of equal batch size. O(stages of the batch size)."""
        found = self.start.rows.stretches(self.start.samples, self.start.world_size)
        found = [each._replace(step=self.first_step + each.step) for each in found]
        return [each for each in found if self.stop_step is None or each.step < self.stop_step]

    def holds(self, samples: Ints) -> Bools:
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


def find_legs(starts: Sequence[Start]) -> list[Leg]:
    """The starts that no later one overrides at once, each with the steps that it has in the end."""
    legs: list[Leg] = []
    for start in reversed(starts):
        stop_step = legs[-1].first_step if legs else None
        if stop_step is None or start.step < stop_step:
            legs.append(Leg(start, stop_step))
    return legs[::-1]


def find_step(starts: Sequence[StreamStart], num_delivered: int) -> int:
    """The training step that comes after so many samples; 0 where no start lies before."""
    for start in reversed(starts):
        if start.samples <= num_delivered:
            return start.step + start.rows.steps_between(start.samples, num_delivered, start.world_size)
    return 0
