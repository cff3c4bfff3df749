"""Engines: who makes the slices. All make the same bytes; they differ in where.

Here      this process, one slice after the other: for debugging, and for functions that cannot travel
pool      processes on this machine; one that dies is replaced, and its slice begun again
on_ray    tasks on a Ray cluster
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Protocol

from tokenfeed.errors import ArgumentError
from tokenfeed.preparation.mapping import MapFunction
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.preparation.slices import SliceMaker, Task, WorkerSetup
from tokenfeed.text.tokenizer.engines.workers import available_cores

__all__ = ["ENGINES", "MAX_ATTEMPTS", "Engine", "Here", "TellTask", "make_engine"]

ENGINES = ("local", "ray")
MAX_ATTEMPTS = 3
"""Attempts at a slice before the deaths of its workers are taken for its fault."""

TellTask = Callable[[Task, Counts | None], None]
"""Called with the counts of a task so far; with None when it is begun again."""


class Engine(Protocol):
    """Makes slices, any number at a time."""

    def run(self, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        """The records of all tasks, in the order in which they are done. Closing it stops the work at once."""


class Here:
    """This process, one slice after the other. A map function need not travel, so it may be any."""

    def __init__(self, function: MapFunction | None = None) -> None:
        self._function = function

    def run(self, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        maker = SliceMaker(setup, self._function)
        for task in tasks:
            yield maker.make(task, partial(tell, task))


def make_engine(name: str, workers: int | None, function: MapFunction | None = None) -> Engine:
    """`workers` is how many slices are made at a time: by default one for each core, 0 for this process."""
    if name not in ENGINES:
        raise ArgumentError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}")
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers is {workers}; it must be at least 0")
    if name == "ray":
        from tokenfeed.preparation.engines.on_ray import RayTasks

        return RayTasks(workers)
    if workers == 0:
        return Here(function)
    from tokenfeed.preparation.engines.pool import Pool

    return Pool(available_cores() if workers is None else workers)
