"""From records of conversations to tokens with a loss mask, by a model's template or in nanochat's way.

Special tokens come from the template alone. Those written out in a message, a tool or a role are ordinary text, so that
nobody who wrote a conversation can end a turn or begin another one in it. (transformers takes them for special tokens,
unless it is asked to sanitize them.)
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.text.chat.layouts import COLUMNS, Conversation, check_layout, find_layout, read_conversations
from tokenfeed.text.chat.nanochat import write_parts
from tokenfeed.text.chat.spans import SpanFinder
from tokenfeed.text.chat.template import ChatTemplate, Message, Span
from tokenfeed.text.tokenizer.hub import find_on_hub
from tokenfeed.text.tokenizer.pieces import join_surrogates
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Bools, Ints

__all__ = ["SIDES", "Chat", "ChatRecords", "RenderedRecord", "encode_records", "render", "render_one"]

SIDES = "sides"
"""Span table of a store of pairs: two spans, "chosen" and "rejected", in every document."""
_MARK = "\ufdd0"
"""Stands within special tokens that a message spells out, while it goes through a template."""
_MARKS = re.compile("[\ufdd0-\ufdd2]")
_NANOCHAT = "nanochat"


@dataclass(frozen=True)
class Chat:
    """How conversations are read, written and learned."""

    template: ChatTemplate | str | os.PathLike[str] | None = None
    """A model's folder, the file of a template, or "nanochat"; by default the template in the tokenizer's folder, or
    else nanochat's way, if the tokenizer has its special tokens."""
    layout: str | None = None
    """Name of the layout of the records (`text/chat/layouts.py`); by default that of the first record."""
    train_on: str | Collection[str] = "assistant"
    """Messages that are learned, with the token that ends them: a role, several roles, "last" for the last one of the
    assistant, or "all" for every token."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Values for the template, such as {"enable_thinking": False}."""

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if not self.roles:
            raise ArgumentError("train_on names no role; expected one, several, 'last' or 'all'")

    @property
    def roles(self) -> tuple[str, ...]:
        """What `train_on` names, sorted."""
        return (self.train_on,) if isinstance(self.train_on, str) else tuple(sorted(set(self.train_on)))

    @classmethod
    def of(cls, given: "Chat | bool | ChatTemplate | str | os.PathLike[str]") -> "Chat":
        """What was given for `chat`: settings, a template, or just True."""
        return given if isinstance(given, Chat) else cls() if isinstance(given, bool) else cls(given)

    def open(self, tokenizer: Tokenizer | str | os.PathLike[str], loaded: Tokenizer | None = None) -> "ChatRecords":
        """The reader of such conversations for a tokenizer, or for the one at a path, if that is not loaded yet."""
        loaded = loaded or Tokenizer.of(tokenizer)
        return ChatRecords(replace(self, template=self._find_template(tokenizer, loaded)), loaded)

    def _find_template(
        self, given: Tokenizer | str | os.PathLike[str], tokenizer: Tokenizer
    ) -> ChatTemplate | str | None:
        template = self.template
        if template is None and not isinstance(given, Tokenizer):
            path = find_on_hub(given) if isinstance(given, str) and given.startswith("hf://") else given
            folder = Path(path) if Path(path).is_dir() else Path(path).parent
            template = ChatTemplate.find(folder, variables=self.variables)
        elif isinstance(template, str | os.PathLike) and template != _NANOCHAT:
            template = ChatTemplate.load(template, variables=self.variables)
        if template is None and "<|assistant_start|>" in tokenizer.vocabulary.special_tokens:
            template = _NANOCHAT
        if template is None:
            raise ArgumentError(
                "there is no chat template: none beside the tokenizer, which does not have nanochat's special tokens "
                "either. Name the model's folder or the file of a template: Chat(template=…) (--template)"
            )
        if template == _NANOCHAT:
            if self.roles != ("assistant",):
                raise ArgumentError(
                    f"train_on is {self.train_on!r}; nanochat's way of writing conversations learns what the "
                    "assistant says. Leave it out, or give a template"
                )
            return _NANOCHAT
        assert isinstance(template, ChatTemplate)
        names = tokenizer.vocabulary
        return template.with_defaults({**self.variables, "bos_token": names.bos, "eos_token": names.eos})


@dataclass(frozen=True)
class RenderedRecord:
    """A record, written: one conversation, or the two of a pair."""

    sides: list[tuple[list[str | int], list[Span]]]
    """Texts and special tokens of each, and what is learned of it: characters, where a special token is one."""
    key: str
    """Its messages, by which its split is chosen."""

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, str) else 1 for parts, _ in self.sides for part in parts)


class ChatRecords:
    """Makes rendered conversations of the fields of records."""

    def __init__(self, chat: Chat, tokenizer: Tokenizer, special: re.Pattern[str] | None = None) -> None:
        """`special` matches the tokenizer's special tokens."""
        self._chat = chat
        self.tokenizer = tokenizer
        self._special = _match_special(tokenizer) if special is None else special
        self.columns = COLUMNS
        """Fields that it reads, of those there are."""

    def with_layout(self, fields: Mapping[str, Any], where: str) -> "ChatRecords":
        """The same for the layout that was given, or else that of a record."""
        layout = self._chat.layout or find_layout(fields, where)
        return ChatRecords(replace(self._chat, layout=layout), self.tokenizer, self._special)

    @property
    def layout(self) -> str | None:
        """None while no record was seen."""
        return self._chat.layout

    @property
    def is_paired(self) -> bool:
        return self.layout == "pairs"

    @property
    def name(self) -> str:
        """What a recipe and a state record."""
        template = self._chat.template
        how = template.digest if isinstance(template, ChatTemplate) else template
        return f"{how} layout={self._chat.layout} train_on={','.join(self._chat.roles)}"

    def __call__(self, fields: Mapping[str, Any]) -> RenderedRecord:
        """A record, written. A FormatError where it holds no conversation, or one that the template refuses."""
        assert self.layout is not None, "the layout is known once a record was seen"
        conversations = read_conversations(self.layout, fields)
        key = "\n".join(f"{message['role']}: {message.get('content')}" for message in conversations[0].messages)
        return RenderedRecord([self._write(one) for one in conversations], key)

    def _write(self, conversation: Conversation) -> tuple[list[str | int], list[Span]]:
        if isinstance(self._chat.template, ChatTemplate):
            return self._write_by_template(self._chat.template, conversation)
        parts, spans, end = list[str | int](), list[Span](), 0
        for text, is_special, is_learned in write_parts(conversation.messages, conversation.first):
            text = text if is_special else join_surrogates(text)
            parts.append(self.tokenizer.special_id(text) if is_special else text)
            begin, end = end, end + (1 if is_special else len(text))
            if is_learned:
                spans.append((begin, end))
        self._choose(conversation)  # refuses one in which nothing is learned
        return parts, spans

    def _write_by_template(
        self, template: ChatTemplate, conversation: Conversation
    ) -> tuple[list[str | int], list[Span]]:
        messages = [self._guard(_with_text(number, one)) for number, one in enumerate(conversation.messages)]
        tools = self._guard(conversation.tools)
        learned = self._choose(conversation)
        text, said = template.render(messages, tools=tools)
        if self._chat.roles == ("all",):
            return self._split(text, [(0, len(text))])
        spans: list[Span] = []
        if template.marks_speech:
            first = min((number for number in learned if messages[number]["role"] == "assistant"), default=None)
            learned = [number for number in learned if messages[number]["role"] != "assistant"]
            if first is not None:
                if any(message["role"] == "assistant" for message in messages[:first]):
                    before = template.render(messages[:first], tools=tools, add_generation_prompt=True)[1]
                    said = said[len(before) :]
                spans += said
                if not spans:
                    raise FormatError(f"{template.name} marks nothing of this conversation by generation tags")
        if learned:
            finder = SpanFinder(
                lambda some, prompt: template.render(some, tools=tools, add_generation_prompt=prompt)[0],
                messages,
                self._special,
            )
            spans += [finder.find(number) for number in learned]
        return self._split(text, spans)

    def _choose(self, conversation: Conversation) -> list[int]:
        """Messages that are learned."""
        roles = ("assistant",) if self._chat.roles == ("last",) else self._chat.roles
        numbers = range(conversation.first, len(conversation.messages))
        found = [number for number in numbers if conversation.messages[number]["role"] in roles]
        if not found and roles != ("all",):
            said = ", ".join(message["role"] for message in conversation.messages[conversation.first :]) or "nobody"
            raise FormatError(
                f"there is nothing to learn: no message from {' or '.join(roles)}, only from {said}. train_on=… "
                "(--train-on) says which are learned"
            )
        return found[-1:] if self._chat.roles == ("last",) else found

    def _guard(self, value: Any) -> Any:
        """A value for the template, in which a mark is within each special token that is spelled out."""
        if isinstance(value, str):
            if found := _MARKS.search(value):
                raise FormatError(f"a text holds U+{ord(found[0]):04X}, which is no character")
            return self._special.sub(lambda name: f"{name[0][0]}{_MARK}{name[0][1:]}", join_surrogates(value))
        if isinstance(value, Mapping):
            return {self._guard(key): self._guard(inner) for key, inner in value.items()}
        return [self._guard(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _split(self, text: str, spans: Iterable[Span]) -> tuple[list[str | int], list[Span]]:
        """Texts and special tokens, and the spans counted in them."""
        parts, widths, end = list[str | int](), np.ones(len(text), np.int64), 0
        for found in self._special.finditer(text):
            if found.start() > end:
                parts.append(text[end : found.start()].replace(_MARK, ""))
            parts.append(self.tokenizer.special_id(found[0]))
            end = found.end()
            widths[found.start() + 1 : end] = 0
        if end < len(text):
            parts.append(text[end:].replace(_MARK, ""))
        if _MARK in text:
            widths[[place for place, character in enumerate(text) if character == _MARK]] = 0
        places = np.concatenate(([0], np.cumsum(widths)))
        return parts, [(int(places[start]), int(places[stop])) for start, stop in spans]


def _match_special(tokenizer: Tokenizer) -> re.Pattern[str]:
    names = sorted(tokenizer.vocabulary.special_tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def _with_text(number: int, message: Message) -> dict[str, Any]:
    """A message whose content is one text where it was a list of texts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    parts: list[Any] = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if not isinstance(content, list) or not all(isinstance(text, str) for text in texts):
        raise FormatError(
            f"the content of message {number}, from {message['role']!r}, is {str(content)[:80]}; expected a text, or a "
            'list of {"type": "text", "text": …}'
        )
    return {**message, "content": "".join(map(str, texts))}


def encode_records(records: Sequence[RenderedRecord], tokenizer: Tokenizer) -> tuple[Array, Bools, Ints]:
    """(ids, mask, offsets) of all their conversations, one after the other: mask says which tokens are learned.

    A token is learned if any character of it is, as in transformers.
    """
    sides = [side for record in records for side in record.sides]
    ids, offsets, firsts, stops = tokenizer.encode_parts([parts for parts, _ in sides])
    mask = np.zeros(ids.size, np.bool_)
    for (_, spans), start, stop in zip(sides, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        begins, ends = firsts[start:stop], stops[start:stop]
        for first, last in spans:
            mask[start:stop] |= (begins < last) & (ends > first)
    return ids, mask, offsets


def render(
    conversations: Iterable[Mapping[str, Any]],
    tokenizer: Tokenizer | str | os.PathLike[str],
    *,
    chat: Chat | ChatTemplate | str | os.PathLike[str] | None = None,
) -> tuple[Array, Bools, Ints]:
    """(ids, mask, offsets): conversation i is ids[offsets[i]:offsets[i + 1]]; mask says which tokens are learned.

    `chat` is the template, or all settings; of a pair, the chosen conversation comes first, and then the rejected one.
    """
    records = Chat.of(True if chat is None else chat).open(tokenizer)
    written = [render_one(records, number, conversation) for number, conversation in enumerate(conversations)]
    return encode_records(written, records.tokenizer)


def render_one(records: ChatRecords, number: int, conversation: Any) -> RenderedRecord:
    """A conversation in memory, written; errors say which one it is."""
    where = f"conversation {number}, which begins {str(conversation)[:80]!r}"
    try:
        if not isinstance(conversation, Mapping):
            raise FormatError(f"a conversation is a dict with a list of messages, not {str(conversation)[:80]!r}")
        return records.with_layout(conversation, where)(conversation)
    except FormatError as error:
        raise (error if str(error).startswith(where) else FormatError(f"{where}: {error}")) from None
