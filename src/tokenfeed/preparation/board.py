"""What is done and what is under way, slice by slice."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from tokenfeed.preparation.inputs import InputFile
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.preparation.report import Progress, Report, sum_up
from tokenfeed.preparation.slices import Task

__all__ = ["Board"]

_TELL_SECONDS = 0.1


class Board:
    """Adds up records and the counts of slices under way, and tells of it about ten times a second."""

    def __init__(
        self, files: Sequence[InputFile], tasks: Sequence[Task], progress: Callable[[Progress], object] | None
    ) -> None:
        self.records: dict[Task, Record] = {}
        self._files = files
        self._tasks = {(task.place.file, task.place.number): task for task in tasks}
        self._left_of_file = Counter(task.place.file for task in tasks)
        self._num_bytes = sum(file.size for file in files)
        self._total, self._made_counts = Counts(), Counts()
        self._under_way: dict[Task, Counts] = {}
        self._made = self._retries = 0
        self._progress = progress
        self._began = time.monotonic()
        self._told = -1.0

    def was_done(self, record: Record) -> None:
        """By an earlier run, or by another part."""
        task = self._tasks[record.slice.file, record.slice.number]
        self.records[task] = record
        self._left_of_file[record.slice.file] -= 1
        self._total.add(record.counts)

    def done(self, record: Record) -> None:
        """By this run."""
        self.was_done(record)
        self._under_way.pop(self._tasks[record.slice.file, record.slice.number], None)
        self._made += 1
        self._made_counts.add(record.counts)
        self._show(is_last=len(self.records) == len(self._tasks))

    def tell(self, task: Task, counts: Counts | None) -> None:
        """How far a slice has come; None where it begins again."""
        if counts is None:
            self._under_way.pop(task, None)
            self._retries += 1
        else:
            self._under_way[task] = counts
        self._show(is_last=False)

    def report(self, path: str, *, is_complete: bool) -> Report:
        sources, total, problems = sum_up(self._files, list(self.records.values()))
        return Report(
            path=path,
            is_complete=is_complete,
            sources=sources,
            total=total,
            num_bytes=self._num_bytes,
            shards=sum(len(record.shards) for record in self.records.values()),
            slices=len(self.records),
            num_slices=len(self._tasks),
            made=self._made,
            made_counts=self._made_counts,
            retries=self._retries,
            problems=problems,
            seconds=time.monotonic() - self._began,
        )

    def _show(self, *, is_last: bool) -> None:
        now = time.monotonic()
        if self._progress is None or (now - self._told < _TELL_SECONDS and not is_last):
            return
        self._told = now
        under_way = list(self._under_way.values())
        new_bytes = self._made_counts.input_bytes + sum(counts.input_bytes for counts in under_way)
        self._progress(
            Progress(
                slices=len(self.records),
                num_slices=len(self._tasks),
                files=sum(self._left_of_file[file] == 0 for file in range(len(self._files))),
                num_files=len(self._files),
                documents=self._total.documents + sum(counts.documents for counts in under_way),
                tokens=self._total.tokens + sum(counts.tokens for counts in under_way),
                input_bytes=self._total.input_bytes + sum(counts.input_bytes for counts in under_way),
                num_bytes=self._num_bytes,
                new_bytes=new_bytes,
                retries=self._retries,
                seconds=now - self._began,
            )
        )
