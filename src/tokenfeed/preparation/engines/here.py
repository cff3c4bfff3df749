"""Slices made in this process, one after the other."""

from collections.abc import Generator, Sequence

from tokenfeed.preparation.engines import TellTask
from tokenfeed.preparation.mapping import MapFunction
from tokenfeed.preparation.records import Record
from tokenfeed.preparation.slices import Job, SliceMaker, Task

__all__ = ["Here"]


class Here:
    """This process. A map function need not travel, so it may be any."""

    def __init__(self, function: MapFunction | None = None) -> None:
        self._function = function

    def run(self, job: Job, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        maker = SliceMaker(job, self._function)
        for task in tasks:
            yield maker.make(task, lambda counts, task=task: tell(task, counts))  # type: ignore[misc]
