"""Map functions: what a function of the user makes of a document beyond its tokens, and how it reaches other processes.

@annotates(columns={"weight": "float16"}, spans={"concepts": "json"})
def annotate(text, kept, tokens):
    return {
        "weight": numpy.ones(len(tokens)),
        "concepts": Characters([(4, 8, {"concept": "cat"})]),        # or [(first token, end, payload), …]
    }
"""

import functools
import hashlib
import importlib
import importlib.util
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.local import read_bytes
from tokenfeed.text.tokenizer.pieces import byte_places
from tokenfeed.types import Array

__all__ = ["Characters", "MapFunction", "MapOrigin", "annotates", "check_declared", "refuse_while_loading", "tile"]

_is_loading = False

Span = tuple[int, int, Any]
"""(start, stop, payload)."""


class MapFunction:
    """A function of the user with what it returns, as `annotates` declares it. Called once for every document.

    `tokens` are the document's as they are stored, BOS and EOS included; `kept` has the columns to keep. It returns, by
    name, an array with one value per token for each of `columns`, and a list of (start, stop, payload) for each of
    `spans`: ranges of tokens that do not overlap, or `Characters` for ranges of the text. For a table called
    `documents` it returns the payload itself. None leaves the document out.
    """

    def __init__(
        self, function: Callable[..., Any], columns: Mapping[str, Any], spans: Mapping[str, str | None]
    ) -> None:
        self.function = function
        self.columns = dict(columns)
        self.spans = dict(spans)
        functools.update_wrapper(self, function)

        kind = function if isinstance(function, types.FunctionType) else type(function)
        self.name = kind.__qualname__

    def __call__(self, text: str, kept: Mapping[str, Any], tokens: Array, /) -> Mapping[str, Any] | None:
        made: Mapping[str, Any] | None = self.function(text, kept, tokens)
        return made


def annotates(
    *, columns: Mapping[str, Any] | None = None, spans: Mapping[str, str | None] | None = None
) -> Callable[[Callable[..., Any]], MapFunction]:
    """Declare what a map function returns: a dtype for each column, the name of a codec for each span table."""
    return lambda function: MapFunction(function, columns or {}, spans or {})


def check_declared(given: object, name: str) -> MapFunction:
    """The map function, if it says what it returns."""
    if not isinstance(given, MapFunction):
        raise ArgumentError(
            f"the map function {name} does not say what it returns; decorate it with "
            "@tokenfeed.preparation.annotates(columns={…}, spans={…})"
        )
    if "tokens" in given.columns:
        raise ArgumentError(f"the map function {name} declares a column 'tokens', which the tokenizer makes")
    return given


@dataclass(frozen=True)
class Characters:
    """Spans over ranges of characters. Each covers every token that has a part of it; where two of them share a token,
    it belongs to the first."""

    spans: Sequence[Span]

    def to_tokens(self, text: str, token_bytes: Array) -> list[Span]:
        """The same as ranges of tokens, which stand for so many bytes each. O(characters + tokens)."""
        byte_of = byte_places(text)
        token_ends = np.cumsum(token_bytes, dtype=np.int64)
        if len(token_ends) and token_ends[-1] != byte_of[-1]:
            raise ArgumentError(
                f"the text has {byte_of[-1]} bytes, its tokens {token_ends[-1]}: this tokenizer changes texts, so that "
                "spans of characters cannot be found in tokens. Give ranges of tokens instead of Characters"
            )
        found: list[Span] = []
        free = end = 0
        for start, stop, payload in sorted(self.spans, key=lambda span: span[:2]):
            if not end <= start < stop <= len(text):
                raise ArgumentError(
                    f"characters [{start}, {stop}) cannot be a span: the text has {len(text)}, and the span before "
                    f"ends at {end}. Spans that overlap go into several tables."
                )
            end = stop
            first = max(free, int(np.searchsorted(token_ends, byte_of[start], side="right")))
            free = max(first, int(np.searchsorted(token_ends, byte_of[stop], side="left")) + 1)
            found.append((first, free, payload))
        return found


def refuse_while_loading() -> None:
    """A script that calls `prepare` and holds the map function would call it again in every worker."""
    if _is_loading:
        raise ArgumentError(
            "prepare was called while the file of its map function was being loaded. Put the call into "
            'if __name__ == "__main__": …, or the function into a file of its own.'
        )


@dataclass(frozen=True)
class MapOrigin:
    """Where other processes get a map function from: the name of its module, or the source of its file."""

    function: str
    module: str
    source: bytes | None
    """None where the module is imported."""
    digest: str

    @property
    def name(self) -> str:
        """The name in a recipe: the function, and a digest of the file it is in."""
        return f"{self.module.rpartition('.')[2]}:{self.function} {self.digest}"

    @classmethod
    def find(cls, given: str | MapFunction) -> "MapOrigin":
        """The origin of `"package.module:function"`, `"file.py:function"` or a function."""
        place, _, function = (_locate(given) if isinstance(given, MapFunction) else given).rpartition(":")
        if not place or not function.isidentifier():
            raise ArgumentError(f"map is {given!r}; expected 'file.py:function' or 'package.module:function'")
        is_file = place.endswith(".py")
        file = place if is_file else _module_file(place)
        if file is None:
            raise ArgumentError(f"map is {given!r}; there is no module {place} here")
        source = read_bytes(Path(file))
        digest = hashlib.blake2b(source, digest_size=8).hexdigest()
        return cls(function, Path(place).stem if is_file else place, source if is_file else None, digest)

    def load(self) -> MapFunction:
        """The function, in this process. Runs the module it is in."""
        global _is_loading
        _is_loading = True
        try:
            if self.source is None:
                module = importlib.import_module(self.module)
            else:
                module = types.ModuleType(f"tokenfeed_map_{self.module}")
                sys.modules[module.__name__] = module  # dataclasses and the like look for it there
                exec(compile(self.source, f"{self.module}.py", "exec"), module.__dict__)
        finally:
            _is_loading = False
        if self.function not in vars(module):
            raise ArgumentError(f"{self.module} has no function {self.function!r}")
        return check_declared(vars(module)[self.function], self.function)


def tile(spans: Mapping[str, Iterable[Span]], num_items: int) -> list[tuple[int, dict[str, Any]]]:
    """Where spans begin in any of several tables: (item, {table: payload}), from item 0 on. A gap has the payload None.

    {"a": [(1, 3, "x")], "b": [(0, 2, "y")]}, 4 items →  0: a None, b "y";  1: a "x";  2: b None;  3: a None
    """
    begun: dict[tuple[int, int], dict[str, Any]] = {}
    for table, given in spans.items():
        turns: Counter[int] = Counter()
        for start, payload in _tiles(table, given, num_items):
            begun.setdefault((start, turns[start]), {})[table] = payload
            turns[start] += 1
    return [(start, begun[start, turn]) for start, turn in sorted(begun)]


def _tiles(table: str, spans: Iterable[Span], num_items: int) -> Iterator[tuple[int, Any]]:
    """Where each span begins and each gap between them, from item 0 on."""
    end, has_begun = 0, False
    for start, stop, payload in sorted(spans, key=lambda span: span[:2]):
        if not end <= start <= stop <= num_items:
            raise ArgumentError(
                f"[{start}, {stop}) cannot be a span of {table!r}: the document has {num_items} tokens, and the span "
                f"before ends at {end}. Spans that overlap go into several tables."
            )
        if start > end:
            yield end, None
        yield start, payload
        end, has_begun = stop, True
    if end < num_items or not has_begun:
        yield end, None


def _locate(given: MapFunction) -> str:
    """`"package.module:function"`, or `"file.py:function"` where its file is not that of an importable module."""
    name, module = given.name, given.function.__module__
    file = vars(sys.modules[module]).get("__file__") if module in sys.modules else None
    if not name.isidentifier() or file is None:
        raise ArgumentError(
            f"map is {name}, which other processes cannot have: it must be a function of a module or file. workers=0 "
            "calls it in this process."
        )
    return f"{module}:{name}" if module != "__main__" and _module_file(module) == file else f"{file}:{name}"


def _module_file(module: str) -> str | None:
    """The file of a module that can be imported here."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin
