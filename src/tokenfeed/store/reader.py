"""Runs the reading kernels over a store's shards: opens the files they ask for and turns their answers into errors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, CorruptionError, SampleIndexError
from tokenfeed.kernels import items, posix, spans
from tokenfeed.storage.files import Backend, FileTable, Part
from tokenfeed.storage.remote import Remote, RemoteStats
from tokenfeed.store.shards import Shard

__all__ = ["Form", "FoundSpans", "Ints", "Location", "Payloads", "Reader"]

Ints = npt.NDArray[np.int64]

FoundSpans = tuple[Ints, Ints, Ints, Ints]
"""offsets, numbers, starts, stops: the spans of row j are entries [offsets[j], offsets[j + 1])."""

Payloads = tuple[npt.NDArray[np.uint8], Ints, Ints]
"""data, starts, stops: payload j is data[starts[j]:stops[j]], and there is none where starts[j] is -1."""


class Location(NamedTuple):
    """Items [start, stop) of a shard."""

    shard: str
    start: int
    stop: int


class Form(NamedTuple):
    """How a column lies in its files, and in the buffer of a batch: as there, or in wider numbers."""

    item_bytes: int
    out_bytes: int
    number_bytes: int
    """Of one number of an item, in the file."""
    sign: int
    """The sign bit of these numbers; 0 where they have none."""


class Reader:
    """Reads rows of items, and the spans they touch, in one GIL-free call each. Threads may share a reader.

    The files of a shard are numbered: one for each column, then four for each span table.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        columns: Sequence[str],
        tables: Sequence[str],
        *,
        backend: Backend,
        reads_in_flight: int,
        max_open_files: int | None,
        remote: Remote | None,
    ) -> None:
        if reads_in_flight < 1:
            raise ArgumentError(f"reads_in_flight is {reads_in_flight}; it must be at least 1")
        self.shards = shards
        self._how: dict[str, Any] = {
            "backend": backend,
            "reads_in_flight": reads_in_flight,
            "max_open_files": max_open_files,
            "remote": remote,
        }
        self._columns = list(columns)
        self._tables = list(tables)
        self._files_per_segment = len(columns) + spans.TABLE_FILES * len(tables)
        self._ahead = reads_in_flight
        self.starts = _cumulative([shard.num_items for shard in shards])
        self._span_starts: dict[str, Ints] = {}
        # Not a method of this object: the two would refer to each other, and files would stay open until the next
        # garbage collection.
        describe = partial(_describe_file, shards, self._columns, self._tables)
        if remote is None and any(shard.is_remote for shard in shards):
            remote = Remote()
        self._is_verified = any(shard.is_verified for shard in shards)
        self._announces = remote is None and self._is_verified
        """Whether the operating system is told of rows before they are read, because the kernel does not do so."""
        self.remote = remote
        """How what lies elsewhere is read; None where nothing does."""
        self._files = FileTable(
            len(shards) * self._files_per_segment,
            describe,
            backend=backend,
            max_open_files=max_open_files,
            remote=remote,
        )

    def join(self, others: Sequence["Reader"], columns: Sequence[str], tables: Sequence[str]) -> "Reader":
        """A reader of some columns and span tables of several stores, one behind the other, that reads as this does."""
        shards = [shard for reader in (self, *others) for shard in reader.shards]
        return Reader(shards, columns, tables, **self._how)

    def request(
        self, columns: Mapping[str, Form], *, stride: int = 0, num_items: int = 0, num_samples: int = 0
    ) -> Ints:
        """What kernels take to know the columns to be read, in which form each, and what windows are.

        It is good for as long as this reader is.
        """
        table = np.array([(self._columns.index(name), *form) for name, form in columns.items()], np.int64)
        fixed = self.starts, self._files.rows, self._files_per_segment, table, self._ahead
        request: Ints = items.make_request(*fixed, stride, num_items, num_samples)  # type: ignore[no-untyped-call]
        return request

    def span_starts(self, table: str) -> Ints:
        """Number of the first span of every shard, and the number of all."""
        if table not in self._span_starts:
            self._span_starts[table] = _cumulative([shard.num_spans(table) for shard in self.shards])
        return self._span_starts[table]

    def locate(self, start: int, stop: int) -> list[Location]:
        """The shards that hold items [start, stop)."""
        places = []
        segment = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            first, end = int(self.starts[segment]), min(stop, int(self.starts[segment + 1]))
            if start < end:
                places.append(Location(self.shards[segment].name, start - first, end - first))
                start = end
            segment += 1
        return places

    def _first_file(self, table: str) -> int:
        return len(self._columns) + spans.TABLE_FILES * self._tables.index(table)

    def read_windows(self, indices: Ints, request: Ints, buffer: npt.NDArray[Any]) -> None:
        """Row j of every column becomes the items of window indices[j]; `request` says which those are."""
        if self._announces:
            num_items = int(request[items.NUM_ITEMS])
            row_offsets = np.arange(0, (indices.size + 1) * num_items, num_items)
            items.want_rows(indices * request[items.STRIDE], row_offsets, request)
        if self.remote is None:  # at once: every tenth of a microsecond before a kernel keeps other threads waiting
            status, file, row = items.read_windows(indices, request, buffer)
        else:
            status, file, row = self._files.call(items.read_windows, indices, request, buffer)
        while status != posix.OK:
            stride, _, num_samples = request[:3].tolist()
            if status == posix.BAD_INDEX:
                raise SampleIndexError(f"sample {indices[row]} is outside the view, which has {num_samples:,} samples")
            self._recover(status, file, self.starts, indices * stride)
            status, file, row = self._files.call(items.read_windows, indices, request, buffer)

    def read_ragged(self, first_items: Ints, row_offsets: Ints, request: Ints, buffer: npt.NDArray[Any]) -> None:
        """Row j of every column becomes the items from first_items[j] on, at [row_offsets[j], row_offsets[j + 1])."""
        self._read_rows(items.read_ragged, first_items, row_offsets, request, buffer)

    def read_pieces(self, first_items: Ints, offsets: Ints, request: Ints, buffer: npt.NDArray[Any]) -> None:
        """As `read_ragged`; and what begins at `items.PADDING` becomes zeros."""
        self._read_rows(items.read_pieces, first_items, offsets, request, buffer)

    def _read_rows(
        self, kernel: Any, first_items: Ints, offsets: Ints, request: Ints, buffer: npt.NDArray[Any]
    ) -> None:
        if self._announces:
            items.want_rows(first_items, offsets, request)
        while True:
            status, file, row = self._files.call(kernel, first_items, offsets, request, buffer)
            if status == posix.OK:
                return
            if status == posix.BAD_INDEX:
                raise SampleIndexError(
                    f"row {row} begins at item {first_items[row]}; the store has {self.starts[-1]:,}"
                )
            self._recover(status, file, self.starts, first_items)

    def announce(self, first_items: Ints, row_offsets: Ints, request: Ints) -> None:
        """Begin to fetch what `read_pieces` will read, as far as it lies elsewhere."""
        while True:
            status, file, _ = self._files.announce(items.want_rows, first_items, row_offsets, request)
            if status != posix.UNOPENED:
                return  # whatever else is wrong is told to whoever reads
            self._recover(status, file, self.starts, first_items)

    def bytes_to_fetch(self, num_bytes: int) -> int:
        """About how many bytes have to be fetched to read so many in one place."""
        blocks = 2 if self._is_verified else 1  # another for its checksums
        return num_bytes + (0 if self.remote is None else blocks * self.remote.block_bytes)

    def stats(self) -> RemoteStats | None:
        """What fetching took; None where there is nothing to fetch."""
        return None if self._files.blocks is None else self._files.blocks.stats()

    def close(self) -> None:
        """Wait until what was fetched is in the cache on disk. Reading may go on."""
        if self._files.blocks is not None:
            self._files.blocks.close()

    def find_spans(self, table: str, first_items: Ints, row_offsets: Ints) -> FoundSpans:
        """The spans of `table` that rows touch; the number of items of row j is row_offsets[j + 1] - row_offsets[j]."""
        while True:
            status, file, row, *found = self._files.call(
                spans.find_spans,
                first_items,
                row_offsets,
                self.starts,
                self.span_starts(table),
                self._files.rows,
                self._files_per_segment,
                self._first_file(table),
            )
            if status == posix.OK:
                return found[0], found[1], found[2], found[3]
            if status == posix.BAD_INDEX:
                raise SampleIndexError(
                    f"row {row} begins at item {first_items[row]}; the store has {self.starts[-1]:,}"
                )
            self._recover(status, file, self.starts, first_items)

    def locate_spans(self, table: str, numbers: Ints) -> tuple[Ints, Ints]:
        """First item and number of items of each span."""
        located = np.empty((2, numbers.size), np.int64)
        while True:
            status, file, row = self._files.call(
                spans.locate_spans,
                numbers,
                self.starts,
                self.span_starts(table),
                self._files.rows,
                self._files_per_segment,
                self._first_file(table),
                located,
            )
            if status == posix.OK:
                return located[0], located[1]
            self._recover_span(table, numbers, status, file, row)

    def read_payloads(self, table: str, numbers: Ints) -> Payloads:
        """The payload bytes of spans."""
        while True:
            status, file, row, *payloads = self._files.call(
                spans.read_payloads,
                numbers,
                self.span_starts(table),
                self._files.rows,
                self._files_per_segment,
                self._first_file(table),
            )
            if status == posix.OK:
                return payloads[0], payloads[1], payloads[2]
            self._recover_span(table, numbers, status, file, row)

    def _recover_span(self, table: str, numbers: Ints, status: int, file: int, row: int) -> None:
        starts = self.span_starts(table)
        if status == posix.BAD_INDEX:
            raise SampleIndexError(f"span {numbers[row]} is outside {table!r}, which has {starts[-1]:,} spans")
        self._recover(status, file, starts, numbers)

    def _recover(self, status: int, file: int, starts: Ints, positions: Ints) -> None:
        """Open what a kernel asked for, and the same file of every shard these rows begin in; or raise."""
        if status == posix.UNOPENED:
            self._files.open(file)
            segments = np.unique(np.searchsorted(starts, positions, side="right") - 1)
            for segment in segments[(segments >= 0) & (segments < len(self.shards))]:
                self._files.open(int(segment) * self._files_per_segment + file % self._files_per_segment)
        elif status == posix.BAD_SPANS:
            name = self._files.name(file)
            raise CorruptionError(f"{name} contradicts its table or itself; `tokenfeed verify` says where")
        elif status == posix.SMALL_OUTPUT:
            raise ArgumentError("the output is smaller than what is to be read into it")
        else:
            raise self._files.failure(status, file)


def _describe_file(shards: Sequence[Shard], columns: list[str], tables: list[str], number: int) -> Part | Ints:
    """File `number`, as kernels count them: those of shard 0 (columns, then four for each table), of shard 1, …"""
    segment, file = divmod(number, len(columns) + spans.TABLE_FILES * len(tables))
    if file < len(columns):
        return shards[segment].column_part(columns[file])
    table, part = divmod(file - len(columns), spans.TABLE_FILES)
    return shards[segment].span_parts(tables[table])[part]


def _cumulative(counts: Sequence[int]) -> Ints:
    total = sum(counts)
    if total >= 1 << 62:
        raise CorruptionError(f"the shards claim {total:,} items or spans together; at most 2**62 can be")
    return np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))).astype(np.int64)
