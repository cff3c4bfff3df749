"""Documents on their way from files to a packer: read as text, encoded ahead of time, handed over in order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError
from tokenfeed.text.sources.files import TextFiles
from tokenfeed.text.streaming.places import Place, Stride
from tokenfeed.types import Array, Ints

__all__ = ["Chunk", "Encoded", "Texts", "encode_ahead", "read_chunks", "read_documents"]


_CHUNKS_PER_CALL = 4


class Texts(NamedTuple):
    """Documents as they were read."""

    texts: list[Any]
    references: Ints
    """(file, row group, row, tokens done) of each."""
    behind: Place
    """Where reading goes on after them."""


class Encoded(NamedTuple):
    """Documents as tokens: document i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: Array
    offsets: Ints


class Chunk(NamedTuple):
    encoded: Encoded
    references: Ints
    behind: Place


def read_chunks(files: TextFiles, stride: Stride, lane: int, place: Place, size: int) -> Iterator[Texts]:
    """The documents of a lane from a place on, without end, at most `size` at a time. Nulls are passed over.

    A chunk is rows [i·size, (i + 1)·size) of a row group, so it depends on the data alone.
    """
    while True:
        while len(place.pending):
            references = place.pending[:size]
            place = replace(place, pending=place.pending[size:])
            yield Texts(read_documents(files, references), references, place)
        while place.rest:
            (file, group, start), *others = place.rest
            rows = files.read(file, group, start)
            if rows is None:
                raise CorruptionError(f"{files.paths[file]} has no row group {group} any more")
            done = replace(place, rest=tuple(others))
            for first_row, texts in rows.batches(size):
                stop = first_row + len(texts)
                place = done if stop == rows.num_rows else replace(done, rest=((file, group, stop), *others))
                kept = [row for row, text in enumerate(texts) if text is not None]
                references = np.zeros((len(kept), 4), np.int64)
                references[:, 0] = file
                references[:, 1] = group
                references[:, 2] = kept
                references[:, 2] += first_row
                yield Texts([text for text in texts if text is not None], references, place)
            place = done
        place = stride.take(place, lane)


def read_documents(files: TextFiles, references: Ints) -> list[str]:
    """The texts of documents, in any order. Each row group is read once, as far as it is needed."""
    texts: list[str | None] = [None] * len(references)
    keys, groups = np.unique(references[:, :2], axis=0, return_inverse=True)
    for number, (file, group) in enumerate(keys.tolist()):
        entries = np.flatnonzero(groups.reshape(-1) == number)
        wanted: dict[int, list[int]] = {}
        for entry in entries.tolist():
            wanted.setdefault(int(references[entry, 2]), []).append(entry)
        first, last = min(wanted), max(wanted)
        rows = files.read(file, group, first) if file < len(files) else None
        for start, batch in rows.batches(1024) if rows is not None and last < rows.num_rows else ():
            for row, text in enumerate(batch, start):
                for entry in wanted.get(row, ()):
                    texts[entry] = text
            if start + len(batch) > last:
                break
    found = [text for text in texts if text is not None]
    if len(found) < len(texts):
        file, group, row, _ = references[texts.index(None)].tolist()
        raise CorruptionError(
            f"there is no document in file {file}, row group {group}, row {row}, where the state says one was read; "
            "it was made from other files"
        )
    return found


def encode_ahead(
    chunks: Iterator[Texts], encode: Callable[[list[Any]], Encoded], pool: Executor | None, depth: int
) -> Iterator[Chunk]:
    """The same chunks as tokens, in the same order; `depth` calls of `encode` are under way or done ahead of time.

    Several chunks are encoded by one call: threads inside it end at different times, and then wait for each other. An
    error comes in its turn, behind the chunks before it.
    """
    if pool is None:
        for chunk in chunks:
            yield Chunk(encode(chunk.texts), chunk.references, chunk.behind)
    else:
        waiting: deque[Future[list[Chunk]]] = deque()
        while True:
            while len(waiting) < depth and not (waiting and _has_failed(waiting[-1])):
                waiting += _submit(pool, encode, chunks)
            yield from waiting.popleft().result()


def _submit(
    pool: Executor, encode: Callable[[list[Any]], Encoded], chunks: Iterator[Texts]
) -> "Iterator[Future[list[Chunk]]]":
    """What encodes the next chunks; and, where reading them failed, what raises that error."""
    taken: list[Texts] = []
    failed: Future[list[Chunk]] | None = None
    try:
        taken.extend(islice(chunks, _CHUNKS_PER_CALL))  # what was read before an error stays in it
    except Exception as error:  # noqa: BLE001 — it is the consumer's, whatever it is
        failed = Future()
        failed.set_exception(error)
    if taken:
        yield pool.submit(_encode_together, encode, taken)
    if failed is not None:
        yield failed


def _encode_together(encode: Callable[[list[Any]], Encoded], chunks: list[Texts]) -> list[Chunk]:
    tokens, offsets = encode([text for chunk in chunks for text in chunk.texts])
    encoded, first = [], 0
    for chunk in chunks:
        bounds = offsets[first : first + len(chunk.texts) + 1]
        part = Encoded(tokens[bounds[0] : bounds[-1]], bounds - bounds[0])
        encoded.append(Chunk(part, chunk.references, chunk.behind))
        first += len(chunk.texts)
    return encoded


def _has_failed(future: "Future[list[Chunk]]") -> bool:
    return future.done() and future.exception() is not None
