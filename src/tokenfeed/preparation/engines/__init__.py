"""Engines: who makes the slices. All make the same bytes; they differ in where.

here      this process, one slice after the other: for debugging, and for functions that cannot travel
pool      processes on this machine; one that dies is replaced, and its slice begun again
on_ray    tasks on a Ray cluster
"""

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from tokenfeed.errors import ArgumentError
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.preparation.slices import Job, Task
from tokenfeed.text.tokenizer.engines.workers import available_cores

__all__ = ["ENGINES", "MAX_ATTEMPTS", "Engine", "TellTask", "make_engine"]

ENGINES = ("local", "ray")
MAX_ATTEMPTS = 3
"""How often a slice is begun before its workers' deaths are taken for its fault."""

TellTask = Callable[[Task, Counts | None], None]
"""Told how far a task has come; None when it is begun again."""


class Engine(Protocol):
    """Makes slices, any number at a time."""

    def run(self, job: Job, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        """The records of all tasks, in the order in which they are done. Closing it stops the work at once."""


def make_engine(name: str, workers: int | None) -> Engine:
    """`workers` is how many slices are made at a time: by default one for each core, 0 for this process."""
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers is {workers}; it must be at least 0")
    if name == "ray":
        from tokenfeed.preparation.engines.on_ray import RayTasks

        return RayTasks(workers)
    if name != "local":
        raise ArgumentError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}")
    if workers == 0:
        from tokenfeed.preparation.engines.here import Here

        return Here()
    from tokenfeed.preparation.engines.pool import Pool

    return Pool(available_cores() if workers is None else workers)
