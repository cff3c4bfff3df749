"""The work of a stream: lanes that are filled with documents, and batches of their rows."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.kernels.packing import CONCAT
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.steps import rows_of
from tokenfeed.store.batch import Draw, HostBatch
from tokenfeed.text.streaming.chunks import Encoded, encode_ahead
from tokenfeed.text.streaming.packer import Packer, Packing, PackingCounts
from tokenfeed.text.streaming.places import NO_DOCUMENTS
from tokenfeed.text.streaming.source import Source
from tokenfeed.text.streaming.state import LaneState, StreamState
from tokenfeed.types import Array, Ints

__all__ = ["Position", "StreamBatch", "Work"]

# Calls of the tokenizer that are under way or done ahead, beyond one for each thread: enough that none waits while a
# row group is decoded.
_AHEAD = 2


@dataclass(frozen=True)
class Position:
    """Where a feed is: rows delivered over all ranks, and the lanes that this rank owns."""

    num_rows: int
    num_lanes: int
    lanes: Mapping[int, LaneState]

    def to_json(self, source: Source, packing: Packing) -> dict[str, Any]:
        files = {file for lane in self.lanes.values() for file in lane.files()}
        plan = {**source.parts(), "packing": packing.name}
        return StreamState(self.num_rows, self.num_lanes, self.lanes, plan, source.contents(files)).to_json()


class StreamBatch(HostBatch):
    """A batch of a stream; its state is that of this rank's lanes after it."""

    position: Position


class Work:
    """Makes one batch after the other, from a position on. One thread at a time may use it."""

    def __init__(
        self,
        source: Source,
        packing: Packing,
        position: Position,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        threads: int,
        buffers: Buffers,
    ) -> None:
        """`threads` tokenise ahead of time; with 0, the caller's does."""
        self._source = source
        self._packing = packing
        self._num_rows = position.num_rows
        self._num_lanes = position.num_lanes
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._buffers = buffers
        self._pool = ThreadPoolExecutor(threads, "tokenfeed") if threads else None
        depth = max(1, (threads + _AHEAD) // len(position.lanes))
        self._encode = _TimedEncode(source.encode)
        self._lanes = {
            number: _Lane(source, packing, number, position.num_lanes, state, self._encode, self._pool, depth)
            for number, state in position.lanes.items()
        }
        self._made = 0
        self.num_bytes = 0
        self.seconds = 0.0

    def make(self) -> StreamBatch:
        began = time.perf_counter()
        source, packing = self._source, self._packing
        width = packing.seq_len + 1
        dtype = np.dtype(self._source.dtype)
        buffer = self._buffers.take(self._batch_size * width * dtype.itemsize)
        tokens = buffer.view(dtype).reshape(self._batch_size, width)
        samples = rows_of(self._num_rows, self._batch_size, self._rank, self._world_size)
        owners = samples % self._num_lanes
        epochs = np.empty_like(samples)
        segments = []
        for number, lane in self._lanes.items():
            rows = np.flatnonzero(owners == number)
            segments.append(lane.fill(tokens, rows, epochs, self._batch_size))
        self._num_rows += self._batch_size * self._world_size
        states = {number: lane.state() for number, lane in self._lanes.items()}
        position = Position(self._num_rows, self._num_lanes, states)
        self._made += self._batch_size
        self.num_bytes += tokens.nbytes
        self.seconds += time.perf_counter() - began
        crosses = packing.rule == CONCAT
        packed = source.rows(tokens, np.concatenate(segments), samples, crosses_documents=crosses)
        sources = np.zeros_like(samples)
        draw = Draw(samples, epochs, sources, samples, ("",), lambda _: position.to_json(source, packing))
        batch = StreamBatch(packed, 0, len(packed), draw=draw, num_delivered=position.num_rows)
        batch.position = position
        return batch

    @property
    def encode_seconds(self) -> float:
        return self._encode.seconds

    def counts(self) -> PackingCounts:
        each = [lane.packer.counts(0) for lane in self._lanes.values()]
        sums = {name: sum(getattr(one, name) for one in each) for name in ("lost", "repeated", "padded", "waiting")}
        return PackingCounts(rows=self._made, **sums)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class _TimedEncode:
    """The tokenizer, and how long its calls took. Threads may share it."""

    def __init__(self, encode: Callable[[list[Any]], Encoded]) -> None:
        self._encode = encode
        self._lock = threading.Lock()
        self.seconds = 0.0

    def __call__(self, texts: list[Any]) -> Encoded:
        began = time.perf_counter()
        try:
            return self._encode(texts)
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - began


class _Lane:
    """One stream of rows: documents that wait, and where the next ones come from."""

    def __init__(
        self,
        source: Source,
        packing: Packing,
        number: int,
        num_lanes: int,
        state: LaneState,
        encode: Callable[[list[Any]], Encoded],
        pool: ThreadPoolExecutor | None,
        depth: int,
    ) -> None:
        self.place = state.place
        self.packer = Packer(packing, source.dtype, source.bos)
        self._packing = packing
        self._num_rows = state.num_rows
        self._chunks = encode_ahead(source.read(number, num_lanes, state.place), encode, pool, depth)
        self._source = source
        self._waiting = state.documents

    def fill(self, tokens: Array, rows: Ints, epochs: Ints, batch_size: int) -> Ints:
        """Fill tokens[rows] and epochs[rows]; returns the pieces placed."""
        if len(self._waiting):
            self.packer.add(*self._source.fetch(self._waiting), self._waiting, self.place.epoch)
            self._waiting = NO_DOCUMENTS
        advances = np.full(rows.size, self._packing.seq_len)
        if self._packing.pops:
            advances += (self._num_rows + 1 + np.arange(rows.size)) % batch_size == 0
        self._num_rows += rows.size
        return self.packer.fill(tokens, rows, epochs, advances, self._refill)

    def _refill(self) -> None:
        chunk = next(self._chunks)
        self.place = chunk.behind
        self.packer.add(*chunk.encoded, chunk.references, self.place.epoch)

    def state(self) -> LaneState:
        return LaneState(self.place, self.packer.references(), self._num_rows)
