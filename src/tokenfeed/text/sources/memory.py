"""Documents that a program has: a `datasets.Dataset` or other sequence, or anything that can be iterated again.

A document is a string, or a mapping that has one under the text column. A sequence (a length and an index) has random
access. Any other iterable is read from front to back; to go back, it is iterated again from its beginning, so it must
give the same documents every time: a list, a `datasets.IterableDataset`, a function that makes a generator. A generator
itself can be iterated once only, and is refused.
"""

import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from tokenfeed.errors import ArgumentError, FormatError, MissingError
from tokenfeed.text.sources.portions import (
    GROUP_ROWS,
    LARGEST_DOCUMENT,
    MemoryGroup,
    Portion,
    Tally,
    TextRules,
    advise,
)

__all__ = ["MemoryDocuments", "MemoryText"]

_KEPT_GROUPS = 4
_SLICE_GROUPS = 64
_NO_END = 1 << 40
_SAMPLED = 64

_passing: dict[int, int] = {}
"""The latest iterator of each source that is iterated. An IterableDataset can have one at a time."""


@runtime_checkable
class _Indexed(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Any: ...


@runtime_checkable
class _Table(Protocol):
    """A dataset of Hugging Face: slices of it are columns."""

    @property
    def column_names(self) -> Any: ...

    def select_columns(self, column_names: Any) -> Any: ...


class MemoryDocuments:
    """Documents of this process, in the place of a file."""

    is_remote = False

    def __init__(self, source: Any) -> None:
        if isinstance(source, Iterator):
            raise ArgumentError(
                f"{type(source).__name__} can be iterated once, so a stream could neither begin a second epoch nor "
                "resume: give the function that makes it, or a sequence"
            )
        self.source = source
        self.path = self.name = f"documents of a {type(source).__name__}"

    @property
    def is_indexed(self) -> bool:
        return isinstance(self.source, _Indexed) and not isinstance(self.source, Mapping)

    def stamp(self) -> tuple[int, int]:
        return len(self.source) if self.is_indexed else 0, 0

    @cached_property
    def digest(self) -> str:
        """8 bytes, in hex, that stand for the content: of the length and 64 documents; the first, if there is none."""
        if self.is_indexed:
            count = len(self.source)
            places = sorted({count * number // _SAMPLED for number in range(_SAMPLED)}) if count else []
            sampled = [self.source[number] for number in places]
        else:
            sampled = list(itertools.islice(self.begin(), _SAMPLED))
        known = repr([self.stamp()[0], sampled]).encode(errors="surrogatepass")
        return hashlib.blake2b(known, digest_size=8).hexdigest()

    def begin(self) -> Iterator[Any]:
        """The documents from the first one on."""
        source = self.source
        made: Callable[[], Iterable[Any]] | None = source if callable(source) and not _is_iterable(source) else None
        documents = source if made is None else made()
        if not _is_iterable(documents):
            raise ArgumentError(f"{self.name}: {type(documents).__name__} cannot be iterated; it must give documents")
        return iter(documents)


class MemoryText:
    """Documents of this process, in groups of 1,024. Any number of threads may use it at once."""

    def __init__(self, file: MemoryDocuments, column: str) -> None:
        self.name, self.column = file.name, column
        self._file = file
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()
        self._passing: Iterator[list[Any]] = iter(())
        self._next_group = 0
        self._num_groups: int | None = None
        self._tables: dict[tuple[str, ...], Any] = {}
        if file.is_indexed:
            self._num_groups = -(-len(file.source) // GROUP_ROWS)
        else:
            _ = file.digest  # found now: some sources cannot be iterated twice at a time
            self._passing = self._pass()

    def digest(self) -> str:
        return self._file.digest

    def num_groups(self) -> int:
        """Reads everything once, where the source has no length."""
        while self._num_groups is None:
            self.has_group(self._next_group + 1)
        return self._num_groups

    def has_group(self, group: int) -> bool:
        return group < self._num_groups if self._num_groups is not None else self.rows(group, ()) is not None

    def close(self) -> None:
        """Nothing stays open."""

    def cut(self, slice_bytes: int) -> list[int]:
        """Runs of 64 groups, whatever `slice_bytes` is; one slice where their number is not known."""
        if not self._file.is_indexed:
            return [0, _NO_END]
        count = self.num_groups()
        return [*range(0, count, _SLICE_GROUPS), count] if count else [0]

    def read(self, group: int, start: int = 0) -> "MemoryGroup[tuple[int, Any]] | None":
        found = self.rows(group, (self.column,))
        if found is None:
            return None

        def parse(numbered: tuple[int, Any]) -> str | None:
            try:
                return self._text_of(numbered[1])
            except (FormatError, MissingError) as error:
                raise type(error)(f"{self.name}, group {group}, row {numbered[0]}: {error.args[0]}") from None

        return MemoryGroup(list(enumerate(found)), parse, start)

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of groups [start, stop), as far as there are so many."""
        tally, size, count = Tally(rules), self._file.stamp()[0], 0
        for group in range(start, stop):
            rows = self.rows(group, (self.column, *rules.keep))
            if rows is None:
                break
            for number, row in enumerate(rows):
                where = f"{self.name}, group {group}, row {number}"
                try:
                    text = self._text_of(row)
                    kept = {name: self._value_of(row, name) for name in rules.keep}
                except FormatError as error:
                    tally.malformed(where, error)
                    continue
                if text is None:
                    tally.null(where)
                else:
                    tally.add(text, kept)
                if tally.is_full:
                    yield tally.portion(count)
        if size:
            groups = self.num_groups()
            count = size * stop // groups - size * start // groups
        yield tally.portion(count)

    def rows(self, group: int, columns: Sequence[str]) -> Sequence[Any] | None:
        """The rows of a group: texts, bytes, None, or mappings that have these columns. None if there is no group."""
        if self._num_groups is not None and group >= self._num_groups:
            return None
        if self._file.is_indexed:
            return self._slice(group * GROUP_ROWS, min((group + 1) * GROUP_ROWS, len(self._file.source)), columns)
        with self._lock:
            if group in self._kept:
                return self._kept[group]
            if group < self._next_group:
                self._passing, self._next_group = self._pass(), 0
            while self._next_group <= group:
                rows = next(self._passing, [])
                if not rows:
                    self._num_groups = self._next_group
                    self._passing, self._next_group = self._pass(), 0
                    return None
                self._kept[self._next_group] = rows
                self._next_group += 1
                while len(self._kept) > _KEPT_GROUPS:
                    self._kept.popitem(last=False)
            return self._kept[group]

    def _pass(self) -> Iterator[list[Any]]:
        """Groups from the beginning."""
        iterator, key = self._file.begin(), id(self._file.source)
        _passing[key] = id(iterator)
        while rows := list(itertools.islice(iterator, GROUP_ROWS)):
            if isinstance(self._file.source, _Table) and _passing[key] != id(iterator):
                raise ArgumentError(
                    f"{self.name}: another stream iterates the same dataset, which keeps its place in itself: "
                    "documents would be lost. Give each stream a dataset of its own"
                )
            yield rows

    def _slice(self, start: int, stop: int, columns: Sequence[str]) -> list[Any]:
        source = self._file.source
        if not isinstance(source, _Table):
            return [source[number] for number in range(start, stop)]
        wanted = tuple(columns)
        if wanted not in self._tables:
            if missing := [name for name in wanted if name not in source.column_names]:
                raise MissingError(
                    f"{self.name}: there is no column {missing[0]!r}; there are {', '.join(source.column_names)}. "
                    f"{advise(source.column_names, [name for name in source.column_names if name == 'input_ids'])}"
                )
            self._tables[wanted] = source.select_columns(list(wanted))
        found: Mapping[str, Sequence[Any]] = self._tables[wanted][start:stop]
        return [dict(zip(wanted, row, strict=True)) for row in zip(*(found[name] for name in wanted), strict=True)]

    def _text_of(self, row: Any) -> str | None:
        text = self._value_of(row, self.column) if isinstance(row, Mapping) else row
        if isinstance(text, bytes):
            try:
                return text.decode()
            except UnicodeDecodeError as error:
                raise FormatError(f"the text is not UTF-8 ({error.reason} at byte {error.start:,})") from None
        if text is not None and not isinstance(text, str):
            raise FormatError(f"the text is {type(text).__name__}, not a string")
        if text is not None and len(text) > LARGEST_DOCUMENT:
            raise FormatError(f"the text has {len(text):,} characters; the most of a document is {LARGEST_DOCUMENT:,}")
        return text

    def _value_of(self, row: Any, name: str) -> Any:
        if not isinstance(row, Mapping):
            raise MissingError(f"the row is a text alone, and has no {name!r}. Leave it out of those to keep")
        if name not in row:
            tokens = [str(key) for key, value in row.items() if isinstance(value, list) and value]
            raise MissingError(
                f"there is no {name!r}; there are {', '.join(map(str, row)) or 'none'}. {advise(map(str, row), tokens)}"
            )
        return row[name]


def _is_iterable(source: Any) -> bool:
    return isinstance(source, Iterable | _Indexed)
