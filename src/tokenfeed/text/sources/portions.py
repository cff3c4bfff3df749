"""What reading a file gives: groups of rows for `stream`, portions of a slice for `prepare`; and the rules of reading.

The rules are the same for `stream`, `prepare` and `train-tokenizer`, and for all formats:

* a text that is null is no document: it is left out (and counted by `prepare`); an empty text is a document;
* a line or row that cannot be understood is a FormatError that names the file and the line, or the row group and row:
  no JSON object, no UTF-8, no such key, a text that is no string, more than 1 GiB. `prepare` leaves them out if asked
  to, and counts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.text.chat.layouts import layout_of

__all__ = [
    "GROUP_ROWS",
    "LARGEST_DOCUMENT",
    "Group",
    "MemoryGroup",
    "Portion",
    "Records",
    "Tally",
    "TextFile",
    "TextRules",
    "advise",
    "as_str",
]

GROUP_ROWS = 1024
"""Documents in a group, where a format has none of its own; the last group of a file may have fewer."""
LARGEST_DOCUMENT = 1 << 30
"""Most bytes of a document as it is stored, which is in memory as a whole; of JSONL, of its line."""
_LISTED_PROBLEMS = 10

Row = TypeVar("Row")


def as_str(text: str | bytes) -> str:
    """A text of a group as a string."""
    return text.decode() if isinstance(text, bytes) else text


def advise(names: Iterable[str], tokens: Sequence[str]) -> str:
    """What to do where a text is looked for in vain among columns of these names, some of which hold token ids."""
    if tokens:
        return (
            f"{tokens[0]!r} holds tokens: the data is tokenised already. Prepare it with tokens_column={tokens[0]!r}, "
            "and train from that store"
        )
    if layout_of(names):
        return (
            "These are conversations: prepare reads them with chat=True, and stream_chat streams them. To read one "
            "column as text, name it: text_column=…"
        )
    return "Name the one with the text: text_column=…"


@dataclass(frozen=True)
class TextRules:
    """How documents are read from a slice."""

    text_column: str = "text"
    keep: tuple[str, ...] = ()
    """Columns whose values are handed over with the text, as JSON can hold them; None where a line has none."""
    on_error: Literal["fail", "skip"] = "fail"
    """Whether a malformed line or row is a FormatError, or is left out and counted."""
    portion_bytes: int = 1 << 20
    """About how much text is handed over at a time."""

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise ArgumentError(f"on_error is {self.on_error!r}; it must be 'fail' or 'skip'")
        if len({self.text_column, *self.keep}) <= len(self.keep):
            raise ArgumentError(
                f"keep is {', '.join(self.keep)}: a column is there twice, or is the text column {self.text_column!r} "
                "itself, which becomes tokens"
            )


@dataclass
class Portion:
    """Documents in the order of the file, and what was left out before them."""

    texts: list[Any]
    """Strings; what `Records` made, where there are such."""
    kept: list[dict[str, Any]]
    """Values of the columns to keep, for each document."""
    input_bytes: int
    """Bytes of the slice that have been read so far, as the file is stored. The last portions of all slices of a file
    add up to its size."""
    problems: list[str] = field(default_factory=list)
    """Lines or rows that were left out, in words: the first 10 of a slice. The counts have all of them."""
    num_malformed: int = 0
    """Lines or rows left out because they cannot be understood (on_error="skip")."""
    num_null: int = 0
    """Lines or rows left out because their text is null."""


class Records(Protocol):
    """Makes documents of whole records, where they are not the text of one column. It is sent to other processes."""

    @property
    def columns(self) -> Collection[str] | None:
        """Columns of Parquet that it needs, of those there are; None for all."""

    def __call__(self, fields: dict[str, Any], /) -> Any:
        """The document, which has a length, and a `key` that its split follows from. A FormatError where there is
        none."""


class Group(Protocol):
    """A row group of Parquet, a record batch of Arrow, 1,024 lines, or a file of plain text.

    One thread at a time may use it.
    """

    @property
    def num_rows(self) -> int:
        """Rows of the whole group, those before the row it is read from included."""

    def batches(self, size: int) -> Iterator[tuple[int, list[str | bytes | None]]]:
        """(first row, texts) of the rows [0, size), [size, 2·size), … less those before the row it is read from.

        A text is a string, or its UTF-8, which was checked, where a file has that: no string is made only to be encoded
        again. None is a text that is null. Can be called once. At most about max(size, 1,024) rows are in memory at a
        time.

            10 rows, read from row 3, size 4:   (3, [t3]), (4, [t4, t5, t6, t7]), (8, [t8, t9])
        """


class TextFile(Protocol):
    """One file, as groups for `stream` and as slices for `prepare`. Any number of threads may use it at once.

    Slice i is [bounds[i], bounds[i + 1]) of what `cut` returns, which depends on the file alone. All slices, one after
    the other, are the file, and each is read in bounded memory.
    """

    def num_groups(self) -> int: ...

    def has_group(self, group: int) -> bool: ...

    def read(self, group: int, start: int = 0) -> Group | None: ...

    def cut(self, slice_bytes: int) -> list[int]: ...

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]: ...

    def digest(self) -> str: ...

    def close(self) -> None:
        """Let go of descriptors; reading opens again."""


class MemoryGroup(Generic[Row]):
    """A group whose rows are in memory, and are parsed as they are asked for."""

    def __init__(self, rows: Sequence[Row], parse: Callable[[Row], Any], start: int) -> None:
        self.num_rows = len(rows)
        self._rows = rows
        self._parse = parse
        self._start = start

    def batches(self, size: int) -> Iterator[tuple[int, list[Any]]]:
        first = self._start
        while first < self.num_rows:
            stop = min(self.num_rows, (first // size + 1) * size)
            yield first, [self._parse(row) for row in self._rows[first:stop]]
            first = stop


class Tally:
    """Collects the documents of one slice, and counts what is left out, until a portion of them is handed over."""

    def __init__(self, rules: TextRules) -> None:
        self._rules = rules
        self._num_listed = self._num_bytes = 0
        self._next = Portion([], [], 0)

    @property
    def is_full(self) -> bool:
        """Whether there is enough text to hand over."""
        return self._num_bytes >= self._rules.portion_bytes

    def add(self, text: Any, kept: dict[str, Any]) -> None:
        self._next.texts.append(text)
        self._next.kept.append(kept)
        self._num_bytes += len(text)

    def malformed(self, where: str, what: object) -> None:
        """Note a line or row that cannot be understood; or raise, where that is asked for."""
        if self._rules.on_error == "fail":
            raise FormatError(f"{where}: {what}. on_error='skip' leaves such documents out and counts them.")
        self._next.num_malformed += 1
        self._list(f"{where}: {what}")

    def null(self, where: str) -> None:
        """Note a line or row whose text is null."""
        self._next.num_null += 1
        self._list(f"{where}: {self._rules.text_column!r} is null")

    def _list(self, problem: str) -> None:
        if self._num_listed < _LISTED_PROBLEMS:
            self._num_listed += 1
            self._next.problems.append(problem)

    def portion(self, input_bytes: int) -> Portion:
        """Hand over everything noted since the last portion."""
        made, self._next, self._num_bytes = self._next, Portion([], [], 0), 0
        made.input_bytes = input_bytes
        return made
