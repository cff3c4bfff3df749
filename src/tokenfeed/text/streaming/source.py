"""`DocumentSource`: what a stream asks of the place its documents come from."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from tokenfeed.text.streaming.chunks import Encoded, TextChunk
from tokenfeed.text.streaming.cursors import LaneCursor
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.streaming.state import LaneState
from tokenfeed.types import Array, Ints

__all__ = ["DocumentSource"]


class DocumentSource(Protocol):
    """Documents for any number of lanes, and their tokens. A document is referred to by four numbers."""

    bos: int
    """Token that leads every document."""

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Type of tokens while they are packed."""

    @property
    def paths(self) -> list[str]:
        """Files that the documents are read from."""

    def check(self, num_lanes: int) -> None:
        """Raise where a lane would have nothing to read."""

    def start(self, lane: int, num_lanes: int) -> LaneCursor:
        """Where a lane begins."""

    def end(self, epochs: int) -> LaneCursor:
        """Where the only lane of a finite stream ends."""

    def read(self, lane: int, num_lanes: int, cursor: LaneCursor, epochs: int | None) -> Iterator[TextChunk]:
        """Documents of a lane from a cursor on: to the end of so many epochs, or without end."""

    def encode(self, texts: list[Any]) -> Encoded:
        """Documents as tokens."""

    def fetch(self, references: Ints) -> Encoded:
        """Documents that were read before, as tokens."""

    def make_rows(self, packed: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        """The rows to deliver, made from packed tokens."""

    def deal(self, lanes: Mapping[int, LaneState], num_lanes: int) -> list[LaneCursor]:
        """Deal the remaining documents of all lanes out to another number of lanes: every document once."""

    def after_nanochat(self, state: Mapping[str, Any], lane: int, num_lanes: int) -> LaneCursor:
        """Where nanochat goes on with a state of its own."""

    def parts(self) -> dict[str, Any]:
        """Everything that a state depends on, in short."""

    def contents(self, files: Iterable[int]) -> dict[str, str]:
        """Checksums of files that a state refers to."""

    def accept(self, plan: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        """Check that a state was made from this source."""
