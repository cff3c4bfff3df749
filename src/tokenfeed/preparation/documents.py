"""One slice of one input, made into shards of its own: the same bytes by any worker, however often."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.collate import SIDES
from tokenfeed.preparation.inputs import InputFile, Slice, read_slice
from tokenfeed.preparation.mapping import Characters, MapFunction, MapOrigin, Span, tile
from tokenfeed.preparation.records import Counts, Recipe, Record, slice_name
from tokenfeed.preparation.tokens import TokenPortion
from tokenfeed.preparation.workplace import Workplace
from tokenfeed.store.spec import LOSS_MASK
from tokenfeed.store.writer import Writer
from tokenfeed.text.chat.rendering import ChatRecords, RenderedRecord, encode_records
from tokenfeed.text.sources.portions import Portion, TextRules
from tokenfeed.text.sources.splitting import HASHED_CHARACTERS, is_val
from tokenfeed.text.tokenizer.pieces import join_surrogates
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array

__all__ = ["SliceMaker", "Task", "Tell", "WorkerSetup"]

Tell = Callable[[Counts], object]
"""Called with the counts of a slice so far, several times a second."""

Kept = Mapping[str, Any]


class Task(NamedTuple):
    """One slice to be made."""

    file: InputFile
    slice: Slice

    @property
    def name(self) -> str:
        return f"slice {self.slice.number} of {self.file.name}"


@dataclass(frozen=True)
class WorkerSetup:
    """Everything that every worker needs to know. Sent to it once."""

    out: str
    recipe: Recipe
    tokenizer: Tokenizer | None
    provenance: Mapping[str, Any]
    on_error: Literal["fail", "skip"] = "fail"
    map: MapOrigin | None = None
    chat: ChatRecords | None = None

    def open_writer(self, name: str | None, split: str | None, function: MapFunction | None) -> Writer:
        """A writer of shards of one split, which leaves the manifest alone and makes again what may be there."""
        columns, spans = {"tokens": self.recipe.dtype}, {"documents": "json" if self.recipe.keep else None}
        if function is not None:
            columns, spans = {**columns, **function.columns}, {**spans, **function.spans}
        if self.chat is not None:
            columns[LOSS_MASK] = "bool"
            spans |= {SIDES: "utf8"} if self.chat.is_paired else {}
        return Writer(
            self.out,
            mode="append",
            columns=columns,
            spans=spans,
            split=split,
            name=name,
            shard_bytes=self.recipe.shard_bytes,
            tokenizer=self.recipe.identity,
            provenance=self.provenance,
            seal=False,
            redo=name is not None,
        )


class SliceMaker:
    """Makes slices, one after the other."""

    def __init__(self, setup: WorkerSetup, function: MapFunction | None = None) -> None:
        """`function` is the map function itself, in the process that has it."""
        self._setup = setup
        self._function = setup.map.load() if function is None and setup.map is not None else function
        self._workplace = Workplace(setup.out)

    def make(self, task: Task, tell: Tell) -> Record:
        """Shards and record of one slice, unless another run has made them meanwhile."""
        try:
            with self._workplace.lock as lock:
                lock.take(exclusive=False)
                return self._workplace.find_record(task.slice, task.file.digest) or self._make(task, tell)
        except Exception as error:
            error.add_note(f"while {task.name} was being made")
            raise

    def _make(self, task: Task, tell: Tell) -> Record:
        setup, recipe = self._setup, self._setup.recipe
        name = slice_name(task.slice)
        splits = ("train", "val") if task.file.split == "train" and recipe.val else (task.file.split,)
        names = {split: name if split is None else f"{name}-{split}" for split in splits}
        rules = TextRules(recipe.text_column, recipe.keep, setup.on_error)
        record = Record(task.slice, task.file.digest)
        writers: dict[str | None, Writer] = {}
        with ExitStack() as stack:

            def writer_of(split: str | None) -> Writer:
                if split not in writers:
                    opened = setup.open_writer(names[split], split, self._function)
                    writers[split] = stack.enter_context(opened)
                return writers[split]

            documents = _DocumentWriter(setup, self._function, task.file.split, record.counts, writer_of)
            for portion in _read_ahead(read_slice(task.file, task.slice, rules, recipe.num_ids, setup.chat)):
                documents.add(portion)
                record.problems += portion.problems
                tell(record.counts)
        made = [shard for writer in writers.values() for shard in writer.shards.items()]
        record.shards = dict(sorted(made))
        self._workplace.put_record(record)
        return record


def _read_ahead(portions: Iterator[Portion]) -> Iterator[Portion]:
    """The same portions; the next one is read and decoded while one is encoded and written."""
    with ThreadPoolExecutor(1, "tokenfeed-read") as pool:
        following = pool.submit(next, portions, None)
        while (portion := following.result()) is not None:
            following = pool.submit(next, portions, None)
            yield portion


class _DocumentWriter:
    """Encodes the portions of one slice and puts them into their splits, with what the map function returns for them.

    Memory is that of a portion.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        function: MapFunction | None,
        file_split: str | None,
        counts: Counts,
        writer_of: Callable[[str | None], Writer],
    ) -> None:
        self._recipe, self._tokenizer, self._function = setup.recipe, setup.tokenizer, function
        self._chat = setup.chat
        self._file_split, self._counts, self._writer_of = file_split, counts, writer_of

    def add(self, portion: Portion) -> None:
        counts = self._counts
        counts.input_bytes = portion.input_bytes
        counts.malformed += portion.num_malformed
        counts.null += portion.num_null
        counts.characters += sum(map(len, portion.texts))
        if isinstance(portion, TokenPortion):
            self._add_tokens(portion.tokens, portion.kept)
        elif self._chat is not None:
            self._add_conversations(portion.texts, portion.kept)
        else:
            self._add_texts(portion.texts, portion.kept)

    def _add_texts(self, texts: Sequence[str], kept: Sequence[Kept]) -> None:
        splits = [self._split_of(text) for text in texts]
        self._counts.empty += sum(not text for text in texts)
        if self._function is not None:
            texts = [join_surrogates(text) for text in texts]
        for split in dict.fromkeys(splits):
            chosen = [number for number, one in enumerate(splits) if one == split]
            self._write(split, [texts[number] for number in chosen], [kept[number] for number in chosen])

    def _add_tokens(self, tokens: Sequence[Array], kept: Sequence[Kept]) -> None:
        """Documents that are tokens already. Which are `val` follows from a hash of their first 1,024 ids."""
        recipe = self._recipe
        before, after = (np.array([] if one is None else [one], np.int64) for one in (recipe.bos, recipe.eos))
        for ids, values in zip(tokens, kept, strict=True):
            split = self._split_of(ids[: HASHED_CHARACTERS // 4].astype("<u4").tobytes().decode("latin-1"))
            items = np.concatenate((before, ids, after)).astype(recipe.dtype)
            payload: dict[str, Any] = {"documents": values} if recipe.keep else {}
            self._counts.empty += not len(ids)
            self._writer_of(split).append({"tokens": items}, **payload)
            self._count(split, 1, len(items))

    def _add_conversations(self, records: Sequence[RenderedRecord], kept: Sequence[Kept]) -> None:
        """A conversation is a document with its loss mask; a pair is a document with two sides."""
        assert self._tokenizer is not None
        ids, mask, offsets = encode_records(records, self._tokenizer)
        tokens, places = ids.astype(self._recipe.dtype), iter(itertools.pairwise(offsets.tolist()))
        for record, values in zip(records, kept, strict=True):
            split = self._split_of(record)
            writer = self._writer_of(split)
            payload: dict[str, Any] = {"documents": values} if self._recipe.keep else {}
            bounds = itertools.islice(places, len(record.sides))
            for side, (start, stop) in zip(("chosen", "rejected"), bounds, strict=False):
                columns = {"tokens": tokens[start:stop], LOSS_MASK: mask[start:stop]}
                sides: dict[str, Any] = {SIDES: side} if len(record.sides) > 1 else {}
                if side == "chosen":
                    writer.append(columns, **payload, **sides)
                else:
                    writer.extend(columns, **sides)
                self._count(split, side == "chosen", stop - start)

    def _write(self, split: str | None, texts: Sequence[str], kept: Sequence[Kept]) -> None:
        ids, offsets = self._encode(texts, self._recipe.bos, self._recipe.eos)
        if self._function is None:
            spans = {"documents": kept} if self._recipe.keep else {}
            self._writer_of(split).append({"tokens": ids}, lengths=np.diff(offsets).tolist(), **spans)
            self._count(split, len(texts), len(ids))
            return
        for text, values, (start, stop) in zip(texts, kept, itertools.pairwise(offsets.tolist()), strict=True):
            self._write_mapped(self._function, split, text, values, ids[start:stop])

    def _write_mapped(self, function: MapFunction, split: str | None, text: str, kept: Kept, tokens: Array) -> None:
        made = function(text, kept, tokens)
        if made is None:
            self._counts.dropped += 1
            return
        if made.keys() != {*function.columns, *function.spans}:
            raise ArgumentError(
                f"the map function returned {sorted(made)}; it declares columns {sorted(function.columns)} and span "
                f"tables {sorted(function.spans)}"
            )
        columns = {"tokens": tokens, **{name: np.asarray(made[name]) for name in function.columns}}
        for name, items in columns.items():
            if len(items) != len(tokens):
                raise ArgumentError(
                    f"the map function returned {len(items)} items of column {name!r}; the document has {len(tokens)} "
                    "tokens"
                )
        payload: dict[str, Any] = {"documents": kept} if self._recipe.keep else {}
        tables: dict[str, Sequence[Span]] = {}
        for table in function.spans:
            spans = made[table]
            if table == "documents":
                payload = {"documents": spans}
            elif isinstance(spans, Characters):
                assert self._tokenizer is not None
                tables[table] = spans.to_tokens(text, self._tokenizer.count_bytes(tokens))
            else:
                tables[table] = spans
        writer = self._writer_of(split)
        begun = tile(tables, len(tokens)) or [(0, {})]
        for number, (start, new) in enumerate(begun):
            stop = begun[number + 1][0] if number + 1 < len(begun) else len(tokens)
            part = {name: items[start:stop] for name, items in columns.items()}
            if number == 0:
                writer.append(part, **payload, **new)
            else:
                writer.extend(part, **new)
        self._count(split, 1, len(tokens))

    def _split_of(self, text: str | RenderedRecord) -> str | None:
        return "val" if self._file_split == "train" and is_val(text, self._recipe.val) else self._file_split

    def _encode(self, texts: Sequence[str], bos: int | None, eos: int | None) -> tuple[Array, Array]:
        assert self._tokenizer is not None
        return self._tokenizer.encode_batch(texts, threads=1, prepend=bos, append=eos, dtype=self._recipe.dtype)

    def _count(self, split: str | None, documents: int, tokens: int) -> None:
        self._counts.documents += documents
        self._counts.tokens += tokens
        if split == "val":
            self._counts.val_documents += documents
            self._counts.val_tokens += tokens
        elif split == "test":
            self._counts.test_documents += documents
            self._counts.test_tokens += tokens
