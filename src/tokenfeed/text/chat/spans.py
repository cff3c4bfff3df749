"""Where the messages of a conversation lie in its rendering, found by rendering parts of it and comparing, exactly.

A turn of the assistant begins where the rendering of what comes before it, with a generation prompt, ends; and it ends
where the rendering that stops after it does. Three habits of templates need more care:

* something comes only at the very end of a conversation (Phi 3: EOS), so that a part is no prefix of the whole;
* the generation prompt holds what a stored turn does not (DeepSeek R1: `<think>`);
* earlier turns are written otherwise once others follow (Qwen 3 drops their thinking, Mistral moves the system prompt).

There, the content of a message is replaced by two probes, `0` and `1`. Where the two renderings part is where the
content begins, and from where they agree again is where it ends. Whatever is found that way must hold for the rendering
itself, or the conversation is refused.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from tokenfeed.errors import FormatError
from tokenfeed.text.chat.template import Message, Span

__all__ = ["SpanFinder"]

Render = Callable[[Sequence[Message], bool], str]
"""(messages, whether to add the generation prompt) → text."""


class SpanFinder:
    """Finds the spans of messages in one conversation: what is said, and the tokens that end it."""

    def __init__(self, render: Render, messages: Sequence[Message], special: re.Pattern[str]) -> None:
        """`special` matches special tokens, which are compared as one sign: `<|user|>` and `<|end|>` share nothing."""
        self._render = render
        self._messages = messages
        self._special = special
        self._whole = render(messages, False)

    def find(self, number: int) -> Span:
        """The span of a message. A FormatError where the template does not let it be found."""
        start = self._start(number)
        return start, max(start, self._end(number))

    def _start(self, number: int) -> int:
        message = self._messages[number]
        if message.get("role") != "assistant":
            return self._around(number)[0]
        before, prompt = self._messages[:number], ""
        if before:
            prompt = self._render(before, True)
            agreed = self._agree(prompt, self._whole)
            if agreed == len(prompt):
                return agreed
            if agreed >= self._agree(prompt, self._render(before, False)):  # only the generation prompt is another
                first, second = self._probe(before, message, [])
                return min(agreed, self._agree(prompt, first[: self._agree(first, second)]))
        if message.keys() - {"role", "content"}:
            raise self._refusal(number)
        return self._after_prompt(prompt, self._around(number)[0])

    def _after_prompt(self, prompt: str, start: int) -> int:
        """The end of the generation prompt before a content, if that is known by a special token: what comes between is
        a part of the turn, as the space that Llama and Mistral begin one with."""
        tail = prompt[max((found.start() for found in self._special.finditer(prompt)), default=len(prompt)) :]
        place = self._whole.rfind(tail, 0, start) if tail else -1
        end = place + len(tail)
        return start if place < 0 or self._special.search(self._whole, end, start) else end

    def _end(self, number: int) -> int:
        if number == len(self._messages) - 1:
            return len(self._whole)
        before, message = self._messages[:number], self._messages[number]
        part = self._render([*before, message], False)
        if self._agree(part, self._whole) == len(part):
            return len(part)
        stop = self._around(number)[1]
        first, second = self._probe(before, message, [])
        closing = first[len(first) - _common(first[::-1], second[::-1]) :]
        return stop + self._agree(self._whole[stop:], closing)

    def _around(self, number: int) -> Span:
        """Where the content of a message begins and ends."""
        first, second = self._probe(self._messages[:number], self._messages[number], self._messages[number + 1 :])
        start, rest = self._agree(first, second), _common(first[::-1], second[::-1])
        stop = len(self._whole) - rest
        is_found = first[start : len(first) - rest] == "0" and start <= stop
        if not is_found or self._agree(first, self._whole) < start or not first.endswith(self._whole[stop:]):
            raise self._refusal(number)
        return start, stop

    def _probe(self, before: Sequence[Message], message: Message, after: Sequence[Message]) -> list[str]:
        return [self._render([*before, {**message, "content": probe}, *after], False) for probe in "01"]

    def _agree(self, one: str, other: str) -> int:
        """How many characters they have in common from the start, without half of a special token."""
        agreed = _common(one, other)
        for text in (one, other):
            for start in range(max(0, agreed - _LONGEST_NAME), agreed):
                found = self._special.match(text, start)
                if found is not None and found.end() > agreed:
                    agreed = start
                    break
        return agreed

    def _refusal(self, number: int) -> FormatError:
        role: Any = self._messages[number].get("role")
        return FormatError(
            f"the chat template writes message {number}, from {role!r}, otherwise once others follow, so that what is "
            "said in it cannot be told from the rest. Put {% generation %} and {% endgeneration %} around what the "
            "assistant says in the template, or learn the last turn alone: train_on='last' (--train-on last)"
        )


_LONGEST_NAME = 64


def _common(one: str, other: str) -> int:
    """How many characters they have in common from the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
