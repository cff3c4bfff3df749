"""The documents of a stream: which lane reads which, as text and as tokens, and what a state says about them."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from tokenfeed.errors import (
    ArgumentError,
    CorruptionError,
    FormatError,
    NotFoundError,
    PlanMismatchError,
    StateError,
    quantity,
)
from tokenfeed.plan.state import check_parts
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.lanes import GroupedTexts, LaneCursor, LaneState, Restart, Stride, check_whole, deal
from tokenfeed.text.streaming.rows import StreamRows
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints

__all__ = ["Documents", "Encoded", "FileDocuments", "TokenChunk", "encode_ahead"]

_CHUNKS_PER_CALL = 4
_SIZE_PER_CALL = 2 << 20  # characters, or bytes, after which no further chunk is encoded together

Encoded = tuple[Array, Ints]
"""Documents as tokens: document i is tokens[offsets[i]:offsets[i + 1]]."""
TextChunk: TypeAlias = "Chunk[list[Any]]"
TokenChunk: TypeAlias = "Chunk[Encoded]"
Content = TypeVar("Content")


class Chunk(NamedTuple, Generic[Content]):
    """Documents on their way, as a list of texts or as tokens."""

    content: Content
    references: Ints
    """(file, row group, row, tokens done) of each document; files count on from epoch to epoch."""
    after: LaneCursor
    """Where reading goes on after them."""


class Documents(ABC):
    """Documents in row groups, for any number of lanes."""

    def __init__(
        self,
        texts: GroupedTexts,
        tokenizer: Tokenizer,
        *,
        dtype: "np.dtype[Any]",
        restart: Restart,
        seed: int | None = None,
        refill_size: int = 1,
    ) -> None:
        """`dtype` is the type of tokens while they are packed."""
        self.bos = tokenizer.bos_id
        self.dtype = dtype
        self._texts = texts
        self._tokenizer = tokenizer
        self._restart = restart
        self._seed = seed
        self._refill_size = refill_size

    @property
    def num_files(self) -> int:
        return len(self._texts)

    @property
    def paths(self) -> list[str]:
        return list(self._texts.paths)

    def stride(self, num_lanes: int) -> Stride:
        return Stride(self._texts, num_lanes, self._restart, self._seed)

    def read(self, lane: int, num_lanes: int, cursor: LaneCursor, epochs: int | None = None) -> Iterator[TextChunk]:
        """The documents of a lane from a cursor on: without end, or to the end of so many epochs.

        A chunk is rows [i·size, (i + 1)·size) of a row group, so it depends on the data alone. Null texts are skipped.
        """
        stride, size = self.stride(num_lanes), self._refill_size
        is_start = cursor.reached[1:] == (0, 0) and not cursor.rest and not len(cursor.pending)
        empty_epoch = cursor.epoch + (not is_start)  # no document of it has been found, from its beginning on
        while True:
            while len(cursor.pending):
                references = cursor.pending[:size]
                cursor = replace(cursor, pending=cursor.pending[size:])
                yield Chunk(self._read_again(references), references, cursor)
            while cursor.rest:
                (file, group, start), *others = cursor.rest
                rows = self._texts.read(file % self.num_files, group, start)
                if rows is None:
                    raise CorruptionError(f"{self._path(file)} has no row group {group} any more")
                done = replace(cursor, rest=tuple(others))
                for first_row, texts in rows.batches(size):
                    stop = first_row + len(texts)
                    cursor = done if stop == rows.num_rows else replace(done, rest=((file, group, stop), *others))
                    kept = [row for row, text in enumerate(texts, first_row) if text is not None]
                    references = np.zeros((len(kept), 4), np.int64)
                    references[:, :2] = file, group
                    references[:, 2] = kept
                    empty_epoch = cursor.epoch + 1 if kept else empty_epoch
                    yield Chunk([text for text in texts if text is not None], references, cursor)
                cursor = done
            cursor = stride.take(cursor, lane)
            if cursor.epoch > empty_epoch:
                raise self._nothing(f"lane {lane} of {num_lanes}" if num_lanes > 1 else "the stream")
            if epochs is not None and cursor.epoch >= epochs:
                return

    def _path(self, file: int) -> str:
        return self._texts.paths[file % self.num_files]

    def deal(self, lanes: Mapping[int, LaneState], num_lanes: int) -> list[LaneCursor]:
        """Deal the remaining documents of all lanes out to another number of lanes: every document once."""
        return deal(lanes, self.stride(len(lanes)), self.stride(num_lanes))

    def fetch(self, references: Ints) -> Encoded:
        """Documents that were read before, as tokens."""
        tokens, offsets = self.encode(self._read_again(references))
        short = np.flatnonzero(np.diff(offsets) < references[:, 3] + (references[:, 3] > 0))
        if short.size:
            file, group, row, done = references[short[0]].tolist()
            raise CorruptionError(
                f"{self._path(file)}, row group {group}, row {row}: the state says that {done} tokens of this document "
                "were delivered, but it has no more than that; the state was made from another text"
            )
        return tokens, offsets

    def _read_again(self, references: Ints) -> list[Any]:
        """The texts of documents, in any order. Each row group is read once, as far as it is needed."""
        places = [(file % self.num_files, group, row) for file, group, row, _ in references.tolist()]
        found: dict[tuple[int, int, int], Any] = {}
        for (file, group), same in groupby(sorted(set(places)), key=itemgetter(0, 1)):
            wanted = {row for _, _, row in same}
            rows = self._texts.read(file, group, min(wanted))
            for start, batch in rows.batches(1024) if rows is not None and max(wanted) < rows.num_rows else ():
                found |= {(file, group, row): text for row, text in enumerate(batch, start) if row in wanted}
                if start + len(batch) > max(wanted):
                    break
        missing = [place for place in places if found.get(place) is None]
        if missing:
            file, group, row = missing[0]
            raise CorruptionError(
                f"there is no document in {self._path(file)}, row group {group}, row {row}, where the state says one "
                "was read; it was made from other files"
            )
        return [found[place] for place in places]

    def make_rows(self, packed: Array, pieces: Ints, samples: Ints, *, crosses_documents: bool) -> StreamRows:
        """The rows to deliver, made from packed tokens."""
        return StreamRows(packed, pieces, samples, crosses_documents=crosses_documents)

    def check(self, num_lanes: int) -> None:
        """Raise where a lane would have nothing to read."""
        self.stride(num_lanes).check()

    @abstractmethod
    def encode(self, texts: list[Any]) -> Encoded:
        """Documents as tokens, each led by BOS."""

    def _nothing(self, who: str) -> Exception:
        """The error where a lane, or the whole stream, passes an epoch without a document."""
        return FormatError(f"{who} found no document in a whole epoch")

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Everything that a state depends on, in short."""

    def contents(self, files: Iterable[int]) -> dict[str, str]:
        """Checksums of files that a state refers to."""
        return {}

    def accept(self, plan: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        """Check that a state was made from these documents."""
        check_parts(self.parts(), plan)

    def after_nanochat(self, state: Mapping[str, Any], lane: int, num_lanes: int) -> LaneCursor:
        """Where nanochat goes on with a state of its own."""
        raise ArgumentError("nanochat keeps no state of its conversations; there is nothing to go on from")


class FileDocuments(Documents):
    """The documents of a stream that come from files."""

    def __init__(
        self,
        files: TextFiles,
        tokenizer: Tokenizer,
        *,
        sharding: str = "global",
        seed: int | None = None,
        refill_size: int = 128,
        threads: int = 1,
        dtype: "np.dtype[Any] | None" = None,
    ) -> None:
        """`threads` is the number of threads per tokenizer call, where the engine has threads of its own."""
        if sharding not in ("global", "per_file"):
            raise ArgumentError(f"sharding is {sharding!r}; it must be 'global' or 'per_file'")
        if sharding == "per_file" and seed is not None:
            raise ArgumentError("seed permutes row groups over all files; leave it out, or choose sharding='global'")
        check_whole(refill_size=refill_size)
        restart: Restart = "epoch" if sharding == "global" else "part"
        dtype = tokenizer.dtype if dtype is None else dtype
        super().__init__(files, tokenizer, dtype=dtype, restart=restart, seed=seed, refill_size=refill_size)
        self._files = self._all_files = files
        self._sharding = sharding
        self._threads = threads if tokenizer.is_parallel else 1

    def encode(self, texts: list[str | bytes]) -> Encoded:
        return self._tokenizer.encode_read(texts, threads=self._threads, prepend=self.bos)

    def after_nanochat(self, state: Mapping[str, Any], lane: int, num_lanes: int) -> LaneCursor:
        """Where nanochat goes on: after the row group that its state names. Its buffer is lost, as it is there."""
        file, group, epoch = (state.get(name, 1) for name in ("pq_idx", "rg_idx", "epoch"))
        stops = {"pq_idx": len(self._files), "rg_idx": 1 << 62, "epoch": 1 << 62}
        for (name, stop), number in zip(stops.items(), (file, group, epoch), strict=True):
            if type(number) is not int or not 0 <= number < stop:
                raise StateError(f"{name} of nanochat's state is {str(number)[:80]}; there is no such place")
        return LaneCursor(max(0, epoch - 1), file, (group // num_lanes + 1) * num_lanes, lane)

    def parts(self) -> dict[str, Any]:
        return self._parts(self._files)

    def _parts(self, files: TextFiles) -> dict[str, Any]:
        names = json.dumps(files.names).encode()
        return {
            "files": [len(files), files.names[0], files.names[-1], hashlib.blake2b(names, digest_size=8).hexdigest()],
            "column": files.text_column,
            "split": f"{files.split} (val={files.val_fraction:g})" if files.val_fraction else files.split,
            "tokenizer": self._tokenizer.digest,
            "bos": self.bos,
            "sharding": self._sharding,
            "seed": self._seed,
        }

    def contents(self, files: Iterable[int]) -> dict[str, str]:
        """Checksums of files. Each takes one small read, once."""
        return {str(file): self._files.digest(file) for file in sorted(files)}

    def accept(self, plan: Mapping[str, Any], contents: Mapping[str, str]) -> None:
        """Check that a state was made from these files. Files added after the checkpoint are ignored from here on."""
        files = self._all_files
        match plan.get("files"):
            case [int(count), *_] if 0 < count < len(files):
                files = files.first(count)
        check_parts(self._parts(files), plan)
        for file, theirs in contents.items():
            if not file.isdecimal() or len(file) > 18 or int(file) >= len(files):
                raise StateError(f"the state refers to file {file[:80]!r}; there are {len(files):,}")
            ours = files.digest(int(file))
            if ours != theirs:
                raise PlanMismatchError(
                    f"{files.paths[int(file)]} is not the file that the checkpoint was made from: its checksum is "
                    f"{ours}, not {theirs}"
                )
        self._files = self._texts = files

    def _nothing(self, who: str) -> Exception:
        files = self._files
        where = files.paths[0] + (f" and {quantity(len(files) - 1, 'more file')}" if len(files) > 1 else "")
        if files.split == "val" and files.val_fraction:
            return NotFoundError(
                f"{who} found nothing that is held out for split 'val' in {where}: too few documents for a share of "
                f"{files.val_fraction}. Hold out more of them (val=0.05), the last file (val='last') or files by name"
            )
        return FormatError(
            f"{who} found no document in a whole epoch of {where}: every text that it read is null. Leave out such "
            "files, or use fewer lanes or ranks, so that each has documents"
        )

    def __repr__(self) -> str:
        return repr(self._files)


def encode_ahead(
    chunks: Iterator[TextChunk],
    encode: Callable[[list[Any]], Encoded],
    reader: Executor | None,
    pool: Executor | None,
    depth: int,
) -> Iterator[TokenChunk]:
    """The same chunks as tokens, in the same order; `depth` calls of `encode` are under way or done ahead of time.

    The one thread of `reader` reads, or the caller's where there is none, and those of `pool` encode. One call encodes
    several chunks: threads inside it end at different times, and then wait for each other. An error is raised in its
    turn, after the chunks before it.
    """
    if pool is None:
        for chunk in chunks:
            yield Chunk(encode(chunk.content), chunk.references, chunk.after)
        return

    def take() -> tuple[Future[list[TokenChunk]], Exception | None]:
        taken: list[TextChunk] = []
        size, ending = 0, None
        try:
            while len(taken) < _CHUNKS_PER_CALL and size < _SIZE_PER_CALL:
                taken.append(next(chunks))
                size += sum(map(len, taken[-1].content))
        except Exception as error:  # noqa: BLE001 — whatever it is, the consumer must get it; StopIteration at the end
            ending = error
        return pool.submit(_encode_together, encode, taken), ending

    def begin() -> Callable[[], tuple[Future[list[TokenChunk]], Exception | None]]:
        if reader is not None:
            return reader.submit(take).result
        taken = take()
        return lambda: taken

    waiting = deque(begin() for _ in range(depth))
    while True:
        encoding, ending = waiting.popleft()()
        waiting.append(begin())
        yield from encoding.result()
        if isinstance(ending, StopIteration):
            return
        if ending is not None:
            raise ending


def _encode_together(encode: Callable[[list[Any]], Encoded], chunks: list[TextChunk]) -> list[TokenChunk]:
    if not chunks:
        return []
    tokens, offsets = encode([text for chunk in chunks for text in chunk.content])
    encoded, first = [], 0
    for chunk in chunks:
        bounds = offsets[first : first + len(chunk.content) + 1]
        part = tokens[bounds[0] : bounds[-1]], bounds - bounds[0]
        encoded.append(Chunk(part, chunk.references, chunk.after))
        first += len(chunk.content)
    return encoded
