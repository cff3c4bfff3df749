"""`StreamBatch`: a batch that a stream packed; and `StreamRows`, its rows."""

from functools import cached_property

import numpy as np

from tokenfeed.errors import MissingError
from tokenfeed.store.batch import Draw, HostBatch
from tokenfeed.store.rows import Layout, Rows
from tokenfeed.store.spans import BatchSpans, SpanTable
from tokenfeed.text.streaming.lanes import Position
from tokenfeed.types import Array, Bools, Ints

__all__ = ["StreamBatch", "StreamRows"]


class StreamRows(Rows):
    """Rows of `length` + 1 tokens, packed from pieces of documents."""

    def __init__(
        self, tokens: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool, learned: Bools | None = None
    ) -> None:
        """`pieces` are (row, start, length, file, row group, row in it, tokens before) of all that was placed, in any
        order. Where rows cross documents, as `concat` packs them, every target but padding counts; else `loss_mask` is
        that of `store.packed`. `learned` says which tokens are to be learned at all.
        """
        self.tokens = tokens
        self.length: int = tokens.shape[1] - 1
        self.layout = Layout(self.length, 1, ("tokens",), "tokens", "documents", ("documents",))
        self.indices = samples
        self._pieces = pieces
        self._crosses_documents = crosses_documents
        self._learned = learned

    @property
    def offsets(self) -> Ints:
        return np.arange(len(self) + 1) * (self.length + 1)

    @property
    def lengths(self) -> Ints:
        return np.bincount(self._pieces[:, 0], self._pieces[:, 2], len(self)).astype(np.int64)

    def column(self, name: str) -> Array:
        if name != "tokens":
            raise MissingError(f"the stream has no column {name!r}; it has tokens")
        return self.tokens

    @cached_property
    def _sorted(self) -> Ints:
        return self._pieces[np.lexsort((self._pieces[:, 1], self._pieces[:, 0]))]

    def documents(self, start: int, stop: int) -> Ints:
        """(file, row group, row, tokens before) of every piece in rows [start, stop). BOS is not counted."""
        first, last = self._spans.offsets[[start, stop]].tolist()
        documents = self._sorted[first:last, 3:7]
        if self._crosses_documents:  # `concat` counts all tokens that are done
            documents = documents - (documents > 0) * (np.arange(4) == 3)
        return documents

    @cached_property
    def _spans(self) -> BatchSpans:
        rows, starts, lengths = self._sorted[:, 0], self._sorted[:, 1], self._sorted[:, 2]
        offsets = np.searchsorted(rows, np.arange(len(self) + 1))
        table = SpanTable(self.layout.table, None, None)
        return BatchSpans(table, offsets, np.arange(rows.size), starts, starts + lengths)

    def spans(self, table: str) -> BatchSpans:
        if table != self.layout.table:
            raise MissingError(f"the stream has no span table {table!r}; it has {self.layout.table!r}")
        return self._spans

    def loss_mask(self, start: int, stop: int) -> Bools | None:
        if self._crosses_documents:
            real = self.lengths[start:stop]
            return None if (real > self.length).all() else np.arange(1, self.length + 1) < real[:, None]
        spans = self._spans.part(start, stop, length=self.length)
        offsets = self.offsets[: stop - start + 1]
        mask = spans.span_numbers(offsets) >= 0
        mask[np.repeat(offsets[:-1], np.diff(spans.offsets)) + spans.starts] = False
        mask = mask.reshape(stop - start, self.length + 1)[:, 1:]
        wanted = super().loss_mask(start, stop)
        return mask if wanted is None else mask & wanted

    def learned(self, start: int, stop: int) -> Bools | None:
        return None if self._learned is None else self._learned[start:stop]


class StreamBatch(HostBatch):
    """A batch of a stream, and the position of the stream after it."""

    rows: StreamRows
    _draw: Draw

    def __init__(self, rows: StreamRows, start: int, stop: int, *, draw: Draw, position: Position) -> None:
        super().__init__(rows, start, stop, draw=draw, num_delivered=position.num_rows)
        self.position = position

    @property
    def documents(self) -> Ints:
        """(file, row group, row, tokens before) of every piece of a document, in the order of `spans["documents"]`."""
        return self.rows.documents(self._start, self._stop)

    def part(self, start: int, stop: int) -> "StreamBatch":
        first = self._start
        return StreamBatch(self.rows, first + start, first + stop, draw=self._draw, position=self.position)
