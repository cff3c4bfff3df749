"""Conversations for fine-tuning: rendered with a loss mask, packed whole, padded.

A conversation becomes BOS and, message by message, special tokens around the text. The assistant's words are learned
(mask 1: its text, the Python it runs, and the token that ends its turn); those of users, tools and the frame are not.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tokenfeed.errors import ArgumentError, FitError, FormatError, quantity
from tokenfeed.loader.launch import find_rank
from tokenfeed.plan.steps import BatchSizes
from tokenfeed.store.batch import HostBatch
from tokenfeed.text.sources.portions import MemoryGroup
from tokenfeed.text.streaming.documents import Documents, Encoded
from tokenfeed.text.streaming.feed import TextFeed
from tokenfeed.text.streaming.making import StreamOptions
from tokenfeed.text.streaming.packer import Packing
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Bools, Ints

__all__ = ["ConversationList", "Conversations", "render", "stream_chat"]

Conversation = Mapping[str, Any]
Part = tuple[str, int]
"""A special token's name or a text, and its mask: 0 or 1 for a text, 2 or 3 for a special token."""

_LEARNED = 1
_SPECIAL = 2
_MASK_BIT = 31
_SAMPLED = 64


@runtime_checkable
class ConversationList(Protocol):
    """A list of conversations, or a dataset object with a length and an index."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Conversation: ...


def stream_chat(
    conversations: ConversationList,
    tokenizer: Tokenizer | str | os.PathLike[str],
    *,
    batch_size: int | Mapping[int, int],
    length: int,
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
    """Endless batches of conversations, each `{"messages": [{"role": …, "content": …}, …]}`, as nanochat packs them.

    Rows hold whole conversations by best fit, and are padded where none fits. `batch.loss_mask` is False wherever there
    is nothing to learn. `too_long` says what happens to a conversation of more tokens than fit: "truncate" keeps the
    first `length` of them, as nanochat does with its rows of 2,048; "drop" leaves it out; "error" raises; "wait" keeps
    it in the buffer for ever, as nanochat does with shorter rows. Lane l has the conversations l, l + lanes, …, epoch
    after epoch. The other options are those of `stream`.
    """
    rank, world_size = find_rank(rank, world_size)
    sizes = BatchSizes(batch_size)
    options = StreamOptions(sizes, rank, world_size, lanes, epochs, threads, prefetch, collate, run)
    packing = Packing.padding(length=length, buffer_size=buffer_size)
    return TextFeed(Conversations(conversations, Tokenizer.of(tokenizer), length, too_long), packing, options)


def render(conversations: Iterable[Conversation], tokenizer: Tokenizer) -> tuple[Array, Bools, Ints]:
    """(ids, mask, offsets): conversation i is ids[offsets[i]:offsets[i + 1]]; mask says which tokens are learned."""
    return _render(enumerate(conversations), tokenizer)


def _render(numbered: Iterable[tuple[int, Conversation]], tokenizer: Tokenizer) -> tuple[Array, Bools, Ints]:
    parts = [_parts_of(number, conversation) for number, conversation in numbered]
    flat = [part for conversation in parts for part in conversation]
    texts, text_offsets = tokenizer.encode_batch([text for text, kind in flat if kind < _SPECIAL], threads=1)
    kinds = np.array([kind for _, kind in flat], np.int64)
    is_text = kinds < _SPECIAL
    lengths = np.ones(len(flat), np.int64)
    lengths[is_text] = np.diff(text_offsets)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.empty(ends[-1], tokenizer.dtype)
    of_text = np.repeat(is_text, lengths)
    ids[of_text] = texts
    ids[~of_text] = [tokenizer.special_id(name) for name, kind in flat if kind >= _SPECIAL]
    offsets = ends[np.concatenate([[0], np.cumsum([len(conversation) for conversation in parts])]).astype(np.int64)]
    return ids, np.repeat(kinds & _LEARNED, lengths).astype(np.bool_), offsets


def _parts_of(number: int, conversation: Conversation) -> list[Part]:
    try:
        return list(_parts(conversation))
    except FormatError as error:
        raise FormatError(f"conversation {number}, which begins {str(conversation)[:80]!r}: {error}") from None


def _parts(conversation: Conversation) -> Iterator[Part]:
    messages = conversation.get("messages") if isinstance(conversation, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise FormatError(f"a conversation is a dict with a list of messages, not {str(conversation)[:80]!r}")
    if messages[0].get("role") == "system":  # joins the user's first message
        if len(messages) < 2 or messages[1].get("role") != "user":
            raise FormatError("a system message must be followed by a user's")
        first = {"role": "user", "content": f"{_text(messages[0])}\n\n{_text(messages[1])}"}
        messages = [first, *messages[2:]]
    yield "<|bos|>", _SPECIAL
    for number, message in enumerate(messages):
        role = ("user", "assistant")[number % 2]
        if message.get("role") != role:
            raise FormatError(f"message {number} is from {message.get('role')!r}, not from {role!r}: they take turns")
        if role == "user":
            yield from (("<|user_start|>", _SPECIAL), (_text(message), 0), ("<|user_end|>", _SPECIAL))
            continue
        yield "<|assistant_start|>", _SPECIAL
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"type": "text", "text": _text(message)}]:
            yield from _assistant_part(part)
        yield "<|assistant_end|>", _SPECIAL | _LEARNED


def _assistant_part(part: Mapping[str, Any]) -> Iterator[Part]:
    match part:
        case {"type": "text", "text": str(text)}:
            yield text, _LEARNED
        case {"type": "python" | "python_output" as kind, "text": str(text)}:
            name, learned = ("python", _LEARNED) if kind == "python" else ("output", 0)
            special = _SPECIAL | learned
            yield from ((f"<|{name}_start|>", special), (text, learned), (f"<|{name}_end|>", special))
        case _:
            raise FormatError(
                f"a part of an assistant's message is {str(part)[:80]}, not text, python or python_output"
            )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise FormatError(f"the content of a {message.get('role')} message is {type(content).__name__}, not text")
    return content


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


class Conversations(Documents):
    """Conversations as the documents of a stream. The mask of a token travels in its highest bit.

    Lanes do not begin to count again in a new epoch: lane 1 of 2 has conversations 1, 0, 2, 1, … of three, as nanochat.
    """

    def __init__(
        self, conversations: ConversationList, tokenizer: Tokenizer, length: int, too_long: str = "truncate"
    ) -> None:
        if isinstance(conversations, str | bytes) or not isinstance(conversations, ConversationList):
            raise ArgumentError(
                f"conversations is {type(conversations).__name__}; expected a list of dicts with messages, or a "
                "dataset with a length and an index. Read the lines of a JSONL file with json.loads"
            )
        if too_long not in ("truncate", "drop", "error", "wait"):
            raise ArgumentError(f"too_long is {too_long!r}; it must be 'truncate', 'drop', 'error' or 'wait'")
        texts = _ConversationFile(conversations)
        super().__init__(texts, tokenizer, dtype=np.dtype(np.uint32), restart="never")
        self._conversations = conversations
        self._length = length
        self._too_long = too_long
        self._num_dropped = 0

    def check(self, num_lanes: int) -> None:
        if len(self._conversations) < num_lanes:
            few = quantity(len(self._conversations), "conversation")
            raise ArgumentError(f"{quantity(num_lanes, 'lane')}, but only {few}: some would have nothing to read")

    def encode(self, texts: list[Any]) -> Encoded:
        ids, mask, offsets = _render(texts, self._tokenizer)
        tokens = ids.astype(np.uint32) | (mask.astype(np.uint32) << np.uint32(_MASK_BIT))
        lengths = np.diff(offsets)
        width = self._length + 1
        if self._too_long == "error" and lengths.size and lengths.max() > width:
            number = texts[int(lengths.argmax())][0]
            raise FitError(
                f"conversation {number} has {lengths.max():,} tokens, and a row holds {width:,}. Choose a greater "
                "length, or too_long='truncate' or 'drop'"
            )
        if self._too_long == "wait":
            return tokens, offsets
        if self._too_long == "truncate":
            kept = np.minimum(lengths, self._length)
        else:  # one that is left out becomes a document without tokens, which never waits
            kept = np.where(lengths > width, 0, lengths)
            self._num_dropped = 0 if kept.any() else self._num_dropped + kept.size
            if self._num_dropped >= len(self._conversations):
                raise FitError(f"no conversation fits a row of {width:,} tokens; choose a greater length")
        places = np.arange(tokens.size) - np.repeat(offsets[:-1], lengths)
        return tokens[places < np.repeat(kept, lengths)], np.concatenate([[0], np.cumsum(kept)])

    def make_rows(self, packed: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        tokens = (packed & np.uint32((1 << _MASK_BIT) - 1)).astype(self._tokenizer.dtype)
        learned = (packed >> np.uint32(_MASK_BIT)).astype(np.bool_)
        return StreamRows(tokens, pieces, samples, crosses_documents=crosses_documents, learned=learned)

    def parts(self) -> dict[str, Any]:
        count = len(self._conversations)
        sampled = np.unique(np.linspace(0, count - 1, _SAMPLED).astype(int)).tolist()
        text = json.dumps([self._conversations[number] for number in sampled], sort_keys=True, default=str).encode()
        return {
            "conversations": [count, hashlib.blake2b(text, digest_size=8).hexdigest()],
            "tokenizer": self._tokenizer.digest,
            "too_long": self._too_long,
        }

    def __repr__(self) -> str:
        return f"Conversations({len(self._conversations):,})"
