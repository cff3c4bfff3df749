"""The run file: an append-only record of what a run delivered, small enough to keep beside every checkpoint.

One JSON object a line. The first line holds the plan and where its data lies:

    {"kind": "run", "version": 2, "plan": {…}, "stores": {"": ["/data/store"]}}

At every start, resume or return to an earlier checkpoint, a line follows with the step, the samples delivered before
it, the world size, the batch sizes and the time; the plan again whenever it, or the place of its data, has changed. The
last line that begins at or before step N tells what step N delivered. The file does not tell how far the run got after
its last start: later steps are reported as they were planned.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenfeed.errors import NotAStoreError, StateError
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.state import VERSION, check_kind
from tokenfeed.plan.steps import BatchSizes
from tokenfeed.runs.history import Paths, Start, find_step
from tokenfeed.storage.local import read_bytes, reading, writing

__all__ = ["RunFile", "append_lines", "read_lines", "read_starts"]

_MOST_ROWS = 1 << 22
"""Limit on the rows of all ranks in one step; a run file that says more is damaged."""


class RunFile:
    """Writes a run file. Lines are appended whole, and a line that a crash cut short is dropped by the next writer."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def begin(
        self,
        plan: Plan,
        num_delivered: int,
        world_size: int,
        batch_sizes: BatchSizes,
        stop: int | None,
        *,
        stores: Paths | None = None,
    ) -> None:
        """Note that the run goes on from here. `stores` tells where its data lies."""
        with reading(str(self._path)):
            is_there = self._path.exists()
        known = read_starts(self._path) if is_there else []
        paths = {name: list(each) for name, each in (stores or {}).items()}
        lines: list[dict[str, Any]] = []
        if not known or known[-1].plan != plan or known[-1].stores != paths:
            lines.append({"kind": "run", "version": VERSION, "plan": plan.to_json(), "stores": paths})
        lines.append(
            {
                "step": find_step(known, num_delivered, plan),
                "samples": num_delivered,
                "world_size": world_size,
                "batch_sizes": batch_sizes.to_json(),
                "stop": stop,
                "time": round(time.time(), 3),
            }
        )
        append_lines(self._path, lines)


def append_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append lines to a run file, after the end of a line that a crash cut short."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    text = "\n" + text
            file.write(text.encode())


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, value) of the lines of a run file; lines that a crash cut short are left out."""
    lines = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) or _was_cut(line):
                continue
            raise StateError(f"{path}, line {number}: not valid JSON ({error})") from error
        yield number, value


def read_starts(path: Path) -> list[Start]:
    """The starts that a run file tells of, in order."""
    with reading(str(path)):
        is_there = path.is_file()
    if not is_there:
        raise NotAStoreError(f"there is no run file {path}")
    starts: list[Start] = []
    plan: Plan | None = None
    stores: Paths = {}
    for number, fields in read_lines(path):
        try:
            if "plan" in fields or "kind" in fields:
                plan, stores = _read_plan(fields)
            elif plan is None:
                raise StateError("the file does not begin with a plan; it is no run file")
            else:
                starts.append(_read_start(fields, plan, stores))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StateError(f"{path}, line {number}: {error}") from error
    return starts


def _read_plan(fields: Any) -> tuple[Plan, Paths]:
    if isinstance(fields, Mapping) and fields.get("kind") == "stream":
        raise StateError(
            "this is the run file of a stream, and cannot be traced: the rows of a stream do not follow from a plan. "
            "batch.documents says which documents a batch holds, when it is delivered"
        )
    fields = check_kind(fields, "run")
    stores = fields["stores"]
    if not isinstance(stores, Mapping) or not all(_is_paths(paths) for paths in stores.values()):
        raise StateError(f"stores are {str(stores)[:200]}; expected lists of paths by the name of the source")
    return Plan.from_json(fields["plan"]), stores


def _is_paths(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(path, str) for path in value)


def _read_start(fields: Mapping[str, Any], plan: Plan, stores: Paths) -> Start:
    sizes = BatchSizes.from_json(fields["batch_sizes"])
    step, samples = _count(fields, "step"), _count(fields, "samples")
    world_size = _count(fields, "world_size", least=1)
    stop = None if fields["stop"] is None else _count(fields, "stop")
    if sizes.largest * world_size > _MOST_ROWS:
        raise StateError(f"{sizes.largest * world_size:,} rows in a step; at most {_MOST_ROWS:,} are expected")
    return Start(step, samples, world_size, sizes, stop, float(fields["time"]), plan, stores)


def _count(fields: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """A whole number that kernels can count with."""
    value = fields[name]
    if type(value) is not int or not least <= value < 1 << 62:
        raise StateError(f"{name} is {str(value)[:80]}; expected a whole number from {least} to 2**62")
    return value


def _was_cut(line: bytes) -> bool:
    """Whether a crash may have ended this line early."""
    return line.startswith(b"{") and not line.endswith(b"}")
