"""Documents on their way into a store: encoded, put into their split, with what the map function returns for them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.preparation.long_texts import LongText
from tokenfeed.preparation.mapping import Characters, MapFunction, Span, tile
from tokenfeed.preparation.recipe import Recipe, choose_split
from tokenfeed.preparation.records import Counts
from tokenfeed.store.writer import Writer
from tokenfeed.text.sources.portions import Portion
from tokenfeed.text.sources.splitting import HASHED_CHARACTERS
from tokenfeed.text.tokenizer.pieces import join_surrogates
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array

__all__ = ["DocumentWriter"]

Kept = Mapping[str, Any]


class DocumentWriter:
    """Takes the portions of one slice. Memory is that of a portion; a long document is written piece by piece."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: Tokenizer,
        function: MapFunction | None,
        file: int,
        writer_of: Callable[[str | None], Writer],
    ) -> None:
        """`writer_of` gives the writer of a split."""
        self.counts = Counts()
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._function = function
        self._file = file
        self._writer_of = writer_of
        self._long: _LongDocument | None = None

    def add(self, portion: Portion) -> None:
        """Write whole documents, or a piece of one."""
        self.counts.input_bytes = portion.input_bytes
        self.counts.malformed += portion.num_malformed
        self.counts.null += portion.num_null
        self.counts.characters += sum(map(len, portion.texts))
        if portion.begins and portion.ends:
            self._add_whole(portion.texts, portion.kept)
            return
        if portion.begins:
            self._long = _LongDocument(self._tokenizer.vocabulary.pattern, portion.kept[0])
        assert self._long is not None, "the first piece of a document begins it"
        self._add_piece(self._long, portion.texts[0], ends=portion.ends)

    def _add_whole(self, texts: Sequence[str], kept: Sequence[Kept]) -> None:
        splits = [choose_split(self._recipe, self._file, text) for text in texts]
        self.counts.empty += sum(not text for text in texts)
        if self._function is not None:
            texts = [join_surrogates(text) for text in texts]
        for split in self._recipe.splits:
            chosen = [number for number, one in enumerate(splits) if one == split]
            if not chosen:
                continue
            if len(chosen) < len(texts):
                self._write(split, [texts[number] for number in chosen], [kept[number] for number in chosen])
            else:
                self._write(split, texts, kept)

    def _write(self, split: str | None, texts: Sequence[str], kept: Sequence[Kept]) -> None:
        recipe = self._recipe
        ids, offsets = self._tokenizer.encode_batch(
            texts, threads=1, prepend=recipe.bos, append=recipe.eos, dtype=recipe.dtype
        )
        if self._function is None:
            spans = {"documents": kept} if recipe.keep else {}
            self._writer_of(split).append({"tokens": ids}, lengths=np.diff(offsets).tolist(), **spans)
            self._count(split, len(texts), len(ids))
            return
        for text, values, (start, stop) in zip(texts, kept, itertools.pairwise(offsets.tolist()), strict=True):
            self._write_mapped(self._function, split, text, values, ids[start:stop])

    def _write_mapped(self, function: MapFunction, split: str | None, text: str, kept: Kept, tokens: Array) -> None:
        made = function(text, kept, tokens)
        if made is None:
            self.counts.dropped += 1
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
                tables[table] = spans.to_tokens(text, tokens, self._tokenizer.token_bytes)
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

    def _add_piece(self, long: "_LongDocument", text: str, *, ends: bool) -> None:
        recipe = self._recipe
        ready = long.add(text, ends)
        if not ready and not ends:
            return
        bos, eos = None if long.is_begun else recipe.bos, recipe.eos if ends else None
        ids, _ = self._tokenizer.encode_batch([ready], threads=1, prepend=bos, append=eos, dtype=recipe.dtype)
        split = choose_split(recipe, self._file, long.head)
        if long.is_begun:
            self._writer_of(split).extend({"tokens": ids})
        else:
            payload: dict[str, Any] = {"documents": long.kept} if recipe.keep else {}
            self._writer_of(split).append({"tokens": ids}, **payload)
        self._count(split, 0 if long.is_begun else 1, len(ids))
        long.is_begun = True

    def _count(self, split: str | None, documents: int, tokens: int) -> None:
        self.counts.documents += documents
        self.counts.tokens += tokens
        if split == "val":
            self.counts.val_documents += documents
            self.counts.val_tokens += tokens


class _LongDocument:
    """A document that has not been read to its end."""

    def __init__(self, pattern: str, kept: Kept) -> None:
        self.kept = kept
        self.head = ""
        """Its first characters, which decide its split."""
        self.is_begun = False
        """Whether some of it is written."""
        self._text = LongText(pattern)
        self._ready: list[str] = []

    def add(self, piece: str, ends: bool) -> str:
        """The text that can be encoded and written now."""
        self.head += piece[: HASHED_CHARACTERS - len(self.head)]
        self._ready.append(self._text.add(piece))
        if ends:
            self._ready.append(self._text.finish())
        elif len(self.head) < HASHED_CHARACTERS:
            return ""
        ready = "".join(self._ready)
        self._ready.clear()
        return ready
