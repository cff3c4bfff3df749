"""Engines: who makes the slices. All make the same bytes; they differ in where.

run_here      this process, one slice after the other: for debugging, and for functions that cannot travel
run_pool      processes on this machine; one that dies is replaced, and its slice begun again
run_on_ray    tasks on a Ray cluster

An engine gives the records of all tasks, in the order in which they are done. Closing it stops the work at once.
"""

import pickle
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from tokenfeed.errors import ArgumentError, WorkerError
from tokenfeed.preparation.documents import SliceMaker, Task, Tell, WorkerSetup
from tokenfeed.preparation.mapping import MapFunction
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.text.tokenizer.engines import available_cores

__all__ = ["MAX_ATTEMPTS", "Engine", "Failure", "TellTask", "attempt", "make_engine"]

MAX_ATTEMPTS = 3
"""Attempts at a slice before the deaths of its workers are taken for its fault."""

TellTask = Callable[[Task, Counts | None], None]
"""Called with the counts of a task so far; with None when it is begun again."""

Engine = Callable[[WorkerSetup, Sequence[Task], TellTask], Generator[Record, None, None]]


def make_engine(name: str, workers: int | None, function: MapFunction | None = None) -> Engine:
    """`workers` is how many slices are made at a time: by default one for each core, 0 for this process."""
    if name not in ("local", "ray"):
        raise ArgumentError(f"no engine is called {name!r}; there are local, ray")
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers is {workers}; it must be at least 0")
    if name == "ray":
        from tokenfeed.preparation.engines.on_ray import run_on_ray

        return partial(run_on_ray, workers)
    if workers == 0:
        return partial(_run_here, function)
    from tokenfeed.preparation.engines.pool import run_pool

    return partial(run_pool, available_cores() if workers is None else workers)


def _run_here(
    function: MapFunction | None, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask
) -> Generator[Record, None, None]:
    maker = SliceMaker(setup, function)  # a map function need not travel, so it may be any
    for task in tasks:
        yield maker.make(task, partial(tell, task))


@dataclass(frozen=True)
class Failure:
    """An error on its way from one process to another: some cannot be pickled, and some not unpickled."""

    message: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        try:
            pickled = pickle.dumps(error)
        except Exception:  # noqa: BLE001 (a user's error may be anything)
            pickled = None
        lines = traceback.format_exception(error)
        return cls(f"{type(error).__name__}: {error}", "".join(lines), pickled)

    def rebuild(self) -> BaseException:
        """The error, with the traceback that it had in the worker as a note."""
        error: BaseException
        try:
            error = pickle.loads(self.pickled or b"")
        except Exception:  # noqa: BLE001 (a class that is known there alone, or takes other arguments)
            error = WorkerError(f"a worker failed with {self.message}")
        error.__notes__ = [f"In the worker:\n{self.traceback}"]  # which has the notes that it had there
        return error


def attempt(get_maker: Callable[[], SliceMaker], task: Task, tell: Tell) -> Record | Failure:
    """Make a slice in a process of an engine. Whatever goes wrong there, the run raises it."""
    try:
        return get_maker().make(task, tell)
    except Exception as error:  # noqa: BLE001
        return Failure.of(error)
