"""What a run of `prepare` did, while it is at it and at the end."""

import posixpath
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenfeed.preparation.inputs import InputFile
from tokenfeed.preparation.records import Counts, Record

__all__ = ["Progress", "Report", "Source", "sum_up"]

_LISTED_PROBLEMS = 20


@dataclass(frozen=True)
class Progress:
    """How far a run has come; what was there before is part of it."""

    slices: int
    num_slices: int
    files: int
    """Those of which every slice is done."""
    num_files: int
    documents: int
    tokens: int
    input_bytes: int
    num_bytes: int
    """Of all files as they are stored."""
    new_bytes: int
    """Of `input_bytes`, those that this run has gone through."""
    retries: int
    """Slices begun again because their worker died."""
    seconds: float


@dataclass
class Source:
    """The files of one folder."""

    name: str
    """Relative to what all inputs have in common."""
    files: int = 0
    counts: Counts = field(default_factory=Counts)


@dataclass
class Report:
    """What is in the store, by source and in all, and what this run did of it."""

    path: str
    is_complete: bool
    """Whether all slices are done, and the store is sealed. Not before the last part is done."""
    sources: list[Source]
    total: Counts
    num_bytes: int
    """Of all input files as they are stored, done or not."""
    shards: int
    slices: int
    """Those that are done."""
    num_slices: int
    made: int
    """Of the slices, those that this run made."""
    made_counts: Counts
    retries: int
    """Slices begun again because their worker died."""
    problems: list[str]
    """The first 20 of what was left out, in words."""
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of this run."""
        return self.made_counts.tokens / max(self.seconds, 1e-9)

    @property
    def bytes_per_second(self) -> float:
        """Of this run: bytes of the files as they are stored."""
        return self.made_counts.input_bytes / max(self.seconds, 1e-9)

    @property
    def left_out(self) -> int:
        """Documents that are in the inputs but not in the store."""
        return self.total.malformed + self.total.null + self.total.dropped

    def to_json(self) -> dict[str, Any]:
        derived = ("tokens_per_second", "bytes_per_second", "left_out")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def sum_up(inputs: Sequence[InputFile], records: Sequence[Record]) -> tuple[list[Source], Counts, list[str]]:
    """Sources in the order of their inputs, the sum of them, and the first problems."""
    sources: dict[str, Source] = {}
    of_file = []
    for file in inputs:
        name = posixpath.dirname(file.name) or "."
        source = sources.setdefault(name, Source(name))
        source.files += 1
        of_file.append(source)
    total = Counts()
    problems: list[str] = []
    for record in sorted(records, key=lambda record: (record.slice.file, record.slice.number)):
        of_file[record.slice.file].counts.add(record.counts)
        total.add(record.counts)
        problems += record.problems[: _LISTED_PROBLEMS - len(problems)]
    return list(sources.values()), total, problems
