"""What a stream delivers as the rows of a batch."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from tokenfeed.errors import MissingError
from tokenfeed.store.data import Array
from tokenfeed.store.reader import Ints
from tokenfeed.store.spans import BatchSpans, SpanTable

__all__ = ["PackedRows"]


class PackedRows:
    """Rows packed of documents. `inputs, targets = rows` is next-token prediction."""

    column_names: tuple[str, ...] = ("tokens",)
    primary = "tokens"
    extra = 1

    def __init__(self, tokens: Array, segments: Ints, *, length: int | None = None) -> None:
        """`segments` are the pieces of documents that were placed, in any order of rows."""
        self.tokens = tokens
        self.length = tokens.shape[1] - 1 if length is None else length
        self._segments = segments

    def column(self, name: str) -> Array:
        if name != "tokens":
            raise MissingError(f"the stream has no column {name!r}; it has {', '.join(self.column_names)}")
        return self.tokens

    @property
    def inputs(self) -> Array:
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Array:
        return self.tokens[:, 1:]

    @cached_property
    def _sorted(self) -> Ints:
        return self._segments[np.lexsort((self._segments[:, 1], self._segments[:, 0]))]

    @property
    def documents(self) -> Ints:
        """(file, row group, row, tokens done before) of every piece, in the order of `spans["documents"]`."""
        return self._sorted[:, 3:7]

    @cached_property
    def spans(self) -> Mapping[str, BatchSpans]:
        """Which places of the rows are of one document, as table `documents`; its spans have no payloads."""
        rows, starts, lengths = self._sorted[:, 0], self._sorted[:, 1], self._sorted[:, 2]
        offsets = np.searchsorted(rows, np.arange(len(self) + 1))
        table = SpanTable("documents", None, None)
        return {"documents": BatchSpans(table, offsets, np.arange(rows.size), starts, starts + lengths)}

    def part(self, start: int, stop: int) -> "PackedRows":
        """Rows [start, stop), without a copy."""
        return PackedRows(self.tokens[start:stop], self._segments_of(start, stop))

    def _segments_of(self, start: int, stop: int) -> Ints:
        if (start, stop) == (0, len(self)):
            return self._segments
        within = self._segments[(self._segments[:, 0] >= start) & (self._segments[:, 0] < stop)]
        within[:, 0] -= start
        return within

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[Array]:
        yield self.inputs
        yield self.targets
