"""Runs the reading kernels over a store's shards: opens the files they ask for and turns their answers into errors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, SampleIndexError, quantity
from tokenfeed.kernels import items, posix, spans
from tokenfeed.storage.files import Backend, FileTable, Part
from tokenfeed.storage.remote import Remote, RemoteStats
from tokenfeed.store.numbers import outside
from tokenfeed.store.shards import Shard
from tokenfeed.types import Array, Bytes, Ints

__all__ = ["Location", "Payloads", "ReadOptions", "Reader"]

Payloads = tuple[Bytes, Ints, Ints]
"""data, starts, stops: payload j is data[starts[j]:stops[j]], and there is none where starts[j] is -1."""


class Location(NamedTuple):
    """Items [start, stop) of a shard."""

    shard: str
    start: int
    stop: int


class ReadOptions(NamedTuple):
    """How files are read: the arguments of `open` with these names."""

    backend: Backend = "pread"
    remote: Remote | None = None


class Reader:
    """Reads rows of items, and the spans they touch, in one GIL-free call each. Threads may share a reader.

    The files of a shard are numbered: one for each column, then four for each span table.
    """

    def __init__(
        self, shards: Sequence[Shard], columns: Sequence[str], tables: Sequence[str], options: ReadOptions
    ) -> None:
        self.shards = shards
        self.options = options
        self._columns = list(columns)
        self._tables = list(tables)
        self._files_per_segment = len(columns) + spans.TABLE_FILES * len(tables)
        self.starts = _cumulative([shard.num_items for shard in shards])
        self._arguments: dict[str, tuple[Ints, Array, int, int]] = {}
        is_remote = any(shard.is_remote for shard in shards)
        self.remote = Remote() if options.remote is None and is_remote else options.remote
        """How remote files are read; None if there are none."""
        self._files = FileTable(
            len(shards) * self._files_per_segment,
            # Not a method of this object: the two would refer to each other, and files would stay open until the next
            # garbage collection.
            partial(_describe_file, shards, self._columns, self._tables),
            backend=options.backend,
            remote=self.remote,
        )
        self.blocks = self._files.blocks
        """What was fetched of remote files; None if there are none."""

    def request(self, columns: Mapping[str, int], **windows: int) -> Ints:
        """The columns to read, with the bytes of an item of each, and what `windows` are, as kernels take it.

        It is valid for as long as this reader exists.
        """
        rows = [(self._columns.index(name), item_bytes) for name, item_bytes in columns.items()]
        table = np.array(rows, items.COLUMN)
        return items.make_request(self.starts, self._files.rows, self._files_per_segment, table, **windows)

    def span_starts(self, table: str) -> Ints:
        """Number of the first span of every shard, and the number of all."""
        return self._table_arguments(table)[0]

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

    def read_windows(self, indices: Ints, request: Ints, buffer: Bytes) -> None:
        """Row j of every column becomes the items of window indices[j]; `request` says which those are."""
        if self.remote is None:  # at once: every tenth of a microsecond before a kernel keeps other threads waiting
            status, file, row = items.read_windows(indices, request, buffer)
        else:
            status, file, row = self._files.call(items.read_windows, indices, request, buffer)
        while status != posix.OK:
            stride, _, num_samples = items.windows_of(request)
            if status == posix.BAD_INDEX:
                raise outside(indices[row], num_samples)
            self._recover(status, file, self.starts, indices * stride)
            status, file, row = self._files.call(items.read_windows, indices, request, buffer)

    def read_ragged(self, first_items: Ints, row_offsets: Ints, request: Ints, buffer: Bytes) -> None:
        """Row j of every column becomes the items from first_items[j] on, at [row_offsets[j], row_offsets[j + 1]).

        A row that begins at `items.PADDING` becomes zeros.
        """
        self._run(items.read_ragged, first_items, row_offsets, request, buffer)

    def announce(self, first_items: Ints, row_offsets: Ints, request: Ints, block_bytes: int = 0) -> None:
        """Begin to fetch the part of the rows that is remote, in blocks of that size, since neighbours follow soon."""
        rows = first_items, row_offsets, request
        while True:
            status, file, _ = self._files.announce(items.want_rows, *rows, block_bytes=block_bytes)
            if status != posix.UNOPENED:
                return  # whoever reads the rows is told of anything else that is wrong
            self._recover(status, file, self.starts, first_items)

    def bytes_to_fetch(self, num_bytes: int) -> int:
        """About how many bytes have to be fetched to read `num_bytes` in one place."""
        if self.remote is None:
            return num_bytes
        return num_bytes + (self.remote.block_bytes or 512)

    def stats(self) -> RemoteStats | None:
        """Counts of what was fetched; None if nothing is remote."""
        return None if self.blocks is None else self.blocks.stats()

    def close(self) -> None:
        """Wait until everything fetched is in the cache on disk. Reading may go on."""
        if self.blocks is not None:
            self.blocks.close()

    def find_spans(self, table: str, first_items: Ints, row_offsets: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(offsets, numbers, starts, stops) of spans that rows touch; row j has entries offsets[j] to offsets[j + 1].

        Row j is the row_offsets[j + 1] - row_offsets[j] items from first_items[j] on.
        """
        arguments = first_items, row_offsets, self.starts, *self._table_arguments(table)
        _, _, _, offsets, numbers, starts, stops = self._run(spans.find_spans, *arguments)
        return offsets, numbers, starts, stops

    def locate_spans(self, table: str, numbers: Ints) -> tuple[Ints, Ints]:
        """First item and number of items of each span."""
        located = np.empty((2, numbers.size), np.int64)
        self._run(spans.locate_spans, numbers, self.starts, *self._table_arguments(table), located, table=table)
        return located[0], located[1]

    def read_payloads(self, table: str, numbers: Ints) -> Payloads:
        """The payload bytes of spans."""
        arguments = numbers, *self._table_arguments(table)
        _, _, _, data, starts, stops = self._run(spans.read_payloads, *arguments, table=table)
        return data, starts, stops

    def _table_arguments(self, table: str) -> tuple[Ints, Array, int, int]:
        """The arguments by which kernels know a span table."""
        if table not in self._arguments:
            first_file = len(self._columns) + spans.TABLE_FILES * self._tables.index(table)
            starts = _cumulative([shard.num_spans(table) for shard in self.shards])
            self._arguments[table] = starts, self._files.rows, self._files_per_segment, first_file
        return self._arguments[table]

    def _run(self, kernel: Any, positions: Ints, *arguments: Any, table: str | None = None) -> Any:
        """Call a kernel, again whenever it needs a file opened; its answer.

        `positions` are the first items of rows, or numbers of spans if `table` is given.
        """
        while True:
            answer = self._files.call(kernel, positions, *arguments)
            if answer[0] == posix.OK:
                return answer
            status, file, row, *_ = answer
            starts = self.starts if table is None else self.span_starts(table)
            if status == posix.BAD_INDEX:
                raise SampleIndexError(
                    f"row {row} begins at item {positions[row]}; the store has {starts[-1]:,}"
                    if table is None
                    else f"span {positions[row]} is outside {table!r}, which has {quantity(int(starts[-1]), 'span')}"
                )
            self._recover(status, file, starts, positions)

    def _recover(self, status: int, file: int, starts: Ints, positions: Ints) -> None:
        """Open the file a kernel asked for, and the same one of every shard that rows begin in; or raise."""
        if status == posix.UNOPENED:
            found = np.searchsorted(starts, positions, side="right") - 1
            segments = np.unique(np.append(found, file // self._files_per_segment))
            for segment in segments[(segments >= 0) & (segments < len(self.shards))].tolist():
                self._files.open(segment * self._files_per_segment + file % self._files_per_segment)
        elif status == posix.BAD_SPANS:
            name = self._files.name(file)
            raise CorruptionError(f"{name} contradicts its table or itself; `tokenfeed verify` says where")
        elif status == posix.SMALL_OUTPUT:
            raise ArgumentError("the output is too small for the rows that are read into it")
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
        raise CorruptionError(f"the shards claim {total:,} items or spans together; the most is 2**62")
    return np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))).astype(np.int64)
