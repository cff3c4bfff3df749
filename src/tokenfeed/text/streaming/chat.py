"""Conversations for fine-tuning on the streaming road: written with a loss mask, packed whole, padded."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tokenfeed.errors import ArgumentError, FitError, FormatError, quantity, whole
from tokenfeed.loader.launch import find_rank
from tokenfeed.store.batch import HostBatch
from tokenfeed.text.chat.rendering import Chat, ChatRecords, RenderedRecord, encode_records, render_one
from tokenfeed.text.chat.template import ChatTemplate
from tokenfeed.text.sources.files import TextFiles, first_record
from tokenfeed.text.sources.finding import CHAT_ENDINGS, PathLike
from tokenfeed.text.sources.portions import MemoryGroup
from tokenfeed.text.sources.splitting import Val, tell_held_out
from tokenfeed.text.streaming.documents import Documents, Encoded, FileDocuments
from tokenfeed.text.streaming.feed import TextFeed
from tokenfeed.text.streaming.making import StreamOptions
from tokenfeed.text.streaming.packer import Packing
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints

__all__ = ["ConversationFiles", "ConversationList", "Conversations", "stream_chat"]

_MASK_BIT = 31
_SAMPLED = 64
_MOST_DROPPED = 1 << 20
_REFILL = 16


@runtime_checkable
class ConversationList(Protocol):
    """A list of conversations, or a dataset object with a length and an index."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Mapping[str, Any]: ...


def stream_chat(
    source: ConversationList | PathLike | Sequence[PathLike],
    tokenizer: Tokenizer | PathLike,
    *,
    batch_size: int,
    length: int,
    chat: Chat | ChatTemplate | PathLike | None = None,
    split: str = "train",
    val: Val = 0.001,
    buffer_size: int = 100,
    too_long: str = "truncate",
    lanes: int | None = None,
    epochs: int | None = None,
    threads: int = 2,
    prefetch: int = 4,
    rank: int | None = None,
    world_size: int | None = None,
    collate: Callable[[HostBatch], Any] | None = None,
    run: str | Path | None = None,
) -> TextFeed:
    """Endless batches of conversations, from JSONL or Parquet files (a folder, a pattern, a list), or from a list.

    Conversations are written by `chat`: a template, or a `Chat` with its layout and the messages that are learned; by
    default the template in the tokenizer's folder, or nanochat's way. `split` and `val` are for files, as in `stream`.

    Rows hold whole conversations by best fit, and are padded where none fits, as nanochat packs them. `batch.loss_mask`
    is False wherever there is nothing to learn. `too_long` says what happens to a conversation of more tokens than fit:
    "truncate" keeps the first `length` of them, as nanochat does with its rows of 2,048; "drop" leaves it out; "error"
    raises; "wait" keeps it in the buffer for ever, as nanochat does with shorter rows. Lane l has the conversations l,
    l + lanes, … of a list, epoch after epoch; of files, groups of rows. The other options are those of `stream`.
    """
    rank, world_size = find_rank(rank, world_size)
    size = whole("batch_size", batch_size, 1)
    options = StreamOptions(size, rank, world_size, lanes, epochs, threads, prefetch, collate, run)
    packing = Packing.padding(length=length, buffer_size=buffer_size)
    paths = _as_paths(source)
    records = Chat.of(True if chat is None else chat).open(tokenizer)
    if paths is None:
        return TextFeed(Conversations(source, records, length, too_long), packing, options)
    if records.layout is None:
        records = records.with_layout(*first_record(paths))
    files = TextFiles.find(paths, endings=CHAT_ENDINGS, split=split, val=val, records=records)
    if rank == 0:
        tell_held_out(files.held_out)
    return TextFeed(ConversationFiles(files, records, length, too_long), packing, options)


def _as_paths(source: Any) -> list[PathLike] | None:
    """The paths that were given; None where conversations were."""
    given = [source] if isinstance(source, str | os.PathLike) else source
    is_list = isinstance(given, list | tuple) and bool(given)
    return list(given) if is_list and all(isinstance(one, str | os.PathLike) for one in given) else None


class _Masked(Documents, ABC):
    """Conversations as the documents of a stream. The mask of a token travels in its highest bit."""

    _records: ChatRecords
    _most_dropped: int
    _num_dropped = 0

    def _set(self, length: int, too_long: str) -> None:
        if too_long not in ("truncate", "drop", "error", "wait"):
            raise ArgumentError(f"too_long is {too_long!r}; it must be 'truncate', 'drop', 'error' or 'wait'")
        self._length = length
        self._too_long = too_long

    @abstractmethod
    def _write(self, document: Any) -> tuple[str, RenderedRecord]:
        """A name for a conversation, and itself, written."""

    def encode(self, texts: list[Any]) -> Encoded:
        names, records = zip(*map(self._write, texts), strict=True) if texts else ((), ())
        if pair := next((name for name, record in zip(names, records, strict=True) if len(record.sides) > 1), None):
            raise FormatError(
                f"{pair} is a pair of chosen and rejected, which a stream would tear apart. Prepare a store "
                "(`tokenfeed prepare --chat`), or take Chat(layout='chosen')"
            )
        ids, mask, offsets = encode_records(records, self._tokenizer)
        tokens = ids.astype(np.uint32) | (mask.astype(np.uint32) << np.uint32(_MASK_BIT))
        lengths = np.diff(offsets)
        width = self._length + 1
        if self._too_long == "error" and lengths.size and lengths.max() > width:
            raise FitError(
                f"{names[int(lengths.argmax())]} has {lengths.max():,} tokens, and a row holds {width:,}. Choose a "
                "greater length, or too_long='truncate' or 'drop'"
            )
        if self._too_long == "wait":
            return tokens, offsets
        if self._too_long == "truncate":
            kept = np.minimum(lengths, self._length)
        else:  # one that is left out becomes a document without tokens, which never waits
            kept = np.where(lengths > width, 0, lengths)
            self._num_dropped = 0 if kept.any() else self._num_dropped + kept.size
            if self._num_dropped >= self._most_dropped:
                raise FitError(f"no conversation fits a row of {width:,} tokens; choose a greater length")
        places = np.arange(tokens.size) - np.repeat(offsets[:-1], lengths)
        return tokens[places < np.repeat(kept, lengths)], np.concatenate([[0], np.cumsum(kept)])

    def make_rows(self, packed: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        tokens = (packed & np.uint32((1 << _MASK_BIT) - 1)).astype(self._tokenizer.dtype)
        learned = (packed >> np.uint32(_MASK_BIT)).astype(np.bool_)
        return StreamRows(tokens, pieces, samples, crosses_documents=crosses_documents, learned=learned)

    def _settings(self) -> dict[str, Any]:
        return {"chat": self._records.name, "too_long": self._too_long}


class ConversationFiles(_Masked, FileDocuments):
    """Conversations in files."""

    def __init__(self, files: TextFiles, records: ChatRecords, length: int, too_long: str = "truncate") -> None:
        super().__init__(files, records.tokenizer, refill_size=_REFILL, dtype=np.dtype(np.uint32))
        self._records, self._most_dropped = records, _MOST_DROPPED
        self._set(length, too_long)

    def _write(self, document: RenderedRecord) -> tuple[str, RenderedRecord]:
        return f"the conversation that begins {document.key[:80]!r}", document

    def _parts(self, files: TextFiles) -> dict[str, Any]:
        return {**super()._parts(files), **self._settings()}


class _ConversationFile:
    """Conversations as one file, in which each is a row group."""

    paths = ("conversations",)

    def __init__(self, conversations: ConversationList) -> None:
        self._conversations = conversations

    def __len__(self) -> int:
        return 1

    def num_groups(self, file: int) -> int:
        return len(self._conversations)

    def has_group(self, file: int, group: int) -> bool:
        return group < len(self._conversations)

    def read(self, file: int, group: int, start: int = 0) -> MemoryGroup[Any] | None:
        """The number of a conversation, and the conversation."""
        is_there = start == 0 and self.has_group(file, group)
        return MemoryGroup([(group, self._conversations[group])], lambda row: row, 0) if is_there else None


class Conversations(_Masked):
    """Conversations in memory.

    Lanes do not begin to count again in a new epoch: lane 1 of 2 has conversations 1, 0, 2, 1, … of three, as nanochat.
    """

    def __init__(self, conversations: Any, records: ChatRecords, length: int, too_long: str = "truncate") -> None:
        if not isinstance(conversations, ConversationList):
            raise ArgumentError(
                f"conversations is {type(conversations).__name__}; expected files of JSONL or Parquet, a list of dicts "
                "with messages, or a dataset with a length and an index"
            )
        texts = _ConversationFile(conversations)
        super().__init__(texts, records.tokenizer, dtype=np.dtype(np.uint32), restart="never")
        self._conversations = conversations
        self._records, self._most_dropped = records, len(conversations)
        self._set(length, too_long)

    def check(self, num_lanes: int) -> None:
        if len(self._conversations) < num_lanes:
            few = quantity(len(self._conversations), "conversation")
            raise ArgumentError(f"{quantity(num_lanes, 'lane')}, but only {few}: some would have nothing to read")

    def _write(self, document: tuple[int, Mapping[str, Any]]) -> tuple[str, RenderedRecord]:
        return f"conversation {document[0]}", render_one(self._records, *document)

    def parts(self) -> dict[str, Any]:
        count = len(self._conversations)
        sampled = np.unique(np.linspace(0, count - 1, _SAMPLED).astype(int)).tolist()
        text = json.dumps([self._conversations[number] for number in sampled], sort_keys=True, default=str).encode()
        return {
            "conversations": [count, hashlib.blake2b(text, digest_size=8).hexdigest()],
            "tokenizer": self._tokenizer.digest,
            **self._settings(),
        }

    def __repr__(self) -> str:
        return f"Conversations({len(self._conversations):,})"
