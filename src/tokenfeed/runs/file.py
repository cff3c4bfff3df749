"""The run file: an append-only record of what a run delivered, small enough to keep beside every checkpoint.

One JSON object a line. The first line holds the plan and where its data lies:

    {"kind": "run", "version": 2, "plan": {…}, "stores": {"": ["/data/store"]}}

At every start, resume or return to an earlier checkpoint, and whenever the run is amended or resized, a line follows
with the training step, the samples delivered before it, the world size, the batch size (or token budget, and how
ranks were balanced), how many batches are a step, and the time. A line `{"amend": [{"at": K, …}], "stores": {…}}` comes
before it where the plan was amended, and the first line again where it is another plan. The last start that begins at
or before step N tells what step N delivers: an amendment changes nothing that was delivered before it. A start that
went back before amendments, and left them behind, says where they began: "left_behind": [K, …]. A line
`{"reached": K}` tells that K samples were delivered: what comes later is planned. It is written when the loader is
closed or collected, at the end of the process, and while the run goes on: every minute at first, and after 100 minutes
whenever the run is 1% older. So a run of four months has about 850 such lines, and a crash leaves at most a minute, or
1% of its time, unknown. Under a token budget such a line has the next step, too: where a step begins is found by
walking from the nearest line on, over lengths alone.

The file of a stream begins with `{"kind": "stream", …}`, and tells where it was started, on how many ranks, and over
what. Which documents a step delivered does not follow from it: that would take reading the text up to there.
"""

import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenfeed.errors import NotFoundError, StateError, TokenfeedError, whole
from tokenfeed.plan.dealing import Step, StepRule, TokenCounts
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.state import VERSION, check_kind
from tokenfeed.plan.steps import count_steps
from tokenfeed.storage.local import read_bytes, reading, writing

__all__ = ["Paths", "RunFile", "Start", "StreamStart", "Trail", "find_step", "read_starts"]

Paths = Mapping[str, Sequence[str]]
"""Where the data of each source lay when the run began; the source of a run over one view has an empty name."""

_SHORTEST_PAUSE = 60.0  # seconds between two notes of a young run
_GROWTH = 0.01  # of its age, between two notes of an older one
_MOST_ROWS = 1 << 22
"""Limit on the rows of all ranks in one step; a run file that says more is damaged."""
_MOST_TOKENS = 1 << 32


@dataclass(frozen=True)
class StreamStart:
    """A start or resume: from `step` on, the run went on after `samples` samples, on so many ranks."""

    step: int
    samples: int
    world_size: int
    rule: StepRule
    stop: int | None
    """Number of samples at which a finite loader ends."""
    time: float
    reached: int
    """Number of samples known to be delivered before the next start."""
    marks: list[tuple[int, int]]
    """(step, samples before it) of steps under a token budget, in order; the first is that of the start."""
    left_behind: tuple[int, ...] = ()
    """Samples at which the amendments begin that it left behind: it went back to a checkpoint before them."""


@dataclass(frozen=True, kw_only=True)
class Start(StreamStart):
    """A start of a run over stored data."""

    plan: Plan
    """The plan with all later amendments: they change nothing of what this start delivered and was not rolled back."""
    stores: Paths
    known: tuple[int, Paths]
    """Number of amendments, and where the data lay, when it began."""

    @property
    def as_begun(self) -> "Start":
        """The start with the plan as it was then: what was rolled back was delivered by it."""
        count, stores = self.known
        return replace(self, plan=self.plan.first(count), stores=stores)


class RunFile:
    """Writes a run file. Lines are appended whole, and a line that a crash cut short is dropped by the next writer.

    Progress is noted only in the process that began the run, and only while its start is the last one in the file: what
    an earlier loader reached says nothing about a later start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: int | None = None
        self._size = 0
        """Bytes of the file after our last line."""
        self._delivered = self._reached = self._step = 0
        self._began = self._due = 0.0
        self._starts: list[StreamStart] = []
        """Starts that the file tells of."""
        self._told: tuple[Plan | None, Any] = None, None
        """Its plan, and what it said last of what the run is over."""

    def begin(
        self,
        what: Mapping[str, Any],
        num_delivered: int,
        world_size: int,
        rule: StepRule,
        *,
        stop: int | None = None,
        plan: Plan | None = None,
        step: int | None = None,
        left_out: int | None = None,
    ) -> None:
        """Note that a run goes on from here. `what` tells what it is over, beside a `plan`, which a stream has not.

        `step` is the training step that comes next, where the caller knows it and the file may not. `left_out` is the
        first sample that is left out before this one.
        """
        with reading(str(self._path)):
            is_there = self._path.exists()
        if not is_there or self._process != os.getpid() or not self._is_last():
            lines = _read(self._path, "stream" if plan is None else "run")[0] if is_there else []
            self._starts, self._told = [start for start, *_ in lines], (None, None)
            if lines:
                header = lines[-1][1]
                before = None if plan is None else _read_plan(self._path, header)
                ours = {"kind", "version", "line", *(() if plan is None else ["plan"])}
                self._told = before, {name: each for name, each in header.items() if name not in ours}
        if step is None:
            step = find_step(self._starts, num_delivered if left_out is None else left_out, plan)
        start = {
            "step": step,
            "samples": num_delivered,
            "world_size": world_size,
            **rule.to_json(),
            "stop": stop,
            "time": round(time.time(), 3),
        }
        before, _ = self._told
        if plan is not None and before is not None and (behind := plan.left_behind(before)):
            start["left_behind"] = behind
        told = json.loads(json.dumps(what))
        self._append([*self._tell(told, plan, num_delivered), start])
        self._starts.append(_read_start(start))
        self._told = plan, told
        self._process = os.getpid()
        self._delivered = self._reached = num_delivered
        self._step = self._starts[-1].step
        self._began = time.monotonic()
        self._due = self._began + _SHORTEST_PAUSE

    def _tell(self, what: Mapping[str, Any], plan: Plan | None, num_delivered: int) -> list[dict[str, Any]]:
        """The lines that must precede a start: none, amendments, or what the run is over."""
        before, said = self._told
        if plan is None:
            return [] if said == what else [{"kind": "stream", "version": VERSION, **what}]
        new = None if before is None else plan.follows(before)
        if new == () and said == what:
            return []
        if new and all(each.at >= num_delivered for each in new):
            return [{"amend": [each.to_json() for each in new], **what}]
        return [{"kind": "run", "version": VERSION, "plan": plan.to_json(), **what}]

    def deliver(self, num_delivered: int) -> None:
        """So many samples were delivered: a look at the clock, and a note of 40 µs where one is due."""
        self._step += num_delivered > self._delivered  # a step under a token budget has at least one sample
        self._delivered = num_delivered
        now = time.monotonic()
        if now >= self._due:
            self._due = now + max(_SHORTEST_PAUSE, _GROWTH * (now - self._began))
            with suppress(TokenfeedError):  # a full disk must not cost a batch; `close` raises it
                self.note()

    def note(self) -> None:
        """Note how many samples were delivered, unless it is known."""
        if self._delivered > self._reached and self._process == os.getpid() and self._is_last():
            start = self._starts[-1]
            told = {"reached": self._delivered}
            if start.rule.by_tokens:
                told["step"] = self._step
                start.marks.append((self._step, self._delivered))
            self._append([told])
            self._reached = self._delivered
            self._starts[-1] = replace(start, reached=self._reached)

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
    lines, headers = _read(path, "run")
    plans = {id(header): _read_plan(path, header) for header in headers}
    return [
        Start(**vars(start), plan=plans[id(header)], stores=header["stores"], known=known)
        for start, header, known in lines
    ]


def _read_plan(path: Path, header: Mapping[str, Any]) -> Plan:
    try:
        return Plan.from_json(header["plan"])
    except (TokenfeedError, KeyError, OverflowError, RecursionError) as error:
        raise StateError(f"{path}, line {header['line']}: {error}") from error


def _read(path: Path, kind: str) -> tuple[list[tuple[StreamStart, Any, Any]], list[Any]]:
    """Every start, and what the run is over: for a run, with all amendments that follow without a break, and as known
    when it began. Then all that the file says of what the run is over.
    """
    starts: list[tuple[StreamStart, Any, Any]] = []
    headers: list[Any] = []
    header: Any = None
    for number, fields in _read_lines(path):
        try:
            if "amend" in fields:
                _check_stores(fields["stores"])
                header["plan"]["amendments"] += fields["amend"]
                header["stores"] = fields["stores"]
            elif "plan" in fields or "kind" in fields:
                header = {**_check_header(fields, kind), "line": number}
                headers.append(header)
            elif header is None:
                raise StateError("the file does not begin with a plan; it is no run file")
            elif "reached" in fields:
                start, *held = starts[-1]
                if start.rule.by_tokens:
                    start.marks.append(_next_mark(fields, start.marks[-1]))
                starts[-1] = replace(start, reached=max(start.reached, _count(fields, "reached"))), *held
            else:
                known = (len(header["plan"]["amendments"]), header["stores"]) if kind == "run" else None
                starts.append((_read_start(fields), header, known))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise StateError(f"{path}, line {number}: {error}") from error
    return starts, headers


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
    rule = StepRule.from_json(fields)
    step, samples = _count(fields, "step"), _count(fields, "samples")
    world_size = _count(fields, "world_size", least=1)
    stop = None if fields["stop"] is None else _count(fields, "stop")
    rows, most = rule.rows * world_size, _MOST_TOKENS if rule.by_tokens else _MOST_ROWS
    if rows > most:
        what = "tokens" if rule.by_tokens else "rows"
        raise StateError(f"{rows:,} {what} in a step; at most {most:,} are expected")
    behind = tuple(_count({"left_behind": each}, "left_behind") for each in fields.get("left_behind", ()))
    marks = [(step, samples)]
    return StreamStart(step, samples, world_size, rule, stop, float(fields["time"]), samples, marks, behind)


def _next_mark(fields: Mapping[str, Any], last: tuple[int, int]) -> tuple[int, int]:
    step, samples = _count(fields, "step"), _count(fields, "reached")
    if not 0 <= step - last[0] <= samples - last[1]:
        raise StateError(f"step {step:,} after {samples:,} samples cannot follow step {last[0]:,} after {last[1]:,}")
    return step, samples


def _count(fields: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """A whole number that kernels can count with."""
    return whole(name, fields[name], least, 62, StateError)


class Trail:
    """Where the steps of a start begin, under a token budget: found from the nearest mark, and remembered."""

    def __init__(self, start: StreamStart, counts: TokenCounts) -> None:
        self._marks = start.marks
        self._walk_from = partial(start.rule.walk, stop=start.stop, world_size=start.world_size, counts=counts)
        self._walks: dict[int, tuple[list[int], Iterator[Step]]] = {}

    def begin(self, step: int) -> int:
        """Samples delivered before a step; after the last step, all."""
        first, _ = mark = self._marks[bisect_right(self._marks, step, key=lambda each: each[0]) - 1]
        known = self._extend(mark, lambda known: len(known) > step - first)
        return known[min(step - first, len(known) - 1)]

    def find(self, sample: int) -> tuple[int, int]:
        """The step that delivers a sample, and the samples before it."""
        first, _ = mark = self._marks[bisect_right(self._marks, sample, key=lambda each: each[1]) - 1]
        known = self._extend(mark, lambda known: known[-1] > sample)
        place = bisect_right(known, sample) - 1
        return first + place, known[place]

    def _extend(self, mark: tuple[int, int], is_enough: Callable[[list[int]], bool]) -> list[int]:
        """Samples before the steps from a mark on: walk until that is enough, or the run ends. 3 µs for a step, and 0.1
        for a sample.
        """
        known, steps = self._walks.setdefault(mark[0], ([mark[1]], self._walk_from(mark[1])))
        while not is_enough(known) and (step := next(steps, None)) is not None:
            known.append(step.stop)
        return known


def find_step(starts: Sequence[StreamStart], num_delivered: int, plan: Plan | None = None) -> int:
    """The training step that comes after so many samples; 0 where no start lies before.

    `plan` is over views whose lengths tell, under a token budget.
    """
    for start in reversed(starts):
        if start.samples <= num_delivered:
            if start.rule.by_tokens:
                assert plan is not None
                step, begin = Trail(start, TokenCounts(plan)).find(num_delivered)
                return step + (begin < num_delivered)
            return start.step + count_steps(num_delivered - start.samples, start.rule.rows * start.world_size)
    return 0
