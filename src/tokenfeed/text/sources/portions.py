"""The rules by which documents are read from files, and what reading a slice of a file hands over.

The rules are the same for `stream`, `prepare` and `train-tokenizer`, and for all formats:

* a text that is null is no document: it is left out (and counted by `prepare`); an empty text is a document;
* a line or row that cannot be understood is a FormatError that names the file and the line, or the row group and row:
  no JSON object, no UTF-8, no such key, a text that is no string. `prepare` leaves them out if asked to, and counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenfeed.errors import ArgumentError, FormatError

__all__ = ["Portion", "Tally", "TextRules", "in_pieces"]

_LISTED_PROBLEMS = 10


@dataclass(frozen=True)
class TextRules:
    """How documents are read from a slice."""

    text_column: str = "text"
    keep: tuple[str, ...] = ()
    """Columns whose values are handed over with the text, as JSON can hold them; None where a line has none."""
    on_error: Literal["fail", "skip"] = "fail"
    """Whether a malformed line or row is a FormatError, or is left out and counted."""
    whole: bool = False
    """Whether documents are never cut, however long they are."""
    portion_bytes: int = 1 << 20
    """About how much text is handed over at a time."""
    long_bytes: int = 4 << 20
    """Documents longer than this come in pieces of about `portion_bytes`."""

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise ArgumentError(f"on_error is {self.on_error!r}; it must be 'fail' or 'skip'")
        if len({self.text_column, *self.keep}) <= len(self.keep):
            raise ArgumentError(
                f"keep is {', '.join(self.keep)}: a column is there twice, or is the text column {self.text_column!r} "
                "itself, which becomes tokens"
            )
        if self.portion_bytes < 1 or self.long_bytes < 1:
            raise ArgumentError(
                f"portion_bytes is {self.portion_bytes} and long_bytes {self.long_bytes}; both must be at least 1"
            )


@dataclass
class Portion:
    """Whole documents in the order of the file, or one piece of a long one; and what was left out before them."""

    texts: list[str]
    kept: list[dict[str, Any]]
    """Values of the columns to keep, for each document; empty where a piece continues one."""
    input_bytes: int
    """Bytes of the slice that have been read so far, as the file is stored. The last portions of all slices of a file
    add up to its size."""
    begins: bool = True
    """False for a piece that continues the document of the portion before."""
    ends: bool = True
    """False for a piece after which more of the document follows."""
    problems: list[str] = field(default_factory=list)
    """Lines or rows that were left out, in words: the first 10 of a slice. The counts have all of them."""
    num_malformed: int = 0
    """Lines or rows left out because they cannot be understood (on_error="skip")."""
    num_null: int = 0
    """Lines or rows left out because their text is null."""


class Tally:
    """Collects the documents of one slice, and counts what is left out, until a portion of them is handed over."""

    def __init__(self, rules: TextRules) -> None:
        self._rules = rules
        self._num_listed = 0
        self._start()

    def _start(self) -> None:
        self._texts: list[str] = []
        self._kept: list[dict[str, Any]] = []
        self._problems: list[str] = []
        self._num_malformed = self._num_null = self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is enough text to hand over."""
        return self._num_bytes >= self._rules.portion_bytes

    def add(self, text: str, kept: dict[str, Any]) -> None:
        """Note a document."""
        self._texts.append(text)
        self._kept.append(kept)
        self._num_bytes += len(text)

    def malformed(self, where: str, what: object) -> None:
        """Note a line or row that cannot be understood; or raise, where that is asked for."""
        if self._rules.on_error == "fail":
            raise FormatError(f"{where}: {what}. on_error='skip' leaves such documents out and counts them.")
        self._num_malformed += 1
        self._list(f"{where}: {what}")

    def null(self, where: str) -> None:
        """Note a line or row whose text is null."""
        self._num_null += 1
        self._list(f"{where}: {self._rules.text_column!r} is null")

    def portion(self, input_bytes: int) -> Portion:
        """Hand over everything noted since the last portion."""
        made = Portion(self._texts, self._kept, input_bytes, problems=self._problems)
        made.num_malformed, made.num_null = self._num_malformed, self._num_null
        self._start()
        return made

    def pieces(self, texts: Iterable[tuple[str, int]], kept: dict[str, Any]) -> Iterator[Portion]:
        """The portions of one long document, from (text, bytes read so far); first what was noted before it."""
        reached, parts = 0, list[str]()
        for piece, begins, ends, reached in in_pieces(texts):
            if self._rules.whole:
                parts.append(piece)
                continue
            if begins:
                yield self.portion(reached)
            yield Portion([piece], [kept] if begins else [], reached, begins, ends)
        if self._rules.whole:
            self.add("".join(parts), kept)
            yield self.portion(reached)

    def _list(self, problem: str) -> None:
        if self._num_listed < _LISTED_PROBLEMS:
            self._num_listed += 1
            self._problems.append(problem)


def in_pieces(texts: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bool, bool, int]]:
    """(piece, whether it begins the document, whether it ends it, bytes read): only an empty document has an empty one.

    [("a", 1), ("b", 3)] → ("a", True, False, 1), ("b", False, True, 3)
    """
    before, reached, begins = "", 0, True
    for text, now in texts:
        if text and before:
            yield before, begins, False, reached
            begins = False
        before, reached = text or before, now
    yield before, begins, True, reached
