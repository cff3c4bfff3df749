"""The report of a run of `prepare`: while it works, and at the end."""

import posixpath
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tokenfeed.errors import quantity
from tokenfeed.preparation.documents import Task
from tokenfeed.preparation.inputs import InputFile
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.text.sources.splitting import Splits

__all__ = ["Board", "Report", "SourceCounts"]

_LISTED_PROBLEMS = 20
_TELL_SECONDS = 0.1


@dataclass
class SourceCounts:
    """The files of one folder."""

    name: str
    """The folder, relative to what all inputs have in common."""
    files: int = 0
    counts: Counts = field(default_factory=Counts)


@dataclass
class Report:
    """The contents of the store, by folder and in all, and the work of this run: at the end, or so far."""

    path: str
    num_bytes: int
    """Bytes of all input files as they are stored, done or not."""
    num_files: int
    num_slices: int
    splits: dict[str, int]
    """Splits by name, and the files in each; a `val` chosen by text has none. Empty without splits."""
    val_share: float = 0.0
    """Share of the documents that `val` was to be, chosen by their text; 0 where files decide, or without `val`."""
    held_out: str = ""
    """What is not `train` because of names, in one line; empty where nothing is."""
    is_complete: bool = False
    """Whether all slices are done, and the store is sealed: True once the last part is done."""
    total: Counts = field(default_factory=Counts)
    files: int = 0
    """Files with all slices done."""
    slices: int = 0
    """Slices that are done."""
    made: int = 0
    """Slices that this run made."""
    made_counts: Counts = field(default_factory=Counts)
    """Counts of this run. While it works, slices under way are part of these and of the total."""
    retries: int = 0
    """Slices begun again because their worker died."""
    seconds: float = 0.0
    shards: int = 0
    sources: list[SourceCounts] = field(default_factory=list)
    """Counts by folder, in the order of the inputs; at the end only, like the shards and the problems."""
    problems: list[str] = field(default_factory=list)
    """Lines and rows that were left out, in words: the first 20."""
    growth: str = ""
    """Checkpoints that the documents added by this run affect, and how to go on from them; empty for a new store."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens that this run made, by its seconds."""
        return self.made_counts.tokens / max(self.seconds, 1e-9)

    @property
    def bytes_per_second(self) -> float:
        """Bytes that this run read, of the files as they are stored, by its seconds."""
        return self.made_counts.input_bytes / max(self.seconds, 1e-9)

    @property
    def left_out(self) -> int:
        """Documents that are in the inputs but not in the store."""
        return self.total.malformed + self.total.null + self.total.dropped

    def __str__(self) -> str:
        """Four lines: the store, its splits, what was read, and the speed; more where names or growth matter."""
        total, state = self.total, "complete and sealed" if self.is_complete else "not complete"
        files = {name: quantity(count, "file") for name, count in self.splits.items()}
        splits = [
            f"{name}: {_quantities(*counts)} ({files.get(name, 'by their text')})"
            for name, counts in total.by_split().items()
            if counts[0]
        ]
        if self.is_complete and self.val_share and not total.val_documents:
            splits.append(
                f"val: nothing held out, val={self.val_share:g} of so few documents chose none (a larger share holds "
                "out some, val='last' the last file)"
            )
        left_out = f"{total.malformed:,} malformed, {total.null:,} null, {total.dropped:,} by the map function"
        rates = f"{self.tokens_per_second / 1e6:,.2f} M tokens/s, {self.bytes_per_second / 1e6:,.1f} MB/s"
        read = f"read: {quantity(self.num_files, 'file')}, {self.num_bytes / 1e6:,.1f} MB"
        return "\n".join(
            (
                f"{self.path}: {_quantities(total.documents, total.tokens)}, {quantity(self.shards, 'shard')}, {state}",
                f"  {'; '.join(splits) if self.splits else 'no splits'}",
                *([f"  {self.held_out}"] if self.held_out else []),
                f"  {read}; left out: {left_out if self.left_out else 'nothing'}",
                f"  this run: {self.made:,} of {quantity(self.num_slices, 'slice')} in {self.seconds:.1f} s: {rates}",
                *([f"  {self.growth}"] if self.growth else []),
            )
        )

    def to_json(self) -> dict[str, Any]:
        rates = {"tokens_per_second": self.tokens_per_second, "bytes_per_second": self.bytes_per_second}
        return {**asdict(self), **rates, "left_out": self.left_out}


def _quantities(documents: int, tokens: int) -> str:
    return f"{quantity(documents, 'document')}, {quantity(tokens, 'token')}"


class Board:
    """Adds up records and the counts of slices under way, and reports them about ten times a second."""

    def __init__(
        self,
        path: str,
        files: Sequence[InputFile],
        tasks: Sequence[Task],
        progress: Callable[[Report], object] | None,
        splits: Splits,
    ) -> None:
        self.records: dict[Task, Record] = {}
        counts = dict(Counter(file.split for file in files if file.split is not None))
        of_val = splits.fraction, splits.held_out
        self._report = Report(path, sum(file.size for file in files), len(files), len(tasks), counts, *of_val)
        self._files, self._progress = files, progress
        self._tasks = {task.slice: task for task in tasks}
        self._left_of_file = Counter(task.slice.file for task in tasks)
        self._under_way: dict[Task, Counts] = {}
        self._began, self._told = time.monotonic(), -1.0

    @property
    def is_done(self) -> bool:
        return len(self.records) == len(self._tasks)

    def was_done(self, record: Record) -> None:
        """Note a slice that an earlier run made, or another part."""
        self.records[self._tasks[record.slice]] = record
        self._left_of_file[record.slice.file] -= 1
        self._report.total += record.counts

    def done(self, record: Record) -> None:
        """Note a slice that this run made."""
        self.was_done(record)
        self._under_way.pop(self._tasks[record.slice], None)
        self._report.made += 1
        self._report.made_counts += record.counts
        self._show()

    def tell(self, task: Task, counts: Counts | None) -> None:
        """Note how far a slice has come; None where it begins again."""
        if counts is None:
            self._under_way.pop(task, None)
            self._report.retries += 1
        else:
            self._under_way[task] = counts
        self._show()

    def report(self, *, is_complete: bool) -> Report:
        """The report at the end."""
        records = sorted(self.records.values(), key=lambda record: (record.slice.file, record.slice.number))
        sources: dict[str, SourceCounts] = {}
        of_file = []
        for file in self._files:
            name = posixpath.dirname(file.name) or "."
            of_file.append(sources.setdefault(name, SourceCounts(name)))
            of_file[-1].files += 1
        for record in records:
            of_file[record.slice.file].counts += record.counts
        return replace(
            self._so_far(),
            is_complete=is_complete,
            shards=sum(len(record.shards) for record in records),
            sources=list(sources.values()),
            problems=[problem for record in records for problem in record.problems][:_LISTED_PROBLEMS],
        )

    def _so_far(self) -> Report:
        under_way = sum(self._under_way.values(), Counts())
        return replace(
            self._report,
            total=self._report.total + under_way,
            made_counts=self._report.made_counts + under_way,
            files=sum(self._left_of_file[file] == 0 for file in range(len(self._files))),
            slices=len(self.records),
            seconds=time.monotonic() - self._began,
        )

    def _show(self) -> None:
        now = time.monotonic()
        if self._progress is not None and (self.is_done or now - self._told >= _TELL_SECONDS):
            self._told = now
            self._progress(self._so_far())
