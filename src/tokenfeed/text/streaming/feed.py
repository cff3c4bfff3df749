"""`tokenfeed.stream`: text to batches with nothing prepared. Read, tokenise, pack, in the background, exactly."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

from tokenfeed.errors import ArgumentError, StateError, quantity, whole
from tokenfeed.loader.delivery import Delivery
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.launch import find_rank
from tokenfeed.loader.memory import Buffers
from tokenfeed.plan.dealing import StepRule
from tokenfeed.plan.mixing import check_named, weigh
from tokenfeed.plan.shares import Shares, Stage
from tokenfeed.runs.file import RunFile
from tokenfeed.storage.address import local_file
from tokenfeed.store.batch import HostBatch
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.sources.splitting import Val, tell_held_out
from tokenfeed.text.streaming.documents import Documents, FileDocuments
from tokenfeed.text.streaming.lanes import LaneState, Position, SavedStream, is_nanochats
from tokenfeed.text.streaming.making import BatchMaker, StreamOptions
from tokenfeed.text.streaming.packer import Packing, PackingCounts
from tokenfeed.text.streaming.rows import StreamBatch
from tokenfeed.text.streaming.sources import StreamSources
from tokenfeed.text.tokenizer.tokenizer import Tokenizer

__all__ = ["TextFeed", "stream"]

# How long a feed waits for the next file of a download that makes no progress.
_WAIT_SECONDS = 60.0


def stream(
    source: Any,
    tokenizer: Tokenizer | str | os.PathLike[str],
    *,
    batch_size: int,
    length: int,
    split: str = "train",
    val: Val = 0.001,
    packing: str = "best_fit",
    overflow: str = "split",
    sharding: str = "global",
    lanes: int | None = None,
    buffer_size: int = 1000,
    refill_size: int = 128,
    text_column: str = "text",
    stages: Sequence[Stage] | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    threads: int = 2,
    prefetch: int = 4,
    rank: int | None = None,
    world_size: int | None = None,
    collate: Callable[[HostBatch], Any] | None = None,
    run: str | Path | None = None,
) -> "TextFeed":
    """Endless batches of text: Parquet or JSONL files (a folder, a pattern, a list), tokenised and packed on the way.

    `source` may also be documents of this process: a `datasets.Dataset` or `IterableDataset`, a list of mappings, or a
    function that makes an iterator. What has no length is iterated again to resume, and on every rank.

    Several sources make a mixture: `{"web": ("web/*.parquet", 0.7), "code": ("code/", 0.3)}` has these shares of rows,
    exactly, and `batch.sources` says which source a row is from. `stages` change the weights on the way, as in `mix`;
    the sources are then given without weights. The last stage has no end.

    `split` is "train", "val" or "all". `val` says what is held out for validation: a share of the documents, chosen by
    a hash of their text, as `prepare` does; files, by name or pattern; "last" for the last file, as nanochat; or None.
    Files that are called val or test, or lie in such a folder, or are listed so in a `files.json`, are never train,
    and the log says which; () takes all files as data.

    `tokenizer` may be a path to load. `batch_size` is that of one rank; `length` is the inputs in a row.

    `packing` is "best_fit", where every row begins with BOS and holds whole documents as far as they fit; or "concat",
    one document after the other, where the last target of a row is the first input of the next ("concat_pop": every
    batch drops one token in between). `overflow` says what best fit does with a document that does not fit: "split"
    puts its rest, led by BOS, into a later row, so that nothing is lost and no document waits for more rows than there
    are documents before it; "crop" and "crop_oldest" throw the rest away, as nanochat does.

    A lane is one independent stream of rows: row i of the run comes from lane i mod `lanes` (by default, the world
    size). Lane l reads every lanes-th row group, starting with the l-th: counted over all files (`sharding="global"`)
    or within each file ("per_file"). `seed` puts row groups into a random order, a new one in every epoch; with None
    they come in the order of the files.

    `epochs` makes the stream finite: every document exactly once per epoch over all ranks, and equally many steps on
    every rank, of which the last may have short or empty batches; the last row is padded. So that ranks agree without
    talking to each other, such a stream has one lane, and every rank reads and tokenises everything but delivers only
    its own rows. It is for evaluation: W ranks tokenise W times as much.

    Best fit chooses among `buffer_size` documents, which arrive `refill_size` at a time. `threads` tokenise, and
    `prefetch` batches are made ahead: 0 for none, and no thread. Neither changes what is delivered. `collate` is called
    with every batch, in the background; its result is `batch.data`. `run` is a file in which rank 0 notes every start.
    """
    rank, world_size = find_rank(rank, world_size)
    size = whole("batch_size", batch_size, 1)
    options = StreamOptions(size, rank, world_size, lanes, epochs, threads, prefetch, collate, run)
    loaded = Tokenizer.of(tokenizer)

    def documents_of(files: Any) -> FileDocuments:
        found = TextFiles.find(files, text_column=text_column, split=split, val=val, wait_seconds=_WAIT_SECONDS)
        if rank == 0:
            tell_held_out(found.held_out)
        return FileDocuments(
            found,
            loaded,
            sharding=sharding,
            seed=seed,
            refill_size=refill_size,
            threads=threads if prefetch else 1,
        )

    how = Packing.choose(packing, overflow, length=length, buffer_size=buffer_size)
    if not isinstance(source, Mapping):
        if stages is not None:
            raise ArgumentError("stages change the weights of a mixture; give its sources by name: {'web': 'web/', …}")
        return TextFeed(documents_of(source), how, options)
    parts, weights = weigh(source, stages, "files")
    check_named(weights, parts)
    if weights[-1].samples is not None:
        raise ArgumentError("the last stage of a stream has no end; leave its samples out")
    if epochs is not None or how.pops:
        given = "packing='concat_pop'" if how.pops else f"epochs={epochs}"
        raise ArgumentError(f"{given} is for a stream of one source; stream each source by itself to see all of it")
    shares = Shares(weights, list(parts))
    return TextFeed(StreamSources({name: documents_of(part) for name, part in parts.items()}, shares), how, options)


class TextFeed(Delivery):
    """Batches of a stream. Iterating, state and stats are those of a `Loader`; the state belongs to this rank alone.

    A `for` loop over a finite stream that has ended begins again.
    """

    def __init__(self, source: Documents | StreamSources, packing: Packing, options: StreamOptions) -> None:
        super().__init__()
        if packing.pops and options.epochs is not None:
            raise ArgumentError(
                "packing='concat_pop' drops a token after every batch, so it does not go with epochs=; use 'concat'"
            )
        self.rank, self.world_size = options.rank, options.world_size
        self._sources = StreamSources.of(source)
        self._packing = packing
        self._options = options
        self._threads = options.threads
        self._prefetch = options.prefetch
        self._buffers = Buffers()
        self._maker: BatchMaker | None = None
        path = None if options.run is None else local_file(options.run)
        self._run = None if path is None or options.rank != 0 else RunFile(path)
        self._end = options.end
        self._sources.check(options.num_lanes)
        self._position = self._beginning()

    def _beginning(self) -> Position:
        return self._own(self._sources.begin(0, self._options.num_lanes))

    def _own(self, position: Position) -> Position:
        """A position with the lanes that this rank packs, and no others."""
        lanes = self._options.owned(position.num_rows, position.num_lanes)
        owned = list(self._sources.owned(position, lanes))
        missing = [lane for lane in owned if lane not in position.lanes]
        if missing:
            raise StateError(
                f"rank {self.rank} of {self.world_size} needs lanes {missing[:8]}, which this state does not hold: "
                "give load_state_dict the list of all ranks' states"
            )
        return replace(position, lanes={lane: position.lanes[lane] for lane in owned})

    def __iter__(self) -> Self:
        if self._position.has_reached(self._end):
            self.close()
            self._position = self._beginning()
        return self

    def __next__(self) -> StreamBatch:
        batch = super().__next__()
        assert isinstance(batch, StreamBatch)
        return batch

    def __len__(self) -> int:
        raise TypeError("a stream has no length: its number of rows is known only once all its text is packed")

    def _start(self) -> tuple[Iterator[HostBatch], Callable[[], object]]:
        options = self._options
        if self._run is not None:
            plan = self._sources.parts(self._position, self._packing)
            what = {"plan": plan, "length": self._packing.length}
            what |= {"epochs": options.epochs, "num_lanes": self._position.num_lanes, "files": self._sources.paths}
            what |= {"stages": self._sources.shares.to_json()} if self._sources.is_mixed else {}
            self._run.begin(what, self._position.num_rows, self.world_size, StepRule(options.batch_size))
        maker = self._maker = BatchMaker(self._sources, self._packing, options, self._position, self._buffers)
        if self._prefetch == 0:
            return (batch for _ in maker.jobs() for batch in maker.make()), maker.close
        feed: Feed[tuple[()], HostBatch] = Feed(
            maker.jobs(), lambda _: list[HostBatch](maker.make()), depth=self._prefetch, per_job=1, threads=1
        )

        def end() -> None:
            feed.close()
            maker.close()

        return feed, end

    @property
    def next_batch_size(self) -> int:
        return self._options.batch_size

    def _note(self, batch: HostBatch) -> None:
        assert isinstance(batch, StreamBatch)
        self._position = batch.position

    def _use_buffers(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def _work(self) -> dict[str, Any]:
        maker = self._maker
        return {
            "bytes": maker.num_bytes if maker else 0,
            "read_seconds": maker.seconds if maker else 0.0,
            "collate_seconds": maker.collate_seconds if maker else 0.0,
            "encode_seconds": maker.encode_seconds if maker else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint of this rank after the last batch delivered: about 16 bytes a waiting document, as JSON.

        A finite stream has the same state on every rank.
        """
        return self._sources.save(self._position, self._packing)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on after a checkpoint: this rank's own, on the same number of ranks; or the list of all ranks'.

        With the list, ranks may be fewer or more. Where their number divides that of the lanes, the rows of the run are
        the same as ever. Otherwise the remaining documents are dealt out again, each exactly once. nanochat's state
        `{"pq_idx", "rg_idx", "epoch"}` is taken too, and continues as nanochat does: its buffer is lost.
        """
        if isinstance(state, Mapping) and is_nanochats(state):
            if self._sources.is_mixed:
                raise StateError("nanochat's state is of one source, and this is a mixture; resume it as one source")
            num_lanes, source = self._options.num_lanes, self._sources.documents[0]
            lanes = {lane: LaneState(source.after_nanochat(state, lane, num_lanes)) for lane in range(num_lanes)}
            position = self._own(Position(0, num_lanes, lanes))
        else:
            position = self._resume(SavedStream.from_json(state))
        if self._end is not None and any(lane.cursor.reached > self._end.reached for lane in position.lanes.values()):
            raise StateError(
                f"the checkpoint lies beyond {self._options.epochs} epochs, where this stream ends; give more epochs"
            )
        self.close()
        self._position = position

    def _resume(self, saved: SavedStream) -> Position:
        position, options = self._sources.accept(saved, self._packing), self._options
        num_lanes = options.wanted_lanes or position.num_lanes
        if num_lanes == position.num_lanes and (num_lanes % self.world_size == 0 or options.epochs is not None):
            return self._own(position)
        if len(position.lanes) < position.num_lanes * len(self._sources):
            raise StateError(
                f"the state holds {len(position.lanes)} of {position.num_lanes * len(self._sources)} lanes; to go on "
                f"on {self.world_size} ranks, give load_state_dict the list of all ranks' states"
            )
        self._sources.check(options.num_lanes)
        return self._own(self._sources.deal(position, options.num_lanes))

    def amend(self, *_: Any, **__: Any) -> NoReturn:
        """Refused, with the way out: what a `Loader` can change, a stream cannot."""
        raise ArgumentError(
            "a stream cannot be amended while it runs. To change its weights, make it again with the ones it has as "
            "the first of stages=[Stage({…}, samples=…), Stage({…})], and load its state; skips, growth and lengths "
            "can be changed in a run over a store: `tokenfeed prepare`, and Loader.amend"
        )

    def counts(self) -> PackingCounts:
        """Tokens by their fate, since this began to work or loaded a state."""
        return self._maker.counts() if self._maker else PackingCounts()

    def __repr__(self) -> str:
        return (
            f"TextFeed({self._sources}, {self._packing.length} tokens a row, batch_size={self._options.batch_size}, "
            f"rank {self.rank} of {self.world_size}, {quantity(self._position.num_lanes, 'lane')})"
        )
