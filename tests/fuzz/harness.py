"""Runs inputs in a child process, so that a crash or a hang is known by the input that caused it.

A *target* is a function `prepare(folder)` that makes valid files there once and returns `attempt(case)`, which damages
them by `case.rng` and reads them. It may return, having checked that what was read is right; or raise a TokenfeedError.
Anything else is a finding: another exception, a wrong result, a file opened outside the folder, more than
`MEMORY_BYTES` of further memory, more than `SECONDS` of time, the end of the process.

Input `number` of a target is a function of the two, so a finding is seen again by
`python tests/fuzz/run.py --only TARGET --first NUMBER --inputs 1`.
"""

import faulthandler
import importlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Case", "Figures", "Target", "fuzz"]

SECONDS = 60.0
"""For one input; ample, since the machine may be busy."""
FIRST_SECONDS = 300.0
"""For the first one, which may compile kernels."""
MEMORY_BYTES = 1 << 30
FINDING = 3

Target = Callable[[Path], Callable[["Case"], None]]


@dataclass
class Case:
    """One input."""

    rng: random.Random
    number: int = 0
    """Which input of its target."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What was written, to keep if it is a finding."""
    may_open_anything: bool = False
    """A run file names the stores of the run, wherever they lie."""

    def write(self, path: Path, data: bytes) -> None:
        self.files[path.name] = data
        path.write_bytes(data)

    def note(self, name: str, value: Any) -> None:
        """Keep an input that is no file."""
        self.files[name] = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")


@dataclass
class Figures:
    """What came of the inputs of one target."""

    inputs: int = 0
    read: int = 0
    """Inputs that were read, with the right result."""
    errors: Counter[str] = field(default_factory=Counter)
    """Of the others, by type."""
    slowest: tuple[float, int] = 0.0, 0
    """Seconds, and the number of the input that took them."""
    peak_bytes: int = 0
    """Of the process that tried them."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def add(self, other: dict[str, Any]) -> None:
        self.inputs += other["inputs"]
        self.read += other["read"]
        self.errors.update(other["errors"])
        self.slowest = max(self.slowest, tuple(other["slowest"]))
        self.peak_bytes = max(self.peak_bytes, other["peak_bytes"])
        self.seconds += other["seconds"]
        self.findings += other["findings"]


def fuzz(
    names: Sequence[str],
    *,
    first: int = 0,
    inputs: int | Mapping[str, int] | None = None,
    seconds: float = 1e9,
    keep: Path | None = None,
    module: str = "fuzz.targets",
) -> dict[str, Figures]:
    """Try inputs first, first + 1, … of each target: so many (of each by name), or for so many seconds.

    `keep` is a folder for the findings.
    """
    figures = {name: Figures() for name in names}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        report, waiting = Path(folder, "report"), list(names)
        counts = dict(inputs) if isinstance(inputs, Mapping) else dict.fromkeys(names, inputs)
        stops = {name: None if counts[name] is None else first + counts[name] for name in names}
        starts, left = dict.fromkeys(names, first), dict.fromkeys(names, seconds)
        while waiting:
            report.write_bytes(b"")
            began = time.monotonic()
            tasks = [(name, starts[name], stops[name], left[name]) for name in waiting]
            told = {"module": module, "tasks": tasks, "folder": folder, "keep": keep and str(keep)}
            code = "import sys; from fuzz.harness import child; child(sys.argv[1])"
            paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
            done = subprocess.run(
                [sys.executable, "-X", "faulthandler", "-c", code, json.dumps(told)],
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
                check=False,
            )
            name, number, num_read = _read_report(report, figures, waiting)
            if done.returncode == 0:
                break
            # The process is gone: by the input it had begun with, or by what came before the first.
            last_words = done.stderr.decode(errors="replace")[-3000:]
            if name is None:
                raise RuntimeError(f"no input was tried:\n{last_words}")
            figures[name].inputs += number + 1 - starts[name]
            figures[name].read += num_read
            figures[name].findings.append(f"{name} {number}: the process ended with {done.returncode}\n{last_words}")
            starts[name] = number + 1
            left[name] -= time.monotonic() - began
            waiting = waiting[waiting.index(name) :]
            if left[name] <= 0 or len(figures[name].findings) >= FINDING or starts[name] == stops[name]:
                waiting = waiting[1:]
    return figures


def _read_report(report: Path, figures: dict[str, Figures], waiting: Sequence[str]) -> tuple[str | None, int, int]:
    """Adds up the lines of targets that were done with. Returns the input that was begun last, and how many were read
    before it."""
    name, number, num_read = None, 0, 0
    for line in report.read_bytes().splitlines():
        kind, _, rest = line.partition(b" ")
        if kind == b"done":
            told = json.loads(rest)
            figures[told.pop("name")].add(told)
        elif kind == b"at":
            which, number, num_read = map(int, rest.split())
            name = waiting[which]
    return name, number, num_read


def child(arguments: str) -> None:
    """What the child process does."""
    told = json.loads(arguments)
    targets = importlib.import_module(told["module"]).TARGETS
    report = os.open(Path(told["folder"], "report"), os.O_WRONLY)
    guard = Guard()
    for which, (name, first, stop, seconds) in enumerate(told["tasks"]):
        limit_memory(None)
        with tempfile.TemporaryDirectory(dir=told["folder"]) as place:
            attempt = targets[name](Path(place))
            guard.root = place
            figures = _try_many(name, attempt, guard, first, stop, seconds, report, which, told["keep"])
            guard.root = None
        line = json.dumps({"name": name, **vars(figures)}).encode()
        os.pwrite(report, b"done " + line + b"\n", os.fstat(report).st_size)
    os._exit(0)  # threads of feeds that a damaged state has stopped need not be waited for


def _try_many(
    name: str,
    attempt: Callable[[Case], None],
    guard: "Guard",
    first: int,
    stop: int | None,
    seconds: float,
    report: int,
    which: int,
    keep: str | None,
) -> Figures:
    figures = Figures()
    at, number = os.fstat(report).st_size, first
    began = time.monotonic()
    while number != stop and time.monotonic() - began < seconds and len(figures.findings) < FINDING:
        os.pwrite(report, b"at %d %d %-20d\n" % (which, number, figures.read), at)
        case = Case(random.Random(f"{name} {number}"), number)
        faulthandler.dump_traceback_later(FIRST_SECONDS if number == first else SECONDS, exit=True)
        tried = time.monotonic()
        guard.opened.clear()
        problem = _try_one(attempt, case, figures)
        if number > first:
            figures.slowest = max(figures.slowest, (time.monotonic() - tried, number))
        faulthandler.cancel_dump_traceback_later()
        problem = problem or (f"opened {guard.opened[0]!r}" if guard.opened and not case.may_open_anything else None)
        figures.inputs += 1
        if problem is not None:
            figures.findings.append(f"{name} {number}: {problem}")
            _keep(case, f"{name}-{number}", keep)
        if (number - first) % 100 == 0:  # all that is needed is loaded; later on, allocators have reserved more
            limit_memory(MEMORY_BYTES)
        number += 1
    figures.seconds = time.monotonic() - began
    figures.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures


def _try_one(attempt: Callable[[Case], None], case: Case, figures: Figures) -> str | None:
    """What is wrong, if anything is."""
    from tokenfeed.errors import TokenfeedError

    try:
        attempt(case)
    except TokenfeedError as error:
        str(error), repr(error)
        figures.errors[type(error).__name__] += 1
    except BaseException:  # noqa: BLE001
        return traceback.format_exc(limit=-6)
    else:
        figures.read += 1
    return None


def _keep(case: Case, name: str, folder: str | None) -> None:
    if folder is not None:
        place = Path(folder, name)
        place.mkdir(parents=True, exist_ok=True)
        for number, (file, data) in enumerate(case.files.items()):
            (place / f"{number}-{file}"[:80]).write_bytes(data)


def limit_memory(further_bytes: int | None) -> None:
    """Let this process map so much more than it has mapped now; beyond that, allocating raises MemoryError."""
    limit = hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if sys.platform == "linux" and further_bytes is not None:
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + further_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


class Guard:
    """Notes files that Python code opens outside the folder of a target, the interpreter and its packages."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.opened: list[str] = []
        source = Path(__file__).parents[2]
        self._allowed = (*map(str, (source, Path(sys.prefix), Path(sys.base_prefix))), "/dev/", "/proc/", "/sys/")
        self._temporary = os.path.join(tempfile.gettempdir(), "")
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: Any) -> None:
        if event != "open" or self.root is None or not isinstance(arguments[0], str | bytes):
            return
        given = os.fsdecode(arguments[0])
        path = os.path.abspath(given)  # noqa: PTH100 (resolve would follow links)
        if path.startswith(self._allowed) or (path.startswith(self.root) and ".." not in Path(given).parts):
            return
        inside = path.removeprefix(self._temporary)
        if (
            path != self._temporary[:-1] and os.sep in inside and not inside.startswith("tokenfeed-")
        ):  # else a temporary file of this process
            self.opened.append(given)
