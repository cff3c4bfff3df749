"""`RowText`: documents in groups of rows, each a text or a mapping that has one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenfeed.errors import FormatError, MissingError
from tokenfeed.text.sources.portions import MemoryGroup, Portion, Tally, TextRules, tokens_advice

__all__ = ["RowText"]

_SLICE_GROUPS = 64


class RowText(ABC):
    """A source of rows in numbered groups. Any number of threads may use it at once."""

    def __init__(self, name: str, column: str) -> None:
        """`name` is what messages call it."""
        self.name = name
        self.column = column

    @abstractmethod
    def rows(self, group: int, columns: Sequence[str]) -> Sequence[Any] | None:
        """The rows of a group: texts, bytes, None, or mappings that have these columns. None if there is no group."""

    @abstractmethod
    def has_group(self, group: int) -> bool: ...

    @abstractmethod
    def num_groups(self) -> int: ...

    def size(self) -> int:
        """What the input bytes of all its slices add up to."""
        return 0

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

    def cut(self, slice_bytes: int) -> list[int]:
        """Runs of 64 groups, whatever `slice_bytes` is."""
        count = self.num_groups()
        return [*range(0, count, _SLICE_GROUPS), count] if count else [0]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of groups [start, stop), as far as there are so many."""
        tally, size, count = Tally(rules), self.size(), 0
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

    @abstractmethod
    def digest(self) -> str: ...

    def close(self) -> None:
        """Let go of nothing: nothing stays open."""
        return

    def _text_of(self, row: Any) -> str | None:
        text = self._value_of(row, self.column) if isinstance(row, Mapping) else row
        if isinstance(text, bytes):
            try:
                return text.decode()
            except UnicodeDecodeError as error:
                raise FormatError(f"the text is not UTF-8 ({error.reason} at byte {error.start:,})") from None
        if text is not None and not isinstance(text, str):
            raise FormatError(f"the text is {type(text).__name__}, not a string")
        return text

    def _value_of(self, row: Any, name: str) -> Any:
        if not isinstance(row, Mapping):
            raise MissingError(f"the row is a text alone, and has no {name!r}. Leave it out of those to keep")
        if name not in row:
            tokens = [str(key) for key, value in row.items() if isinstance(value, list) and value]
            raise MissingError(
                f"there is no {name!r}; there are {', '.join(map(str, row)) or 'none'}. {tokens_advice(tokens)}"
            )
        return row[name]
