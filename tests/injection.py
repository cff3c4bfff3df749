"""Faults at chosen system calls: a library preloaded before libc (`injection.c`), and what drives it.

A test calls `run_injected("module:function", …)`: the function runs in a fresh interpreter that has the library. There
everything is imported once, and `attempt` forks for every fault:

    fault = Fault("EIO", calls=["pread"], number=3)
    outcome = attempt(lambda: read(path), watch=path, fault=fault)
    outcome.value, outcome.raised, outcome.was_killed, outcome.hits

The library sees what the C library is asked for by name, so also what Numba's kernels call; that nothing passes it by
is a test (`tests/faults/test_system_calls.py`).
"""

import atexit
import ctypes
import errno
import functools
import gc
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ALL_POINTS = os.environ.get("FAULT_POINTS") == "all"
"""Whether every system call is tried, or a sample of them."""

READS = ("read", "pread", "preadv2")
WRITES = ("write", "pwrite")
OPENS = ("open", "opendir")
CHANGES = (*WRITES, "fsync", "fdatasync", "rename", "link", "mkdir", "unlink", "rmdir", "ftruncate")
CALLS = ("open", *READS, *CHANGES, "close", "lseek", "stat", "opendir", "readdir", "flock")

_KILL, _ERROR, _SHORT, _DELAY = range(4)
_SECONDS = 60
"""A forked process that takes longer than this hangs."""
_FOREVER = 1 << 62
_TESTS = Path(__file__).parent


# In the process that tests run in.


@functools.cache
def build_library() -> Path:
    """The compiled library; removed with the process."""
    if sys.platform != "linux":
        pytest.skip("NOT TESTED under injected faults: a library is preloaded in this way on Linux alone")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NOT TESTED under injected faults: there is no C compiler (cc): apt-get install gcc libc6-dev")
    folder = Path(tempfile.mkdtemp(prefix="tokenfeed-injection-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "injection.so"
    command = [compiler, "-O1", "-shared", "-fPIC", str(_TESTS / "injection.c"), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


def injected_environment(**settings: str) -> dict[str, str]:
    """That of a process which has the library."""
    paths = os.pathsep.join([str(_TESTS), str(_TESTS / "faults"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "LD_PRELOAD": str(build_library()), "PYTHONPATH": paths, **settings}


def run_injected(function: str, *arguments: Any, under: Sequence[str] = ()) -> Any:
    """What `"module:function"` returns for these arguments, in an interpreter of its own; all of it JSON.

    `under` is a command that the interpreter is run by.
    """
    code = "import injection; injection.serve()"
    command = [*under, sys.executable, "-c", code, function, json.dumps(arguments)]
    done = subprocess.run(command, env=injected_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{function} ended with {done.returncode}:\n{done.stderr[-8000:]}"
    return json.loads(done.stdout.splitlines()[-1])


# In that interpreter.


def serve() -> None:
    """What `run_injected` calls there."""
    module, _, name = sys.argv[1].partition(":")
    answer = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]))
    print(json.dumps(answer))


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.inject_arm.argtypes = [ctypes.c_ulong, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    library.inject_hits.restype = ctypes.c_char_p
    return library


class Call(NamedTuple):
    """A system call that touched what was watched."""

    name: str
    path: str


@dataclass(frozen=True)
class Fault:
    """What happens at call `number` of those named in `calls`; and at all that follow, where it lasts."""

    kind: str
    """`KILL`, `SHORT`, `SLOW`, or the name of an errno."""
    calls: Sequence[str]
    number: int
    lasts: bool = False

    def arm(self) -> None:
        actions = {"KILL": (_KILL, 0), "SHORT": (_SHORT, 0), "SLOW": (_DELAY, 3000)}
        action, value = actions.get(self.kind) or (_ERROR, getattr(errno, self.kind))
        last = _FOREVER if self.lasts else self.number
        _library().inject_arm(_mask(self.calls), self.number, last, action, value)


def _mask(calls: Sequence[str]) -> int:
    numbers = [_library().inject_kind(call.encode()) for call in calls]
    assert min(numbers) >= 0, calls
    return sum(1 << number for number in numbers)


def disarm() -> None:
    """The fault is over."""
    _library().inject_disarm()


@dataclass
class Outcome:
    """How a forked process ended."""

    status: int
    value: Any = None
    raised: dict[str, Any] | None = None
    """The error that it ended with, as `describe` has it."""
    left_open: list[str] = field(default_factory=list)
    """Files under what was watched that the process did not close."""
    hits: list[Call] = field(default_factory=list)
    """The calls that met the fault: the first some dozens of them."""

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL

    def is_named_by(self, error: Mapping[str, Any]) -> bool:
        """Whether an error names what met the fault, or the file whose bytes pass through that, or the folder it is in;
        of a folder that could not be made, what should have gone into it will do."""
        for hit in (Path(call.path) for call in self.hits):
            beside = hit.with_name(hit.name[1:].rpartition(".")[0] or hit.name)
            names = "|".join(re.escape(str(name)) for name in (hit, beside, hit.parent))
            if re.search(rf"({names})([: ]|$)", error["message"]) or f"{hit}/" in error["message"]:
                return True
        return False


def describe(error: BaseException) -> dict[str, Any]:
    """An error, for another process."""
    from tokenfeed.errors import TokenfeedError

    return {
        "type": type(error).__name__,
        "typed": isinstance(error, TokenfeedError),
        "message": str(error),
        "filename": getattr(error, "filename", None),
        "traceback": "".join(traceback.format_exception(error)[-6:]),
    }


def attempt(action: Callable[[], Any], *, watch: Path, fault: Fault | None, log: Path | None = None) -> Outcome:
    """Run an action in a forked process, whose calls to what lies under `watch` meet the fault."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(_SECONDS)
        answer: dict[str, Any] = {}
        _library().inject_watch(os.fsencode(watch))
        if log is not None:
            _library().inject_log(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        (fault or Fault("EIO", CALLS, _FOREVER)).arm()
        try:
            answer["value"] = action()
        except BaseException as error:  # noqa: BLE001 — whatever it is, it is told
            answer["raised"] = describe(error)
        disarm()
        answer["left_open"] = _list_open(watch)
        answer["hits"] = os.fsdecode(_library().inject_hits()).splitlines()
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    fields = json.loads(data) if data else {}
    hits = [_parse_call(line) for line in fields.get("hits", ())]
    return Outcome(status, fields.get("value"), fields.get("raised"), fields.get("left_open", []), hits)


def _list_open(watch: Path) -> list[str]:
    gc.collect()
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [str(link.readlink()) for link in links if link.is_symlink() and str(link.readlink()).startswith(str(watch))]


def list_calls(action: Callable[[], Any], *, watch: Path) -> list[Call]:
    """The system calls of an action, in order."""
    with tempfile.NamedTemporaryFile(prefix="tokenfeed-calls-") as log:
        outcome = attempt(action, watch=watch, fault=None, log=Path(log.name))
        assert outcome.status == 0, f"ended with {outcome.status} where nothing was injected"
        assert outcome.raised is None, outcome.raised
        return [_parse_call(line) for line in Path(log.name).read_text().splitlines()]


def _parse_call(line: str) -> Call:
    name, _, path = line.partition(" ")
    return Call(name, path)


def choose(calls: Sequence[Call], names: Sequence[str], *, every: int, always: Sequence[str] = ()) -> list[int]:
    """Numbers, among the calls of these names, at which to inject: all, or in the short form one in `every`."""
    of_these = [call for call in calls if call.name in names]
    return [n for n, call in enumerate(of_these) if ALL_POINTS or n % every == 0 or call.name in always]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: not the disk is tested, and it need not wait for it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tokenfeed-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder).resolve()


@dataclass
class Tally:
    """Faults tried, by kind and by what came of them; and what should not have."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, came_of_it: str) -> None:
        self.counts[kind, came_of_it] += 1

    def to_json(self) -> Mapping[str, Any]:
        rows = [[kind, came_of_it, count] for (kind, came_of_it), count in sorted(self.counts.items())]
        return {"rows": rows, "points": self.counts.total(), "problems": self.problems}
