"""`tokenfeed.stream`: text to batches with nothing prepared. Read, tokenise, pack, in the background, exactly."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.loader.delivery import Delivery
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.launch import find_rank
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.state import check_parts
from tokenfeed.store.batch import HostBatch
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.packer import Packing, PackingCounts
from tokenfeed.text.streaming.places import NO_DOCUMENTS, Place
from tokenfeed.text.streaming.rowgroups import RowGroups
from tokenfeed.text.streaming.source import Source
from tokenfeed.text.streaming.state import LaneState, StreamState
from tokenfeed.text.streaming.work import Position, StreamBatch, Work
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["TextFeed", "stream"]

# How long a feed waits for the next file of a download that makes no progress.
_WAIT_SECONDS = 60.0


def stream(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    tokenizer: Tokenizer | str | os.PathLike[str],
    *,
    batch_size: int,
    seq_len: int,
    split: str | None = "train",
    packing: str = "best_fit",
    overflow: str = "split",
    sharding: str = "global",
    lanes: int | None = None,
    buffer_size: int = 1000,
    refill_size: int = 128,
    text_column: str = "text",
    shuffle_seed: int | None = None,
    threads: int = 2,
    prefetch: int = 4,
    rank: int | None = None,
    world_size: int | None = None,
) -> "TextFeed":
    """Endless batches of text: Parquet or JSONL files (a folder, a pattern, a list), tokenised and packed on the way.

    `split` is "train" (all files but the last), "val" (the last) or None (all). `tokenizer` may be a path to load.

    `packing` is "best_fit", where every row begins with BOS and holds whole documents as far as they fit; or "concat",
    one document behind the other, the last target of a row being the first input of the next ("concat_pop": every
    batch drops one token in between). `overflow` is what best fit does with a document that does not fit: "split" puts
    its rest, led by BOS, into a later row, so that nothing is lost and none waits for more rows than there are others
    before it; "crop" throws the rest away, as nanochat does; so does "crop_oldest".

    `lanes` (the world size, unless given) are independent streams of rows: row i of the run comes from lane i mod
    lanes. Lane l reads every lanes-th row group, starting with the l-th: counted over all files (`sharding="global"`),
    or in each file anew ("per_file"). `shuffle_seed` puts row groups into a random order, anew in every epoch.

    Best fit chooses among `buffer_size` documents, which arrive `refill_size` at a time. `threads` tokenise, and
    `prefetch` batches are made ahead: 0 for none, and no thread. Neither changes what is delivered.
    """
    rank, world_size = find_rank(rank, world_size)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    files = TextFiles.find(source, text_column=text_column, split=split, wait_seconds=_WAIT_SECONDS)
    groups = RowGroups(
        files,
        tokenizer,
        sharding=sharding,
        shuffle_seed=shuffle_seed,
        refill_size=refill_size,
        threads=threads if prefetch else 1,
    )
    how = Packing.choose(packing, overflow, seq_len=seq_len, buffer_size=buffer_size)
    return TextFeed(
        groups,
        how,
        batch_size=batch_size,
        lanes=lanes,
        threads=threads,
        prefetch=prefetch,
        rank=rank,
        world_size=world_size,
    )


class TextFeed(Delivery):
    """Batches of a stream. Iterating, state and stats are those of a `Loader`; the state belongs to this rank alone."""

    def __init__(
        self,
        source: Source,
        packing: Packing,
        *,
        batch_size: int,
        lanes: int | None,
        threads: int,
        prefetch: int,
        rank: int,
        world_size: int,
    ) -> None:
        super().__init__()
        for name, value, least in (("batch_size", batch_size, 1), ("threads", threads, 1), ("prefetch", prefetch, 0)):
            if not isinstance(value, int) or value < least:
                raise ArgumentError(f"{name} is {value!r}; it must be a whole number, at least {least}")
        if lanes is not None and (lanes < 1 or lanes % world_size):
            raise ArgumentError(f"{lanes} lanes cannot be shared by {world_size} ranks: it must be a multiple of them")
        self.rank, self.world_size, self.batch_size = rank, world_size, batch_size
        self._source = source
        self._packing = packing
        self._wanted_lanes = lanes
        self._threads = threads
        self._prefetch = prefetch
        self._buffers = Buffers()
        self._work: Work | None = None
        num_lanes = lanes or world_size
        source.check(num_lanes)
        self._position = self._begin_at(0, num_lanes, lambda lane: source.start(lane, num_lanes))

    def _owned(self, num_rows: int, num_lanes: int) -> range:
        """The lanes of this rank: row num_rows + rank is its next, and every world_size-th from there."""
        return range((num_rows + self.rank) % self.world_size, num_lanes, self.world_size)

    def _begin_at(self, num_rows: int, num_lanes: int, place: Callable[[int], Place]) -> Position:
        """A position where no document waits yet."""
        owned = self._owned(num_rows, num_lanes)
        return Position(num_rows, num_lanes, {lane: LaneState(place(lane), NO_DOCUMENTS, 0) for lane in owned})

    def _start(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        work = self._work = Work(
            self._source,
            self._packing,
            self._position,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            threads=self._threads if self._prefetch else 0,
            buffers=self._buffers,
        )
        if self._prefetch == 0:
            return (work.make() for _ in repeat(())), work.close
        feed: Feed[tuple[()], HostBatch] = Feed(
            repeat(()), lambda _: [work.make()], depth=self._prefetch, per_job=1, threads=1
        )

        def end() -> None:
            feed.close()
            work.close()

        return feed, end

    @property
    def num_steps(self) -> int | None:
        return None

    @property
    def next_batch_size(self) -> int:
        return self.batch_size

    def _note(self, batch: HostBatch) -> None:
        assert isinstance(batch, StreamBatch)
        self._position = batch.position

    def _use_buffers(self, buffers: Buffers) -> None:
        self._buffers = buffers

    @property
    def _work_done(self) -> tuple[int, float]:
        return (self._work.num_bytes, self._work.seconds) if self._work else (0, 0.0)

    @property
    def _encode_seconds(self) -> float:
        return self._work.encode_seconds if self._work else 0.0

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint of this rank after the last batch delivered: about 16 bytes a buffered document, as JSON."""
        return self._position.to_json(self._source, self._packing)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on behind a checkpoint: this rank's own, on the same number of ranks; or the list of all ranks'.

        With the list, ranks may be fewer or more. Where their number divides that of the lanes, the rows of the run are
        the same as ever. Otherwise the remaining documents are dealt out anew, each exactly once. nanochat's state
        `{"pq_idx", "rg_idx", "epoch"}` is taken too, and continues as nanochat does: what it had buffered is lost.
        """
        if isinstance(state, Mapping) and "pq_idx" in state:
            num_lanes = self._wanted_lanes or self.world_size
            position = self._begin_at(0, num_lanes, lambda lane: self._source.after_nanochat(state, lane, num_lanes))
        else:
            position = self._resume(StreamState.from_json(state))
        self.close()
        self._position = position

    def _resume(self, state: StreamState) -> Position:
        parts = dict(state.plan)
        check_parts({"packing": self._packing.name}, {"packing": parts.pop("packing", None)})
        self._source.accept(parts, state.contents)
        num_lanes = self._wanted_lanes or state.num_lanes
        if num_lanes == state.num_lanes and num_lanes % self.world_size == 0:
            owned = self._owned(state.num_rows, num_lanes)
            missing = [lane for lane in owned if lane not in state.lanes]
            if missing:
                raise StateError(
                    f"rank {self.rank} of {self.world_size} needs lanes {missing[:8]}, which this state does not hold: "
                    "give load_state_dict the list of all ranks' states"
                )
            return Position(state.num_rows, num_lanes, {lane: state.lanes[lane] for lane in owned})
        if len(state.lanes) < state.num_lanes:
            raise StateError(
                f"the state holds {len(state.lanes)} of {state.num_lanes} lanes; to go on on {self.world_size} ranks, "
                "give load_state_dict the list of all ranks' states"
            )
        num_lanes = self._wanted_lanes or self.world_size
        self._source.check(num_lanes)
        places = self._source.deal(state.lanes, num_lanes)
        return self._begin_at(state.num_rows, num_lanes, places.__getitem__)

    def counts(self) -> PackingCounts:
        """What became of the tokens since this began to work, or was sent elsewhere."""
        return self._work.counts() if self._work else PackingCounts()

    def __repr__(self) -> str:
        return (
            f"TextFeed({self._source}, {self._packing.seq_len} tokens a row, batch_size={self.batch_size}, "
            f"rank {self.rank} of {self.world_size}, {self._position.num_lanes} lanes)"
        )
