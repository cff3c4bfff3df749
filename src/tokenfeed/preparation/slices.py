"""One slice of one input, made into shards of its own: the same bytes by any worker, however often."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tokenfeed.preparation.document_writer import DocumentWriter
from tokenfeed.preparation.inputs import InputFile, Slice, read_slice
from tokenfeed.preparation.locking import hold
from tokenfeed.preparation.mapping import MapFunction, MapOrigin
from tokenfeed.preparation.recipe import Recipe
from tokenfeed.preparation.records import Counts, Record, slice_name
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.writer import Writer
from tokenfeed.text.sources.portions import TextRules
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["SliceMaker", "Task", "Tell", "WorkerSetup"]

Tell = Callable[[Counts], None]
"""Called with the counts of a slice so far, several times a second."""


class Task(NamedTuple):
    """One slice to be made."""

    file: InputFile
    slice: Slice

    @property
    def name(self) -> str:
        """For messages."""
        return f"slice {self.slice.number} of {self.file.name}"


@dataclass(frozen=True)
class WorkerSetup:
    """Everything that every worker needs to know. Sent to it once."""

    out: str
    recipe: Recipe
    tokenizer: Tokenizer
    provenance: Mapping[str, Any]
    on_error: Literal["fail", "skip"] = "fail"
    map: MapOrigin | None = None

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
    """Makes slices, one after the other."""

    def __init__(self, setup: WorkerSetup, function: MapFunction | None = None) -> None:
        """`function` is the map function itself, in the process that has it."""
        self._setup = setup
        self._function = setup.map.load() if function is None and setup.map is not None else function
        self._workplace = Workplace(setup.out)

    def make(self, task: Task, tell: Tell) -> Record:
        """Shards and record of one slice. What a killed worker left of it is removed first."""
        try:
            return self._make(task, tell)
        except Exception as error:
            error.add_note(f"while {task.name} was being made")
            raise

    def _make(self, task: Task, tell: Tell) -> Record:
        recipe = self._setup.recipe
        name = slice_name(task.slice)
        names = {split: name if split is None else f"{name}-{split}" for split in recipe.splits}
        rules = TextRules(recipe.text_column, recipe.keep, self._setup.on_error, whole=self._function is not None)
        with hold(self._workplace.lock, exclusive=False), ExitStack() as stack:
            self._workplace.remove_shards(names.values())
            writers: dict[str | None, Writer] = {}

            def writer_of(split: str | None) -> Writer:
                if split not in writers:
                    opened = self._setup.open_writer(names[split], split, self._function)
                    writers[split] = stack.enter_context(opened)
                return writers[split]

            documents = DocumentWriter(recipe, self._setup.tokenizer, self._function, task.slice.file, writer_of)
            record = Record(task.slice, task.file.digest, counts=documents.counts)
            for portion in read_slice(task.file, task.slice, rules):
                documents.add(portion)
                record.problems += portion.problems
                tell(documents.counts)
            stack.close()
            record.shards = dict(self._workplace.made_shards(names.values()))
            self._workplace.put_record(record)
        return record
