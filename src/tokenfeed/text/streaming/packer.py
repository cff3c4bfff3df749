"""`Packer`: documents go in, rows of tokens come out. The work is done by `kernels/packing.py`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, FitError
from tokenfeed.kernels import packing
from tokenfeed.kernels.posix import record
from tokenfeed.text.streaming.lanes import check_whole
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
        check_whole(length=length, buffer_size=buffer_size)
        if name in ("concat", "concat_pop"):
            return cls(length, packing.CONCAT, buffer_size, name, name == "concat_pop")
        if name != "best_fit":
            raise ArgumentError(f"packing is {name!r}; it must be 'best_fit', 'concat' or 'concat_pop'")
        if overflow not in _RULES:
            raise ArgumentError(f"overflow is {overflow!r}; it must be one of {', '.join(map(repr, _RULES))}")
        return cls(length, _RULES[overflow], buffer_size, name)

    @classmethod
    def padding(cls, *, length: int, buffer_size: int) -> "Packing":
        """Whole documents by best fit, with padding where none fits; one that is longer than a row waits for ever."""
        return replace(cls.choose("best_fit", "crop", length=length, buffer_size=buffer_size), rule=packing.PAD)


class PackingCounts(NamedTuple):
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
        self._lines = np.full((2, width + 2), packing.NONE, np.int64)
        self._bits = np.zeros(packing.num_bit_words(width + 2), np.uint64)
        self._state = record(packing.STATE, oldest=packing.NONE, newest=packing.NONE, free=packing.NONE)
        self._documents = np.zeros(0, packing.DOCUMENT)
        self._heap = np.empty(0, np.int64)
        self._segments = np.empty(1024, packing.SEGMENT)
        self._add_records(2 * buffer_size + 64)

    def __len__(self) -> int:
        """Number of documents that wait."""
        return int(self._state["count"][0])

    @property
    def is_spent(self) -> bool:
        """Whether nothing waits that no row has had; `concat` keeps the last token of a row for the next one."""
        return len(self) == 0 if self._rule != packing.CONCAT else int(self._state["live"][0]) <= 1

    def counts(self) -> PackingCounts:
        lost, repeated, padded = (int(self._state[name][0]) for name in ("lost", "repeated", "padded"))
        return PackingCounts(self._num_rows, lost, repeated, padded + self._padded, len(self))

    def add(self, tokens: Array, offsets: Ints, references: Ints) -> None:
        """Let documents wait: document i is tokens[offsets[i]:offsets[i + 1]] with its BOS.

        references[i] is (file, row group, row) of the document, and how many of its tokens are done already.
        """
        tokens = np.ascontiguousarray(tokens, self._tokens.dtype)
        self._make_room(tokens.size, len(references))
        lead = -1 if self._rule == packing.CONCAT else self._bos
        arrays = self._tokens, self._documents, self._lines, self._bits, self._heap, self._state
        packing.add_documents(*arrays, tokens, offsets, references, self._rule, lead)

    def _make_room(self, num_tokens: int, num_documents: int) -> None:
        if len(self) + num_documents > self._documents.size:
            self._add_records(2 * (len(self) + num_documents) - self._documents.size)
        if self._state["end"][0] + num_tokens <= self._tokens.size:
            return
        numbers = self._waiting()
        numbers = numbers[np.argsort(self._documents["start"][numbers])]
        needed = 2 * (int(self._state["live"][0]) + num_tokens)
        target = self._tokens
        if not needed <= target.size <= 8 * max(needed, _LEAST_TOKENS):
            target = np.empty(max(needed, _LEAST_TOKENS), target.dtype)
        packing.move_documents(self._tokens, target, self._documents, self._state, numbers)
        self._tokens = target

    def _add_records(self, count: int) -> None:
        """Make room for `count` more documents."""
        old, more = self._documents.size, np.zeros(count, packing.DOCUMENT)
        more["next"] = np.arange(old + 1, old + count + 1)
        more["next"][-1] = self._state["free"][0]
        self._state["free"] = old
        self._documents = np.concatenate([self._documents, more])
        self._heap = np.concatenate([self._heap, np.empty(count, np.int64)])

    def _waiting(self) -> Ints:
        """Numbers of the documents that wait, oldest first."""
        numbers = np.empty(len(self), np.int64)
        packing.list_waiting(self._documents, self._state, numbers)
        return numbers

    def fill(self, rows: Array, row_numbers: Ints, advances: Ints, refill: Callable[[], bool]) -> tuple[Ints, int]:
        """Fill rows[row_numbers]. Returns the pieces placed, and how many rows were filled: all, unless documents end.

        `refill` adds documents whenever there are too few, and returns False where no more come; the last row is then
        padded. `advances`, for concat, is by how many tokens each of the rows moves on.
        """
        state = self._state
        state["row_number"] = state["segments"] = 0
        while True:
            if self._rule == packing.CONCAT:
                status = packing.fill_concat(
                    self._tokens, self._documents, state, rows, row_numbers, self._segments, advances
                )
            else:
                arrays = self._tokens, self._documents, self._lines, self._bits, self._heap, state
                status = packing.fill_best_fit(
                    *arrays, rows, row_numbers, self._segments, self._rule, self._buffer_size, self._bos
                )
            if status == packing.FULL or (
                status == packing.NEEDS_DOCUMENTS and not refill() and not self._do_without()
            ):
                break
            if status == packing.NEEDS_SEGMENTS:
                more = np.empty(self._segments.size + self._width, packing.SEGMENT)
                self._segments = np.concatenate([self._segments, more])
            elif status == packing.STUCK:
                raise FitError(
                    f"the {len(self):,} documents that wait are all longer than a row of {self._width:,} tokens. Such "
                    "documents are never placed, and have filled the buffer: leave them out (too_long='drop'), or "
                    "choose a greater length"
                )
        num_filled = int(state["row_number"][0])
        self._num_rows += num_filled
        pieces = self._segments[: state["segments"][0]].view(np.int64).reshape(-1, packing.SEGMENT.itemsize // 8)
        return pieces[pieces[:, 3] != _PADDING], num_filled

    def _do_without(self) -> bool:
        """Go on where no more documents come: with those that wait, then with padding to the end of the row.

        Returns False where there is nothing left to put into a row.
        """
        state = self._state
        self._buffer_size = 1
        if self._rule == packing.CONCAT:
            missing = 0 if self.is_spent else self._width - int(state["live"][0])
        elif len(self):
            return True
        else:
            missing = (self._width - int(state["position"][0])) % self._width
        if missing:
            reference = np.array([[_PADDING, 0, 0, 0]])
            padding = np.full(missing, self._bos, self._tokens.dtype)
            self.add(padding, np.array([0, missing]), reference)
            self._padded += missing
        return missing > 0

    def references(self) -> Ints:
        """Documents that wait, oldest first: the references given to `add`, with how many tokens are done by now."""
        waiting = self._waiting()  # picked from each field by itself: picking whole records takes 100 times as long
        return np.stack([self._documents[name][waiting] for name in ("file", "group", "row", "done")], axis=1)
