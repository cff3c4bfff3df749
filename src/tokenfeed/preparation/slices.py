"""One slice of one input, made into shards of its own: the same bytes whoever makes them, and however often."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tokenfeed.preparation.document_writer import DocumentWriter
from tokenfeed.preparation.documents import read_slice
from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.preparation.locking import beside_others
from tokenfeed.preparation.mapping import MapFunction, MapSource
from tokenfeed.preparation.reading_chunks import Reading
from tokenfeed.preparation.recipe import Recipe
from tokenfeed.preparation.records import Counts, Record, slice_name
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.writer import Writer
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["Job", "SliceMaker", "Task", "Tell"]

Tell = Callable[[Counts], None]
"""Told how far a slice has come, some times a second."""


class Task(NamedTuple):
    """One slice to be made."""

    file: InputFile
    place: Slice

    @property
    def name(self) -> str:
        """For messages."""
        return f"slice {self.place.number} of {self.file.name}"


@dataclass(frozen=True)
class Job:
    """What every worker needs to know. Travels to it once."""

    out: str
    recipe: Recipe
    tokenizer: Tokenizer
    provenance: Mapping[str, Any]
    on_error: Literal["fail", "skip"] = "fail"
    map: MapSource | None = None

    def open_writer(self, name: str | None, split: str | None, function: MapFunction | None) -> Writer:
        """A writer of shards of one split, which leaves the manifest alone."""
        documents = "json" if self.recipe.keep else None
        return Writer(
            self.out,
            columns={"tokens": self.recipe.dtype, **({} if function is None else function.columns)},
            spans={"documents": documents, **({} if function is None else function.spans)},
            split=split,
            name=name,
            shard_bytes=self.recipe.shard_bytes,
            tokenizer=self.recipe.tokenizer,
            provenance=self.provenance,
            seal=False,
        )


class SliceMaker:
    """Makes slices of one job, one after the other."""

    def __init__(self, job: Job, function: MapFunction | None = None) -> None:
        """`function` is the map function itself, where it need not travel."""
        self._job = job
        self._function = job.map.load() if function is None and job.map is not None else function
        self._workplace = Workplace(job.out)

    def make(self, task: Task, tell: Tell) -> Record:
        """Shards and record of one slice. What somebody who was killed left of it is removed first."""
        try:
            return self._make(task, tell)
        except Exception as error:
            error.add_note(f"while {task.name} was being made")
            raise

    def _make(self, task: Task, tell: Tell) -> Record:
        recipe = self._job.recipe
        name = slice_name(task.place)
        names = {split: name if split is None else f"{name}-{split}" for split in recipe.splits}
        how = Reading(recipe.text_column, recipe.keep, self._job.on_error, whole=self._function is not None)
        with beside_others(self._workplace.lock), ExitStack() as stack:
            self._workplace.remove_shards(names.values())
            writers: dict[str | None, Writer] = {}

            def writer_of(split: str | None) -> Writer:
                if split not in writers:
                    opened = self._job.open_writer(names[split], split, self._function)
                    writers[split] = stack.enter_context(opened)
                return writers[split]

            documents = DocumentWriter(recipe, self._job.tokenizer, self._function, task.place.file, writer_of)
            record = Record(task.place, task.file.digest, counts=documents.counts)
            for chunk in read_slice(task.file, task.place, how):
                documents.add(chunk)
                record.problems += [f"{problem.where}: {problem.what}" for problem in chunk.skipped]
                tell(documents.counts)
            stack.close()
            record.shards = dict(self._workplace.made_shards(names.values()))
            self._workplace.put_record(record)
        return record
