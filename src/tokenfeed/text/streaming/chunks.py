"""Documents on their way from files to a packer: read as text, encoded ahead of time, handed over in order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenfeed.errors import CorruptionError
from tokenfeed.text.sources.portions import Group
from tokenfeed.text.streaming.cursors import GroupCounts, LaneCursor, Stride
from tokenfeed.types import Array, Ints

__all__ = ["Encoded", "GroupedTexts", "TextChunk", "TokenChunk", "encode_ahead", "read_chunks", "read_documents"]


_CHUNKS_PER_CALL = 4


class GroupedTexts(GroupCounts, Protocol):
    """Texts in row groups, in files."""

    @property
    def paths(self) -> Sequence[Any]:
        """Names of the files, for messages."""

    def read(self, file: int, group: int, start: int = 0) -> Group | None:
        """A row group from row `start` on; None where there is no such group."""


class TextChunk(NamedTuple):
    """Documents as they were read."""

    texts: list[Any]
    references: Ints
    """(file, row group, row, tokens done) of each document."""
    after: LaneCursor
    """Where reading goes on after them."""


class Encoded(NamedTuple):
    """Documents as tokens: document i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: Array
    offsets: Ints


class TokenChunk(NamedTuple):
    """Documents as tokens, with what a `TextChunk` says of them."""

    encoded: Encoded
    references: Ints
    after: LaneCursor


def read_chunks(
    files: GroupedTexts, stride: Stride, lane: int, cursor: LaneCursor, size: int, epochs: int | None = None
) -> Iterator[TextChunk]:
    """The documents of a lane from a cursor on, at most `size` at a time: without end, or to the end of so many epochs.

    A chunk is rows [i·size, (i + 1)·size) of a row group, so it depends on the data alone. Null texts are skipped.
    """
    while True:
        while len(cursor.pending):
            references = cursor.pending[:size]
            cursor = replace(cursor, pending=cursor.pending[size:])
            yield TextChunk(read_documents(files, references), references, cursor)
        while cursor.rest:
            (file, group, start), *others = cursor.rest
            rows = files.read(file, group, start)
            if rows is None:
                raise CorruptionError(f"{files.paths[file]} has no row group {group} any more")
            done = replace(cursor, rest=tuple(others))
            for first_row, texts in rows.batches(size):
                stop = first_row + len(texts)
                cursor = done if stop == rows.num_rows else replace(done, rest=((file, group, stop), *others))
                kept = [row for row, text in enumerate(texts) if text is not None]
                references = np.zeros((len(kept), 4), np.int64)
                references[:, 0] = file
                references[:, 1] = group
                references[:, 2] = kept
                references[:, 2] += first_row
                yield TextChunk([text for text in texts if text is not None], references, cursor)
            cursor = done
        cursor = stride.take(cursor, lane)
        if epochs is not None and cursor.epoch >= epochs:
            return


def read_documents(files: GroupedTexts, references: Ints) -> list[str]:
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
    chunks: Iterator[TextChunk], encode: Callable[[list[Any]], Encoded], pool: Executor | None, depth: int
) -> Iterator[TokenChunk]:
    """The same chunks as tokens, in the same order; `depth` calls of `encode` are under way or done ahead of time.

    One call encodes several chunks: threads inside it end at different times, and then wait for each other. An error
    is raised in its turn, after the chunks before it.
    """
    if pool is None:
        for chunk in chunks:
            yield TokenChunk(encode(chunk.texts), chunk.references, chunk.after)
        return
    waiting: deque[Future[list[TokenChunk]]] = deque()
    while True:
        while len(waiting) < depth and not (waiting and _has_failed(waiting[-1])):
            submitted = _submit(pool, encode, chunks)
            if not submitted:
                break
            waiting += submitted
        if not waiting:
            return
        yield from waiting.popleft().result()


def _submit(
    pool: Executor, encode: Callable[[list[Any]], Encoded], chunks: Iterator[TextChunk]
) -> "list[Future[list[TokenChunk]]]":
    """A call that encodes the next chunks, if there are any; and, where reading failed, one that raises the error."""
    taken: list[TextChunk] = []
    failed: Future[list[TokenChunk]] | None = None
    try:
        taken.extend(islice(chunks, _CHUNKS_PER_CALL))  # keeps the chunks read before an error
    except Exception as error:  # noqa: BLE001 — whatever it is, the consumer must get it
        failed = Future()
        failed.set_exception(error)
    submitted = [pool.submit(_encode_together, encode, taken)] if taken else []
    return submitted if failed is None else [*submitted, failed]


def _encode_together(encode: Callable[[list[Any]], Encoded], chunks: list[TextChunk]) -> list[TokenChunk]:
    tokens, offsets = encode([text for chunk in chunks for text in chunk.texts])
    encoded, first = [], 0
    for chunk in chunks:
        bounds = offsets[first : first + len(chunk.texts) + 1]
        part = Encoded(tokens[bounds[0] : bounds[-1]], bounds - bounds[0])
        encoded.append(TokenChunk(part, chunk.references, chunk.after))
        first += len(chunk.texts)
    return encoded


def _has_failed(future: "Future[list[TokenChunk]]") -> bool:
    return future.done() and future.exception() is not None
