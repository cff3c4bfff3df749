"""nanochat's own way to write a conversation, for tokenizers with its special tokens.

A conversation becomes BOS and, message by message, special tokens around the text. The assistant's words are learned
(its text, the Python it runs, and the token that ends its turn); those of users, tools and the frame are not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenfeed.errors import FormatError

__all__ = ["Part", "write_parts"]

Part = tuple[str, bool, bool]
"""A special token's name or a text, whether it is a special token, and whether it is learned."""


def write_parts(messages: Sequence[Mapping[str, Any]], first: int = 0) -> Iterator[Part]:
    """The parts of a conversation, in order; messages before `first` are not learned. A FormatError where it is not
    one of nanochat's."""
    if messages[0].get("role") == "system":  # joins the user's first message
        if len(messages) < 2 or messages[1].get("role") != "user":
            raise FormatError("a system message must be followed by a user's")
        joined = {"role": "user", "content": f"{_text(messages[0])}\n\n{_text(messages[1])}"}
        messages, first = [joined, *messages[2:]], first - 1
    yield "<|bos|>", True, False
    for number, message in enumerate(messages):
        role = ("user", "assistant")[number % 2]
        if message.get("role") != role:
            raise FormatError(f"message {number} is from {message.get('role')!r}, not from {role!r}: they take turns")
        if role == "user":
            yield from (("<|user_start|>", True, False), (_text(message), False, False), ("<|user_end|>", True, False))
            continue
        yield "<|assistant_start|>", True, False
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"type": "text", "text": _text(message)}]:
            for text, is_special, is_learned in _assistant_part(part):
                yield text, is_special, is_learned and number >= first
        yield "<|assistant_end|>", True, number >= first


def _assistant_part(part: Mapping[str, Any]) -> Iterator[Part]:
    match part:
        case {"type": "text", "text": str(text)}:
            yield text, False, True
        case {"type": "python" | "python_output" as kind, "text": str(text)}:
            name, learned = ("python", True) if kind == "python" else ("output", False)
            yield from (
                (f"<|{name}_start|>", True, learned),
                (text, False, learned),
                (f"<|{name}_end|>", True, learned),
            )
        case _:
            raise FormatError(
                f"a part of an assistant's message is {str(part)[:80]}, not text, python or python_output"
            )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise FormatError(f"the content of a {message.get('role')} message is {type(content).__name__}, not text")
    return content
