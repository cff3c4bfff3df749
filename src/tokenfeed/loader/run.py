"""The run file: an append-only record of what a run delivered, small enough to keep beside every checkpoint.

One JSON object a line: first the plan, then, at every start, resume or return to an earlier checkpoint, the step, the
samples delivered before it, the world size, the batch sizes and the time; the plan again whenever it has changed. What
step N delivered follows from the last line that begins at or before it.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, NotAStoreError, StateError
from tokenfeed.loader.steps import BatchSizes, rows_of
from tokenfeed.plan.plan import Plan, Trace
from tokenfeed.storage.local import read_bytes, writing

__all__ = ["Run", "RunFile", "Start"]


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
    plan: Plan


class Run:
    """What a run delivered, from its run file alone."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise NotAStoreError(f"there is no run file {path}")
        self.starts = _parse(read_bytes(self.path), str(path))

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

    def trace(self, step: int, *, rank: int | None = None) -> list[Trace]:
        """Where the rows of a step came from: (sample, epoch, index) each."""
        return self._governing(step).plan.trace(self.samples(step, rank=rank))

    def step_at(self, num_delivered: int) -> int:
        """The step that comes after so many samples were delivered."""
        for start in reversed(self.starts):
            if start.samples <= num_delivered:
                return start.step + start.batch_sizes.steps_between(start.samples, num_delivered, start.world_size)
        return 0


class RunFile:
    """Writes a run file. Lines are appended whole, and a line that a crash cut short is dropped by the next writer."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def begin(self, plan: Plan, num_delivered: int, world_size: int, batch_sizes: BatchSizes, stop: int | None) -> None:
        """Note that the run goes on from here."""
        known: Sequence[Start] = ()
        step = 0
        if self._path.exists():
            run = Run(self._path)
            known, step = run.starts, run.step_at(num_delivered)
        lines: list[dict[str, Any]] = []
        if not known or known[-1].plan != plan:
            lines.append({"plan": plan.to_json()})
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
    plan: Plan | None = None
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            if number + 1 == len(lines) or _was_cut(line):
                continue
            raise StateError(f"{path}, line {number + 1}: not valid JSON ({error})") from error
        try:
            if "plan" in fields:
                plan = Plan.from_json(fields["plan"])
                continue
            if plan is None:
                raise StateError(f"{path} does not begin with a plan")
            sizes = BatchSizes.from_json(fields["batch_sizes"])
            step, samples, world_size = fields["step"], fields["samples"], fields["world_size"]
            starts.append(Start(step, samples, world_size, sizes, fields["stop"], fields["time"], plan))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}, line {number + 1}: {error}") from error
    return starts


def _was_cut(line: bytes) -> bool:
    """Whether a crash may have ended this line early."""
    return line.startswith(b"{") and not line.endswith(b"}")
