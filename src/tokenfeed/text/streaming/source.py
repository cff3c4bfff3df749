"""What a stream asks of where its documents come from."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from tokenfeed.text.streaming.chunks import Encoded, Texts
from tokenfeed.text.streaming.places import Place
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.streaming.state import LaneState
from tokenfeed.types import Array, Ints

__all__ = ["Source"]


class Source(Protocol):
    """Documents for any number of lanes, and what they are as tokens. `references` are four numbers a document."""

    bos: int
    """What leads every document."""

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Of tokens on their way to rows."""

    def check(self, num_lanes: int) -> None:
        """Raise where a lane would have nothing to read."""

    def start(self, lane: int, num_lanes: int) -> Place: ...

    def read(self, lane: int, num_lanes: int, place: Place) -> Iterator[Texts]:
        """The documents of a lane from a place on, without end."""

    def encode(self, texts: list[Any]) -> Encoded: ...

    def fetch(self, references: Ints) -> Encoded:
        """Documents that were read before, once more."""

    def rows(self, packed: Array, segments: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        """The rows to deliver, made from packed tokens."""

    def deal(self, lanes: Mapping[int, LaneState], num_lanes: int) -> list[Place]:
        """Deal what the lanes had before them out to another number of lanes: every document once."""

    def after_nanochat(self, state: Mapping[str, Any], lane: int, num_lanes: int) -> Place:
        """Where nanochat goes on with a state of its own."""

    def parts(self) -> dict[str, Any]:
        """What a state depends on."""

    def contents(self, files: Iterable[int]) -> dict[str, str]:
        """Checksums of files that a state refers to."""

    def accept(self, plan: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        """Check that a state was made from this source."""
