"""`BatchMaker`: lanes that are filled with documents, and batches of their rows."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.collate import run_collate
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.batch import Draw, HostBatch
from tokenfeed.text.streaming.documents import Documents, Encoded, TokenChunk, encode_ahead
from tokenfeed.text.streaming.lanes import NO_DOCUMENTS, LaneCursor, LaneState, Position, check_whole
from tokenfeed.text.streaming.packer import Packer, Packing, PackingCounts
from tokenfeed.text.streaming.rows import StreamBatch
from tokenfeed.text.streaming.sources import StreamSources
from tokenfeed.types import Array, Ints

__all__ = ["BatchMaker", "StreamOptions"]

# Calls of the tokenizer that are under way or done ahead, beyond one for each thread: enough that none waits while a
# row group is decoded.
_AHEAD = 2


@dataclass(frozen=True)
class StreamOptions:
    """How batches are made and delivered; which documents they hold is not decided here."""

    batch_size: int
    rank: int
    world_size: int
    lanes: int | None
    """Number of lanes that was asked for, if one was."""
    epochs: int | None
    """Number of epochs after which the stream ends; None without end."""
    threads: int
    prefetch: int
    collate: Callable[[HostBatch], Any] | None
    run: str | Path | None

    def __post_init__(self) -> None:
        check_whole(threads=self.threads, epochs=self.epochs, lanes=self.lanes)
        check_whole(0, prefetch=self.prefetch)
        lanes, world_size = self.lanes, self.world_size
        if lanes is not None and lanes % world_size:
            raise ArgumentError(
                f"{lanes} lanes cannot be shared by {world_size} ranks: it must be a multiple of them. Leave lanes out "
                "to resume on any number of ranks"
            )
        if lanes is not None and self.epochs is not None:
            raise ArgumentError(f"lanes is {lanes}, but a stream with epochs= has one lane, which every rank packs")

    @property
    def wanted_lanes(self) -> int | None:
        """Number of lanes that there must be; None where those of a checkpoint may stay."""
        return 1 if self.epochs is not None else self.lanes

    @property
    def num_lanes(self) -> int:
        """Number of lanes of a stream that begins."""
        return self.wanted_lanes or self.world_size

    @property
    def end(self) -> LaneCursor | None:
        """Where the only lane of a finite stream ends."""
        return None if self.epochs is None else LaneCursor(self.epochs, 0, 0, 0)

    def owned(self, num_rows: int, num_lanes: int) -> range:
        """Lanes that this rank packs once `num_rows` rows are delivered.

        Row num_rows + rank is its next, and every world_size-th from there. With `epochs`, every rank packs everything.
        """
        if self.epochs is not None:
            return range(num_lanes)
        return range((num_rows + self.rank) % self.world_size, num_lanes, self.world_size)


class BatchMaker:
    """Makes one batch after the other, from a position on. One thread at a time may use it."""

    def __init__(
        self, sources: StreamSources, packing: Packing, options: StreamOptions, position: Position, buffers: Buffers
    ) -> None:
        """Threads tokenise ahead of time; where nothing is prefetched, the caller's thread does."""
        threads = options.threads if options.prefetch else 0
        self._sources = sources
        self._packing = packing
        self._options = options
        self._position = position
        self._buffers = buffers
        self._pool = ThreadPoolExecutor(threads, "tokenfeed") if threads else None
        # One that only reads lets the one that packs keep up with many; beside two, it costs a tenth on two cores.
        self._reader = ThreadPoolExecutor(1, "tokenfeed-read") if threads > 2 else None
        self._end = options.end
        self._lock = threading.Lock()
        self.num_bytes = 0
        self.seconds = self.collate_seconds = self.encode_seconds = 0.0
        depth = max(1, (threads + _AHEAD) // len(position.lanes))

        def read(source: Documents, lane: int, cursor: LaneCursor) -> Iterator[TokenChunk]:
            chunks = source.read(lane, position.num_lanes, cursor, options.epochs)
            return encode_ahead(chunks, partial(self._encode, source), self._reader, self._pool, depth)

        self._lanes: dict[int, _Lane] = {}
        for number, state in position.lanes.items():
            source = sources.documents[number // position.num_lanes]
            chunks = read(source, number % position.num_lanes, state.cursor)
            self._lanes[number] = _Lane(source, packing, state, chunks, self._end)
        num_files = [0, *accumulate(each.num_files for each in sources.documents)]
        self._first_files = num_files[:-1]
        """Number of the first file of each source, in the list of all files."""

    def _encode(self, source: Documents, texts: list[Any]) -> Encoded:
        """Tokenise, in any thread, and note how long that took."""
        began = time.perf_counter()
        try:
            return source.encode(texts)
        finally:
            with self._lock:
                self.encode_seconds += time.perf_counter() - began

    def jobs(self) -> Iterator[tuple[()]]:
        """One job for every call of `make`: to the end of the stream, or without end."""
        while not self._position.has_reached(self._end):
            yield ()

    def make(self) -> list[StreamBatch]:
        """The next batch; none where the stream turns out to have ended."""
        began = time.perf_counter()
        all_sources, packing, options, now = self._sources, self._packing, self._options, self._position
        start = now.num_rows
        size = options.batch_size
        samples = rows_of(start, size, options.rank, options.world_size)
        sources = all_sources.draw(samples, now)
        tokens = self._take_memory(size)
        placed, num_filled = [], 0
        epochs = np.zeros(size + 1, np.int64)
        for number, lane in self._lanes.items():
            source, own = divmod(number, now.num_lanes)
            places = self._places(own, samples)
            if all_sources.is_mixed:
                places = places[sources[places] == source]
                if not places.size:
                    continue
            pieces, count = lane.fill(tokens, places, size)
            num_files = all_sources.documents[source].num_files
            np.maximum.at(epochs, pieces[:, 0], pieces[:, 3] // num_files)
            pieces[:, 3] = self._first_files[source] + pieces[:, 3] % num_files
            placed.append(pieces)
            num_filled += count
        stop = start + (size * options.world_size if self._end is None else num_filled)
        states = {number: lane.state() for number, lane in self._lanes.items()}
        position = self._position = replace(now, num_rows=stop, lanes=states)
        if stop == start:
            return []
        count = int(np.count_nonzero(samples < stop))
        samples, sources, epochs, tokens = samples[:count], sources[:count], epochs[:count], tokens[:count]
        pieces = np.concatenate(placed)
        pieces = pieces[pieces[:, 0] < size]
        make_rows = all_sources.documents[0].make_rows
        rows = make_rows(tokens, pieces, samples, crosses_documents=packing.crosses_documents)
        draw = Draw(samples, epochs, sources, samples, all_sources.names, lambda _: all_sources.save(position, packing))
        batch = StreamBatch(rows, 0, count, draw=draw, position=position)
        if options.collate is not None:
            collating = time.perf_counter()
            batch.data = run_collate(options.collate, batch)
            self.collate_seconds += time.perf_counter() - collating
        self.num_bytes += tokens.nbytes
        self.seconds += time.perf_counter() - began
        return [batch]

    def _take_memory(self, size: int) -> Array:
        """Room for the rows of a batch; and, where this rank packs rows of others too, for one of those."""
        num_rows = size if self._end is None else size + 1
        width, dtype = self._packing.length + 1, self._sources.documents[0].dtype
        return self._buffers.take(num_rows * width * dtype.itemsize).view(dtype).reshape(num_rows, width)

    def _places(self, lane: int, samples: Ints) -> Ints:
        """Rows of the batch that a lane fills, in order.

        In a finite stream its only lane fills the rows of all ranks. Those of other ranks go into row `size`, one over
        the other: rank 1 of 3 with a batch size of 2 fills rows 2 0 2 2 1 2.
        """
        if self._end is None:
            return np.flatnonzero(samples % self._position.num_lanes == lane)
        places = np.full(samples.size * self._options.world_size, samples.size)
        places[self._options.rank :: self._options.world_size] = np.arange(samples.size)
        return places

    def counts(self) -> PackingCounts:
        """The counts of all lanes that this rank packs."""
        return PackingCounts(*map(sum, zip(*(lane.packer.counts() for lane in self._lanes.values()), strict=True)))

    def close(self) -> None:
        for executor in (self._reader, self._pool):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)


class _Lane:
    """One stream of rows: documents that wait, and where the next ones come from."""

    def __init__(
        self,
        source: Documents,
        packing: Packing,
        state: LaneState,
        chunks: Iterator[TokenChunk],
        end: LaneCursor | None,
    ) -> None:
        """`end` is the cursor at which the chunks end; None where they never do."""
        self.packer = Packer(packing, source.dtype, source.bos)
        self._cursor = state.cursor
        self._packing = packing
        self._num_rows = state.num_rows
        self._chunks = chunks
        self._end = end
        self._source = source
        self._waiting = state.documents

    def fill(self, tokens: Array, rows: Ints, batch_size: int) -> tuple[Ints, int]:
        """Fill tokens[rows]. Returns the pieces placed and the number of rows filled."""
        if len(self._waiting):
            self.packer.add(*self._source.fetch(self._waiting), self._waiting)
            self._waiting = NO_DOCUMENTS
        advances = np.full(rows.size, self._packing.length)
        if self._packing.pops:
            advances += (self._num_rows + 1 + np.arange(rows.size)) % batch_size == 0
        pieces, num_filled = self.packer.fill(tokens, rows, advances, self._refill)
        self._num_rows += num_filled
        while self._end is not None and self.packer.is_spent and self._refill():
            pass  # so that the state after the last row says that it was the last
        return pieces, num_filled

    def _refill(self) -> bool:
        """Read the next documents. Returns False at the end."""
        chunk = next(self._chunks, None)
        if chunk is None:
            assert self._end is not None
            self._cursor = self._end
            return False
        self._cursor = chunk.after
        self.packer.add(*chunk.content, chunk.references)
        return True

    def state(self) -> LaneState:
        if len(self._waiting):  # not a row of it was asked for since it began
            return LaneState(self._cursor, self._waiting, self._num_rows)
        has_ended = self._cursor is self._end and self.packer.is_spent
        return LaneState(self._cursor, NO_DOCUMENTS if has_ended else self.packer.references(), self._num_rows)
