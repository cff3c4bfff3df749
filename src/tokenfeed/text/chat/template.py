"""`ChatTemplate`: the Jinja template with which a model's maker writes a conversation, run in a sandbox.

The environment is that of transformers: `trim_blocks` and `lstrip_blocks`, `break` and `continue`, `raise_exception`,
`tojson` that escapes no HTML, and the tag `{% generation %}` around what the assistant says. One thing differs:
`strftime_now` exists only where a time is given (the variable `now`), since the same data should make the same tokens
on any day. Templates that ask whether it is defined then take a date of their own.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, DependencyError, FormatError, NotFoundError
from tokenfeed.storage.local import read_bytes

__all__ = ["ChatTemplate", "Message", "Span"]

Message = Mapping[str, Any]
Span = tuple[int, int]
"""Characters [start, stop) of a rendered conversation."""

_OPEN, _CLOSE = "\ufdd1", "\ufdd2"
"""What the tag `generation` writes around its content. Unicode says that no text has these."""
_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A chat template, and the values of its variables, such as `bos_token`. It pickles; compiling is put off.

    `variables` are at hand in the template: `{"enable_thinking": False}`, `{"date_string": "26 Jul 2024"}`; `now`, a
    date or time in ISO format, is what `strftime_now` tells.
    """

    def __init__(
        self, source: str, *, variables: Mapping[str, Any] | None = None, tool_source: str | None = None, name: str = ""
    ) -> None:
        """`tool_source` is the template for conversations with tools, if there is another; `name` is for messages."""
        self.source = source
        self.tool_source = tool_source
        self.variables = dict(variables or {})
        self.name = name or "the chat template"

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, variables: Mapping[str, Any] | None = None) -> "ChatTemplate":
        """The template of a model's folder (`chat_template.jinja`, or that in `tokenizer_config.json`), or of a file.

        BOS, EOS and other tokens that the folder names are variables, as in transformers; `variables` come on top.
        """
        found = cls.find(path, variables=variables)
        if found is None:
            raise NotFoundError(
                f"there is no chat template in {path}: no chat_template.jinja, and no chat_template in "
                "tokenizer_config.json. Give the file of one: template=… (--template)"
            )
        return found

    @classmethod
    def find(cls, path: str | os.PathLike[str], *, variables: Mapping[str, Any] | None = None) -> "ChatTemplate | None":
        """As `load`; None where a folder has none."""
        given = Path(path)
        if not given.exists():
            raise NotFoundError(f"there is no chat template at {path}: no such file or folder")
        folder = given if given.is_dir() else given.parent
        files = [folder / name for name in _FILES if (folder / name).exists()] if given.is_dir() else [given]
        for file in files:
            try:
                text = read_bytes(file).decode()
                held = text if file.suffix != ".json" else json.loads(text).get("chat_template")
            except (ValueError, AttributeError, RecursionError) as error:
                raise FormatError(f"{file} holds no chat template: {error}") from error
            named = {one["name"]: one["template"] for one in held} if isinstance(held, list) else {"default": held}
            if isinstance(named.get("default"), str):
                known = {**_read_tokens(folder), **(variables or {})}
                made = cls(named["default"], variables=known, tool_source=named.get("tool_use"), name=str(file))
                made.check()
                return made
            if not given.is_dir():
                raise FormatError(f"{file} holds no chat template; expected one under 'chat_template'")
        return None

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for templates that write every conversation alike."""
        parts = json.dumps([self.source, self.tool_source, self.variables], sort_keys=True, default=str)
        return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()

    @cached_property
    def marks_speech(self) -> bool:
        """Whether it says by `{% generation %}` what the assistant says."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.source + (self.tool_source or "")) is not None

    def check(self) -> None:
        """Raise a FormatError where it cannot be compiled."""
        self._compile(self.source)

    def with_defaults(self, variables: Mapping[str, Any]) -> "ChatTemplate":
        """The same template, with values for variables that it lacks."""
        known = {**{name: value for name, value in variables.items() if value is not None}, **self.variables}
        return ChatTemplate(self.source, variables=known, tool_source=self.tool_source, name=self.name)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, add_generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """The conversation as text, and the spans that `{% generation %}` marks. A FormatError where it refuses."""
        source = self.tool_source if tools and self.tool_source else self.source
        template = self._compile(source)
        try:
            text = template.render(
                {**self.variables, "messages": [_with_reasoning(message) for message in messages], "tools": tools},
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:
            kind = "" if type(error).__name__ == "TemplateError" else f"{type(error).__name__}: "
            advice = ". Give it a date: --set now=2026-11-16" if "strftime_now" in str(error) else ""
            raise FormatError(f"{self.name} cannot write this conversation: {kind}{error}{advice}") from error
        return _take_marks(text)

    def _compile(self, source: str) -> Any:
        try:
            return _compile(source, self.variables.get("now"))
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"the variable now is {self.variables['now']!r}; expected 2026-11-16") from error
        except SyntaxError as error:
            raise FormatError(f"{self.name}, line {error.lineno}: not a Jinja template ({error.msg})") from error

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"variables": self.variables, "tool_source": self.tool_source, "name": self.name}
        return partial(ChatTemplate, **options), (self.source,)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name}, {self.digest})"


def _read_tokens(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, as the files of a model's folder name them."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            try:
                fields = json.loads(read_bytes(folder / name))
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{folder / name} is not JSON ({error})") from error
            for key, value in fields.items() if isinstance(fields, dict) else ():
                token = value.get("content") if isinstance(value, dict) else value
                if key.endswith("_token") and isinstance(token, str):
                    found[key] = token
    return found


def _with_reasoning(message: Message) -> Message:
    """The message with its reasoning under the names that templates read, as in transformers."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _take_marks(text: str) -> tuple[str, list[Span]]:
    parts, spans, size, opened = [], list[Span](), 0, 0
    for part in re.split(f"([{_OPEN}{_CLOSE}])", text):
        if part == _OPEN:
            opened = size
        elif part == _CLOSE:
            spans.append((opened, size))
        else:
            parts.append(part)
            size += len(part)
    return "".join(parts), spans


@cache
def _compile(source: str, now: str | None) -> Any:
    """A template, compiled. A SyntaxError where it is none."""
    try:
        from jinja2 import TemplateSyntaxError, nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise DependencyError(
            f"chat templates need the package jinja2: pip install 'tokenfeed[text]' ({error})"
        ) from error

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 — Jinja's own way

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller: Any) -> str:
            return f"{_OPEN}{caller()}{_CLOSE}"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    if now is not None:
        environment.globals["strftime_now"] = datetime.fromisoformat(now).strftime
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise SyntaxError(str(error.message), (None, error.lineno, None, None)) from error
