"""`DocumentSource`: where the documents of a stream come from, for any number of lanes, and their tokens."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tokenfeed.text.streaming.chunks import Encoded, GroupedTexts, TextChunk, read_chunks, read_documents
from tokenfeed.text.streaming.cursors import GroupOrder, LaneCursor, Restart, Stride, deal
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.streaming.state import LaneState
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints

__all__ = ["DocumentSource"]


class DocumentSource(ABC):
    """Documents in row groups. A document is referred to by (file, row group, row, tokens done)."""

    _texts: GroupedTexts
    _restart: Restart = "epoch"
    _seed: int | None = None
    _refill_size = 1

    def __init__(self, tokenizer: Tokenizer, dtype: "np.dtype[Any]") -> None:
        """`dtype` is the type of tokens while they are packed."""
        self._tokenizer = tokenizer
        self.bos = tokenizer.bos_id
        self.dtype = dtype

    def _stride(self, num_lanes: int) -> Stride:
        return Stride(GroupOrder(self._texts, self._seed), num_lanes, self._restart)

    @property
    def paths(self) -> list[str]:
        """Files that the documents are read from."""
        return [str(path) for path in self._texts.paths]

    def check(self, num_lanes: int) -> None:
        """Raise where a lane would have nothing to read."""
        self._stride(num_lanes).check()

    def start(self, lane: int) -> LaneCursor:
        """Where a lane begins."""
        return LaneCursor(0, 0, 0, lane)

    def end(self, epochs: int) -> LaneCursor:
        """Where the only lane of a finite stream ends."""
        return LaneCursor(epochs, 0, 0, 0)

    def read(self, lane: int, num_lanes: int, cursor: LaneCursor, epochs: int | None) -> Iterator[TextChunk]:
        """Documents of a lane from a cursor on: to the end of so many epochs, or without end."""
        return read_chunks(self._texts, self._stride(num_lanes), lane, cursor, self._refill_size, epochs)

    def fetch(self, references: Ints) -> Encoded:
        """Documents that were read before, as tokens."""
        return self.encode(read_documents(self._texts, references))

    def deal(self, lanes: Mapping[int, LaneState], num_lanes: int) -> list[LaneCursor]:
        """Deal the remaining documents of all lanes out to another number of lanes: every document once."""
        states = [lanes[number] for number in range(len(lanes))]
        cursors, waiting = [lane.cursor for lane in states], [lane.documents for lane in states]
        return deal(cursors, waiting, self._stride(len(lanes)), self._stride(num_lanes))

    @abstractmethod
    def encode(self, texts: list[Any]) -> Encoded:
        """Documents as tokens, each led by BOS."""

    @abstractmethod
    def make_rows(self, packed: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        """The rows to deliver, made from packed tokens."""

    @abstractmethod
    def after_nanochat(self, state: Mapping[str, Any], lane: int, num_lanes: int) -> LaneCursor:
        """Where nanochat goes on with a state of its own."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Everything that a state depends on, in short."""

    @abstractmethod
    def contents(self, files: Iterable[int]) -> dict[str, str]:
        """Checksums of files that a state refers to."""

    @abstractmethod
    def accept(self, plan: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        """Check that a state was made from this source."""
