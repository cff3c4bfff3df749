"""Spans as a user sees them: those of a table, those a batch touches, and their payloads, decoded on demand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorruptionError, MissingError, SampleIndexError, quantity
from tokenfeed.format.codecs import Codec
from tokenfeed.store.numbers import lay
from tokenfeed.store.reader import Payloads, Reader
from tokenfeed.types import Ints

__all__ = ["BatchSpans", "Span", "SpanTable", "SpanTables"]


@dataclass(frozen=True, slots=True)
class Span:
    """One span: its number in the table, and the items [start, stop) of the row (or the store) it covers."""

    number: int
    start: int
    stop: int
    _spans: "BatchSpans"
    _entry: int

    @property
    def payload(self) -> Any:
        """What was written with the span, decoded now. None for a span that was written without."""
        payload = self._spans.payload_bytes(self._entry)
        return None if payload is None else self._spans.table.decode(payload, self.number)

    @property
    def has_payload(self) -> bool:
        """Tells no payload from one that is empty."""
        return self._spans.payload_bytes(self._entry) is not None

    def __repr__(self) -> str:
        return f"Span({self._spans.table.name} {self.number}: [{self.start}, {self.stop}))"


class SpanTable:
    """All spans of one name, numbered over all shards. `codec` is None where spans have no payloads at all."""

    def __init__(self, name: str, codec: Codec | None, reader: Reader | None) -> None:
        """Without a reader it is a name only: of spans that are not in a store, and have no payloads."""
        self.name = name
        self.codec = codec
        self.codec_name = None if codec is None else codec.name
        self._given_reader = reader

    @property
    def _reader(self) -> Reader:
        if self._given_reader is None:
            raise MissingError(f"{self.name!r} are spans of a batch alone; there is no table of them")
        return self._given_reader

    def __len__(self) -> int:
        return int(self._reader.span_starts(self.name)[-1])

    def __repr__(self) -> str:
        size = "of a batch alone" if self._given_reader is None else quantity(len(self), "span")
        return f"SpanTable({self.name!r}, {size}, codec {self.codec_name!r})"

    def __getitem__(self, number: int) -> Span:
        """Span `number`, with where it lies in the store. Two or three small reads."""
        numbers = np.array([number], np.int64)
        first, count = self.locate(numbers)
        span: Span = BatchSpans(self, np.array([0, 1]), numbers, first, first + count)[0][0]
        return span

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """First item and number of items of each span."""
        return self._reader.locate_spans(self.name, numbers)

    def find(self, first_items: Ints, row_offsets: Ints) -> "BatchSpans":
        """The spans that rows touch; row j is the row_offsets[j + 1] - row_offsets[j] items from first_items[j] on."""
        return BatchSpans(self, *self._reader.find_spans(self.name, first_items, row_offsets))

    def read(self, numbers: Ints) -> Payloads:
        """Payload bytes of spans: two reads for every run of consecutive numbers."""
        if self.codec is None:
            nothing = np.full(numbers.size, -1, np.int64)
            return np.empty(0, np.uint8), nothing, nothing
        return self._reader.read_payloads(self.name, numbers)

    def decode(self, payload: memoryview, number: int) -> Any:
        assert self.codec is not None
        try:
            return self.codec.decode(payload)
        except Exception as error:  # the codec is the user's, and so is what it raises
            raise CorruptionError(
                f"payload {number} of {self.name!r} ({len(payload)} bytes) cannot be decoded by codec "
                f"{self.codec.name!r}: {error}"
            ) from error


class SpanTables(dict[str, SpanTable]):
    """The span tables of a store, by name."""

    def __missing__(self, name: str) -> SpanTable:
        raise MissingError(f"the store has no span table {name!r}; it has {', '.join(self) or 'none'}")


class BatchSpans(Sequence[list[Span]]):
    """The spans that the rows of a batch touch: flat arrays, and a list of `Span` for each row.

    The spans of row j are entries [offsets[j], offsets[j + 1]) of `numbers` (which span of the table), `starts` and
    `stops` (which items of the row). Payloads are read on first use, all rows together, and decoded one by one.
    """

    def __init__(
        self, table: SpanTable, offsets: Ints, numbers: Ints, starts: Ints, stops: Ints, *, length: int = 0
    ) -> None:
        """`length` is the number of inputs in a row."""
        self.table = table
        self.offsets = offsets
        self.numbers = numbers
        self.starts = starts
        self.stops = stops
        self.length = length
        self._payloads: Payloads | None = None

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, row: Any) -> Any:
        if not -len(self) <= row < len(self):
            raise SampleIndexError(f"row {row} is outside the batch, which has {len(self)} rows")
        row %= len(self)
        return [
            Span(int(self.numbers[entry]), int(self.starts[entry]), int(self.stops[entry]), self, entry)
            for entry in range(self.offsets[row], self.offsets[row + 1])
        ]

    def __repr__(self) -> str:
        found = quantity(self.numbers.size, "span")
        return f"BatchSpans({found} of {self.table.name!r} in {quantity(len(self), 'row')})"

    def part(self, start: int, stop: int, *, length: int) -> "BatchSpans":
        """Spans of rows [start, stop), which have `length` inputs each. Without a copy."""
        if stop - start == len(self) and length == self.length:
            return self
        entries = slice(self.offsets[start], self.offsets[stop])
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        part = BatchSpans(
            self.table, offsets, self.numbers[entries], self.starts[entries], self.stops[entries], length=length
        )
        if self._payloads is not None:
            data, starts, stops = self._payloads
            part._payloads = data, starts[entries], stops[entries]
        return part

    def read_payloads(self) -> Payloads:
        """(data, starts, stops): payload i is data[starts[i]:stops[i]]; starts[i] is -1 where there is none."""
        if self._payloads is None:
            self._payloads = self.table.read(self.numbers)
        return self._payloads

    def payload_bytes(self, entry: int) -> memoryview | None:
        """The undecoded payload of one entry, without a copy."""
        data, starts, stops = self.read_payloads()
        return None if starts[entry] < 0 else data.data[starts[entry] : stops[entry]]

    def span_numbers(self, row_offsets: Ints) -> Ints:
        """For every item of the rows laid end to end, the number of the span that covers it; −1 where none does.

        Row j begins at item row_offsets[j].
        """
        counts = self.stops - self.starts
        firsts = np.repeat(row_offsets[:-1], np.diff(self.offsets)) + self.starts
        numbers = np.full(int(row_offsets[-1]), -1, np.int64)
        numbers[lay(firsts, counts)] = np.repeat(self.numbers, counts)
        return numbers

    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Where spans begin in the inputs of all rows, laid end to end, and the end: for attention that does not cross
        documents. A part that no span covers counts as one.

            rows of 5 items, 4 inputs, spans [0, 3) [3, 5) and [0, 5):   0 3 4 8
        """
        length = self.length
        firsts = np.repeat(np.arange(len(self)) * length, np.diff(self.offsets))
        bounds = [np.arange(len(self) + 1) * length]
        bounds += [(firsts + edges)[edges < length] for edges in (self.starts, self.stops)]
        return np.unique(np.concatenate(bounds)).astype(np.int32)

    def position_ids(self) -> npt.NDArray[np.int32]:
        """(rows, inputs): place of each input within its span's part of the row."""
        bounds = self.cu_seqlens()
        places = np.arange(bounds[-1], dtype=np.int32) - np.repeat(bounds[:-1], np.diff(bounds))
        return places.reshape(len(self), self.length)

    def document_ids(self) -> npt.NDArray[np.int32]:
        """(rows, inputs): a number for each input, the same within one span's part of a row."""
        bounds = self.cu_seqlens()
        numbers = np.repeat(np.arange(bounds.size - 1, dtype=np.int32), np.diff(bounds))
        return numbers.reshape(len(self), self.length)
