"""`Packer`: documents go in, rows of tokens come out. The work is done by `kernels/packing.py`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, FitError
from tokenfeed.kernels import packing
from tokenfeed.types import Array, Ints

__all__ = ["Packer", "Packing", "PackingCounts"]

_RULES = {
    "split": packing.SPLIT,
    "crop": packing.CROP,
    "crop_oldest": packing.CROP_OLDEST,
}
_LEAST_TOKENS = 1 << 16
_PADDING = -1
"""File number of a document that is padding."""


@dataclass(frozen=True)
class Packing:
    """How rows are made of documents."""

    length: int
    rule: int
    buffer_size: int
    name: str
    """Packing that a state must agree on: "tokens done" of a document means another thing to each."""
    pops: bool = False
    """Whether the last row of a batch moves on by one token more."""

    @property
    def crosses_documents(self) -> bool:
        """Whether a token is to be predicted from the document before its own."""
        return self.rule == packing.CONCAT

    @classmethod
    def choose(cls, name: str, overflow: str, *, length: int, buffer_size: int) -> "Packing":
        """The packing that `stream` calls by these names."""
        if length < 1 or buffer_size < 1:
            raise ArgumentError(f"length is {length}, buffer_size is {buffer_size}; both must be at least 1")
        if name in ("concat", "concat_pop"):
            return cls(length, packing.CONCAT, buffer_size, name, name == "concat_pop")
        if name != "best_fit":
            raise ArgumentError(f"packing is {name!r}; it must be 'best_fit', 'concat' or 'concat_pop'")
        if overflow not in _RULES:
            raise ArgumentError(f"overflow is {overflow!r}; it must be one of {', '.join(map(repr, _RULES))}")
        return cls(length, _RULES[overflow], buffer_size, name)

    @classmethod
    def padding(cls, *, length: int, buffer_size: int) -> "Packing":
        """The packing of whole documents by best fit, with padding where none fits."""
        return replace(cls.choose("best_fit", "crop", length=length, buffer_size=buffer_size), rule=packing.PAD)


@dataclass(frozen=True)
class PackingCounts:
    """Tokens of rows that were made, whether delivered yet or not, by their fate."""

    rows: int = 0
    lost: int = 0
    """Tokens cropped."""
    repeated: int = 0
    """BOS tokens that lead a further piece of a document."""
    padded: int = 0
    """Tokens of padding."""
    waiting: int = 0
    """Documents that wait to be packed."""

    def plus(self, other: "PackingCounts") -> "PackingCounts":
        """The counts of two packers together."""
        return PackingCounts(
            self.rows + other.rows,
            self.lost + other.lost,
            self.repeated + other.repeated,
            self.padded + other.padded,
            self.waiting + other.waiting,
        )


class Packer:
    """Documents that wait, and the rule by which rows of `width` tokens are made of them.

    Memory is at most twice that of the waiting documents, and 88 bytes for each.
    """

    def __init__(self, how: Packing, dtype: npt.DTypeLike, bos: int) -> None:
        """`bos` leads pieces of documents, and is padding."""
        width, buffer_size = how.length + 1, how.buffer_size
        self._rule = how.rule
        self._num_rows = self._padded = 0
        self._width = width
        self._buffer_size = buffer_size
        self._bos = bos
        self._tokens = np.empty(_LEAST_TOKENS, dtype)
        self._lines = np.empty((2, width + 2), np.int64)
        self._bits = np.empty(packing.num_bit_words(width + 2), np.uint64)
        self._state = np.empty(packing.STATE_ENTRIES, np.int64)
        self._table = np.empty((packing.TABLE_ROWS, 2 * buffer_size + 64), np.int64)
        self._heap = np.empty(self._table.shape[1], np.int64)
        self._segments = np.empty((1024, packing.SEGMENT_FIELDS), np.int64)
        packing.reset(self._table, self._lines, self._bits, self._state)

    def __len__(self) -> int:
        """Number of documents that wait."""
        return int(self._state[packing.COUNT])

    @property
    def is_spent(self) -> bool:
        """Whether nothing waits that no row has had; `concat` keeps the last token of a row for the next one."""
        return len(self) == 0 if self._rule != packing.CONCAT else int(self._state[packing.LIVE]) <= 1

    def counts(self) -> PackingCounts:
        lost, repeated, padded = (int(self._state[entry]) for entry in (packing.LOST, packing.REPEATED, packing.PADDED))
        return PackingCounts(self._num_rows, lost, repeated, padded + self._padded, len(self))

    def add(self, tokens: Array, offsets: Ints, references: Ints, epoch: int) -> None:
        """Let documents wait: document i is tokens[offsets[i]:offsets[i + 1]] with its BOS.

        references[i] is (file, row group, row) of the document, and how many of its tokens are done already.
        """
        self._state[packing.EPOCH] = epoch
        tokens = np.ascontiguousarray(tokens, self._tokens.dtype)
        self._make_room(tokens.size, len(references))
        lead = -1 if self._rule == packing.CONCAT else self._bos
        arrays = self._tokens, self._table, self._lines, self._bits, self._heap, self._state
        packing.add_documents(*arrays, tokens, offsets, references, self._rule, lead)

    def _make_room(self, num_tokens: int, num_documents: int) -> None:
        state = self._state
        if len(self) + num_documents > self._table.shape[1]:
            self._widen_table(2 * (len(self) + num_documents))
        if state[packing.END] + num_tokens <= self._tokens.size:
            return
        columns = np.empty(len(self), np.int64)
        packing.list_columns(self._table, state, columns)
        columns = columns[np.argsort(self._table[packing.START, columns])]
        needed = 2 * (int(state[packing.LIVE]) + num_tokens)
        target = self._tokens
        if not needed <= target.size <= 8 * max(needed, _LEAST_TOKENS):
            target = np.empty(max(needed, _LEAST_TOKENS), target.dtype)
        packing.move_documents(self._tokens, target, self._table, state, columns)
        self._tokens = target

    def _widen_table(self, num_columns: int) -> None:
        old = self._table.shape[1]
        table = np.empty((packing.TABLE_ROWS, num_columns), np.int64)
        table[:, :old] = self._table
        table[packing.NEXT, old:] = np.arange(old + 1, num_columns + 1)
        table[packing.NEXT, -1] = self._state[packing.FREE]
        self._state[packing.FREE] = old
        self._table = table
        self._heap = np.concatenate([self._heap, np.empty(num_columns - old, np.int64)])

    def fill(
        self, rows: Array, row_numbers: Ints, epochs: Ints, advances: Ints, refill: Callable[[], bool]
    ) -> tuple[Ints, int]:
        """Fill rows[row_numbers]. Returns the pieces placed, and how many rows were filled: all, unless documents end.

        `refill` adds documents whenever there are too few, and returns False where no more come; the last row is then
        padded. epochs[row_numbers] becomes the epoch that had been reached when each was full. `advances`, for concat,
        is by how many tokens each of the rows moves on.
        """
        state = self._state
        state[packing.ROW_NUMBER] = state[packing.SEGMENTS] = 0
        while True:
            if self._rule == packing.CONCAT:
                status = packing.fill_concat(
                    self._tokens, self._table, state, rows, row_numbers, epochs, self._segments, advances
                )
            else:
                arrays = self._tokens, self._table, self._lines, self._bits, self._heap, state
                status = packing.fill_best_fit(
                    *arrays, rows, row_numbers, epochs, self._segments, self._rule, self._buffer_size, self._bos
                )
            if status == packing.FULL or (
                status == packing.NEEDS_DOCUMENTS and not refill() and not self._do_without()
            ):
                break
            if status == packing.NEEDS_SEGMENTS:
                more = np.empty((len(self._segments) + self._width, packing.SEGMENT_FIELDS), np.int64)
                self._segments = np.concatenate([self._segments, more])
            elif status == packing.STUCK:
                raise FitError(
                    f"the {len(self):,} documents that wait are all longer than a row of {self._width:,} tokens. Such "
                    "documents are never placed, and have filled the buffer: leave them out (too_long='drop'), or "
                    "choose a greater length"
                )
        num_filled = int(state[packing.ROW_NUMBER])
        self._num_rows += num_filled
        pieces = self._segments[: state[packing.SEGMENTS]]
        return pieces[pieces[:, 3] != _PADDING], num_filled

    def _do_without(self) -> bool:
        """Go on where no more documents come: with those that wait, then with padding to the end of the row.

        Returns False where there is nothing left to put into a row.
        """
        state = self._state
        self._buffer_size = 1
        if self._rule == packing.CONCAT:
            missing = 0 if self.is_spent else self._width - int(state[packing.LIVE])
        elif len(self):
            return True
        else:
            missing = (self._width - int(state[packing.POSITION])) % self._width
        if missing:
            reference = np.array([[_PADDING, 0, 0, 0]])
            padding = np.full(missing, self._bos, self._tokens.dtype)
            self.add(padding, np.array([0, missing]), reference, int(state[packing.EPOCH]))
            self._padded += missing
        return missing > 0

    def references(self) -> Ints:
        """Documents that wait, oldest first: the references given to `add`, with how many tokens are done by now."""
        references = np.empty((len(self), 4), np.int64)
        packing.list_documents(self._table, self._state, references)
        return references
