"""Engines: who makes the slices. All make the same bytes; they differ in where.

run_here      this process, one slice after the other: for debugging, and for functions that cannot travel
run_threads   threads of this process, for up to four slices at a time: nothing has to start, and the GIL is seldom held
run_pool      processes on this machine; one that dies is replaced, and its slice begun again
run_on_ray    tasks on a Ray cluster

An engine gives the records of all tasks, in the order in which they are done. Closing it stops the work at once.
"""

import pickle
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from tokenfeed.errors import ArgumentError, WorkerError
from tokenfeed.preparation.documents import SliceMaker, Task, Tell, WorkerSetup
from tokenfeed.preparation.mapping import MapFunction
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.text.tokenizer.engines import available_cores

__all__ = ["MAX_ATTEMPTS", "Engine", "Failure", "TellTask", "attempt", "make_engine"]

MAX_ATTEMPTS = 3
"""Attempts at a slice before the deaths of its workers are taken for its fault."""
_MOST_THREADS = 4
"""Threads that are as fast as processes, which take a second to start: a fifth of the time of each needs the GIL."""

TellTask = Callable[[Task, Counts | None], None]
"""Called with the counts of a task so far; with None when it is begun again."""

Engine = Callable[[WorkerSetup, Sequence[Task], TellTask], Generator[Record, None, None]]


def make_engine(name: str, workers: int | None, function: MapFunction | None = None) -> Engine:
    """`workers` is how many slices are made at a time: by default one for each core, 0 for this process.

    "local" takes threads or processes, whichever is faster.
    """
    if name not in ("local", "processes", "ray"):
        raise ArgumentError(f"no engine is called {name!r}; there are local, processes, ray")
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers is {workers}; it must be at least 0")
    if name == "ray":
        from tokenfeed.preparation.engines.on_ray import run_on_ray

        return partial(run_on_ray, workers)
    if workers == 0:
        return partial(_run_here, function)
    return partial(_run_locally, available_cores() if workers is None else workers, name == "processes")


def _run_locally(
    workers: int, in_processes: bool, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask
) -> Generator[Record, None, None]:
    # A map function, and inputs that are lists of tokens, are work for Python, which holds the GIL.
    holds_gil = setup.map is not None or setup.tokenizer is None
    if setup.map is None and not in_processes and any(task.file.memory is not None for task in tasks):
        return _run_threads(min(workers, _MOST_THREADS), setup, tasks, tell)  # documents of this process stay in it
    if in_processes or holds_gil or min(workers, len(tasks)) > _MOST_THREADS:
        from tokenfeed.preparation.engines.pool import run_pool

        return run_pool(workers, setup, tasks, tell)
    return _run_threads(workers, setup, tasks, tell)


def _run_here(
    function: MapFunction | None, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask
) -> Generator[Record, None, None]:
    maker = SliceMaker(setup, function)  # a map function need not travel, so it may be any
    for task in tasks:
        yield maker.make(task, partial(tell, task))


class _StoppedError(Exception):
    """The run has ended, and its threads must."""


def _run_threads(
    workers: int, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask
) -> Generator[Record, None, None]:
    maker, waiting, is_over = SliceMaker(setup), iter(tasks), threading.Event()
    news: SimpleQueue[tuple[Task, Record | Counts | BaseException]] = SimpleQueue()

    def tell_or_stop(task: Task, counts: Counts) -> None:
        if is_over.is_set():
            raise _StoppedError
        news.put((task, replace(counts)))

    def work() -> None:
        for task in waiting:
            try:
                news.put((task, maker.make(task, partial(tell_or_stop, task))))
            except BaseException as error:  # noqa: BLE001 — the run raises it
                news.put((task, error))
                return

    threads = [threading.Thread(target=work, name=f"tokenfeed-prepare-{i}") for i in range(min(workers, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        num_left = len(tasks)
        while num_left:
            task, said = news.get()
            if isinstance(said, Record):
                num_left -= 1
                yield said
            elif isinstance(said, Counts):
                tell(task, said)
            else:
                raise said
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


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
