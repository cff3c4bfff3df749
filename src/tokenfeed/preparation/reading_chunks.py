"""What reading hands over: chunks of documents, and what was left out on the way."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenfeed.errors import ArgumentError, CorruptionError

__all__ = ["Chunk", "Problem", "Reading", "Tally", "in_pieces"]

_LISTED_PROBLEMS = 10


@dataclass(frozen=True)
class Reading:
    """How documents are read."""

    text_column: str = "text"
    keep: tuple[str, ...] = ()
    """Columns whose values are handed over beside the text, as JSON can hold them; None where a row has none."""
    on_error: Literal["fail", "skip"] = "fail"
    """What becomes of a malformed line or row: CorruptionError, or it is left out and counted."""
    whole: bool = False
    """Documents are never cut, however long they are."""
    chunk_bytes: int = 1 << 20
    """About how much text is handed over at a time."""
    long_bytes: int = 4 << 20
    """Documents longer than this come in pieces of about `chunk_bytes`."""

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise ArgumentError(f"on_error is {self.on_error!r}; it must be 'fail' or 'skip'")
        if len({self.text_column, *self.keep}) <= len(self.keep):
            raise ArgumentError(
                f"keep is {', '.join(self.keep)}: a column is there twice, or is the text column {self.text_column!r} "
                "itself, which becomes tokens"
            )
        if self.chunk_bytes < 1 or self.long_bytes < 1:
            raise ArgumentError(
                f"chunk_bytes is {self.chunk_bytes} and long_bytes {self.long_bytes}; both must be at least 1"
            )


@dataclass(frozen=True)
class Problem:
    """A line or row that was left out."""

    where: str
    what: str


@dataclass
class Chunk:
    """Pieces of documents in the order of the file, what was left out since the last chunk, how far reading came."""

    texts: list[str]
    begins: list[bool]
    """Whether a piece begins a document; if not, it goes on with the one before, perhaps of the last chunk."""
    ends: list[bool]
    """Whether a piece is the last of its document."""
    kept: list[dict[str, Any] | None]
    """Of a piece that begins a document the values of the columns to keep, None of others."""
    skipped: list[Problem]
    """What was left out since the last chunk: the first 10 of a slice, in words; the counts have all of them."""
    input_bytes: int
    """How many bytes of the slice have been gone through so far, of the file as it is stored. The last chunks of all
    slices of a file add up to its size."""
    num_malformed: int = 0
    """Lines or rows left out since the last chunk because they cannot be understood (on_error="skip")."""
    num_null: int = 0
    """Lines or rows left out since the last chunk because their text is null or not there."""


@dataclass
class Tally:
    """What was left out and not yet handed over, in the reading of one slice."""

    how: Reading
    skipped: list[Problem] = field(default_factory=list)
    num_malformed: int = 0
    num_null: int = 0
    _num_listed: int = 0

    def malformed(self, where: str, what: str, *, cause: Exception | None = None) -> None:
        """Note a line or row that cannot be understood; or raise, where that is asked for."""
        if self.how.on_error == "fail":
            raise CorruptionError(
                f"{where}: {what}. on_error='skip' leaves such documents out and counts them."
            ) from cause
        self.num_malformed += 1
        self._list(Problem(where, what))

    def null(self, where: str, what: str) -> None:
        """Note a line or row that has no text."""
        self.num_null += 1
        self._list(Problem(where, what))

    def chunk(
        self,
        texts: list[str],
        kept: list[dict[str, Any] | None],
        input_bytes: int,
        *,
        part: tuple[bool, bool] | None = None,
    ) -> Chunk:
        """A chunk of whole documents, or of one piece that (begins, ends) one."""
        begins, ends = ([True] * len(texts), [True] * len(texts)) if part is None else ([part[0]], [part[1]])
        skipped, self.skipped = self.skipped, []
        malformed, self.num_malformed = self.num_malformed, 0
        null, self.num_null = self.num_null, 0
        return Chunk(texts, begins, ends, kept, skipped, input_bytes, malformed, null)

    def _list(self, problem: Problem) -> None:
        if self._num_listed < _LISTED_PROBLEMS:
            self._num_listed += 1
            self.skipped.append(problem)


def in_pieces(texts: Iterable[str]) -> Iterator[tuple[str, bool, bool]]:
    """(piece, whether it begins, whether it ends the document) of the texts that are not empty, or of one that is."""
    before: str | None = None
    begins = True
    for text in texts:
        if not text:
            continue
        if before is not None:
            yield before, begins, False
            begins = False
        before = text
    yield before or "", begins, True
