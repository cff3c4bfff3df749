"""Layouts of public data sets of conversations: from the fields of a record to messages with roles.

| layout              | fields                                                                          |
|---------------------|---------------------------------------------------------------------------------|
| `messages`          | `messages`: a list of role and content (OpenAI, also from and value)             |
| `conversations`     | `conversations`: a list of from and value (ShareGPT, also role and content)      |
| `prompt-completion` | `prompt` and `completion`, each a text or a list of messages                     |
| `instruction`       | `instruction`, perhaps `input`, and `output` (Alpaca)                            |
| `pairs`             | `chosen` and `rejected`, each a text or a list of messages, perhaps a `prompt`   |
| `chosen`            | the same, of which only `chosen` is taken                                        |

Every layout may have `tools` (a list, or its JSON) and `system` (a text). Where there is a prompt, it is not learned.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tokenfeed.errors import ArgumentError, FormatError

__all__ = ["COLUMNS", "LAYOUTS", "Conversation", "check_layout", "find_layout", "layout_of", "read_conversations"]

Fields = Mapping[str, Any]
Messages = list[dict[str, Any]]

_ROLES = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(
        ("gpt", "assistant", "model", "chatgpt", "bot", "chosen", "rejected", "function_call"), "assistant"
    ),
    **dict.fromkeys(("tool", "function", "observation", "tool_response", "function_response"), "tool"),
    "system": "system",
}
"""Roles of `from`, as data sets call them."""
_TURN = re.compile(r"\n\n(Human|Assistant): ?")


class Conversation(NamedTuple):
    """Messages with roles."""

    messages: Messages
    tools: list[Any] | None = None
    first: int = 0
    """First message that may be learned: those before it are a prompt."""


def read_conversations(layout: str, fields: Fields) -> list[Conversation]:
    """The conversation of a record; of a pair, the chosen and the rejected one. A FormatError where it holds none."""
    needed, read = _LAYOUTS[layout]
    if missing := [name for name in needed if fields.get(name) is None]:
        held = ", ".join(list(fields)[:20]) or "none"
        raise FormatError(f"there is no {missing[0]!r}, which layout {layout!r} needs; the fields are {held}")
    tools = _read_json(fields.get("tools") or None, "tools")
    made = []
    for messages, first in read(fields):
        system = fields.get("system")
        if system and isinstance(system, str) and messages[:1] and messages[0]["role"] != "system":
            messages, first = [{"role": "system", "content": system}, *messages], first + 1
        if not messages:
            raise FormatError("the conversation has no messages")
        made.append(Conversation(messages, tools, first))
    return made


def layout_of(names: Iterable[str]) -> str | None:
    """The layout of records with these fields. Among several that fit, the first of the table, pairs before all."""
    there = set(names)
    return next((layout for layout in ("pairs", *LAYOUTS) if there.issuperset(_LAYOUTS[layout][0])), None)


def find_layout(fields: Fields, where: str) -> str:
    """The `layout_of` a record, or a FormatError."""
    layout = layout_of(name for name, value in fields.items() if value is not None)
    if layout is not None:
        return layout
    known = "; ".join(f"{name} ({' and '.join(needed)})" for name, (needed, _) in _LAYOUTS.items())
    raise FormatError(
        f"{where}: the fields {', '.join(fields) or '(none)'} are of no layout that is known: {known}. Name one with "
        "layout=… (--layout), or rename the fields"
    )


def check_layout(layout: str | None) -> None:
    if layout is not None and layout not in _LAYOUTS:
        raise ArgumentError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")


def _read_json(value: Any, what: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{what!r} is a text that is not JSON ({error})") from error
    if value is not None and not isinstance(value, list):
        raise FormatError(f"{what!r} is {type(value).__name__}; expected a list")
    return value


def _read_messages(value: Any, what: str) -> Messages:
    messages = []
    for number, message in enumerate(_read_json(value, what) or []):
        if not isinstance(message, Mapping):
            raise FormatError(f"message {number} of {what!r} is {type(message).__name__}; expected an object")
        if "role" in message:
            role = message["role"]
            if not isinstance(role, str):
                raise FormatError(f"the role of message {number} of {what!r} is {str(role)[:80]!r}; expected a text")
            messages.append(dict(message))
            continue
        sender = message.get("from")
        role = _ROLES.get(sender.lower()) if isinstance(sender, str) else None
        if role is None:
            raise FormatError(
                f"message {number} of {what!r} is from {str(sender)[:80]!r}; expected role and content, or from (one "
                f"of {', '.join(_ROLES)}) and value"
            )
        messages.append(
            _call_of(message) if sender == "function_call" else {"role": role, "content": message.get("value")}
        )
    return messages


def _call_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a tool, which ShareGPT writes as JSON of name and arguments."""
    try:
        called = json.loads(message["value"])
        call = {"name": called["name"], "arguments": called["arguments"]}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError("a function_call is not JSON with name and arguments") from error
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}


def _side(value: Any, role: str, what: str) -> Messages:
    """A text as one message of a role, or a list of messages."""
    return [{"role": role, "content": value}] if isinstance(value, str) else _read_messages(value, what)


Read = Callable[[Fields], Iterable[tuple[Messages, int]]]


def _of_list(name: str) -> Read:
    return lambda fields: [(_read_messages(fields[name], name), 0)]


def _completion(fields: Fields) -> Iterable[tuple[Messages, int]]:
    prompt, answer = _side(fields["prompt"], "user", "prompt"), _side(fields["completion"], "assistant", "completion")
    return [([*prompt, *answer], len(prompt))]


def _instruction(fields: Fields) -> Iterable[tuple[Messages, int]]:
    asked = [fields["instruction"], *([fields["input"]] if fields.get("input") else [])]
    if not all(isinstance(text, str) for text in (*asked, fields["output"])):
        raise FormatError("'instruction', 'input' and 'output' must be texts")
    question = {"role": "user", "content": "\n\n".join(asked)}
    return [([question, {"role": "assistant", "content": fields["output"]}], 1)]


def _pair(fields: Fields) -> list[tuple[Messages, int]]:
    prompt = fields.get("prompt")
    sides = [(name, fields[name]) for name in ("chosen", "rejected")]
    if prompt is None:
        chosen, rejected = (
            _turns(value, name) if isinstance(value, str) else _read_messages(value, name) for name, value in sides
        )
    else:
        before = _side(prompt, "user", "prompt")
        chosen, rejected = (
            side if side[: len(before)] == before and len(side) > len(before) else [*before, *side]
            for side in (_side(value, "assistant", name) for name, value in sides)
        )
    first = 0  # what both have in common is their prompt
    while first + 1 < min(len(chosen), len(rejected)) and chosen[first] == rejected[first]:
        first += 1
    return [(chosen, first), (rejected, first)]


def _turns(text: str, what: str) -> Messages:
    """A dialogue of the form "\\n\\nHuman: …\\n\\nAssistant: …" """
    begin, *turns = _TURN.split(text if text.startswith("\n\n") else f"\n\n{text}")
    if begin.strip() or not turns:
        raise FormatError(
            f"{what!r} is a text, and there is no 'prompt'; expected one, or a list of messages, or a text that begins "
            "with 'Human: '"
        )
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said} for who, said in zip(turns[::2], turns[1::2], strict=True)]


_LAYOUTS: dict[str, tuple[tuple[str, ...], Read]] = {
    "messages": (("messages",), _of_list("messages")),
    "conversations": (("conversations",), _of_list("conversations")),
    "prompt-completion": (("prompt", "completion"), _completion),
    "instruction": (("instruction", "output"), _instruction),
    "pairs": (("chosen", "rejected"), _pair),
    "chosen": (("chosen", "rejected"), lambda fields: _pair(fields)[:1]),
}
LAYOUTS: Sequence[str] = tuple(_LAYOUTS)
COLUMNS = frozenset(
    ("tools", "system", "input", "prompt", *(name for needed, _ in _LAYOUTS.values() for name in needed))
)
"""Fields that any layout reads."""
