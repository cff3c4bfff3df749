"""The bytes of one sample on disk: of its columns, and of the starts, anchors, offsets and payloads of its spans.

tokens.npy              header │ … 2 bytes for each item …
documents.starts.npy    header │ … 8 bytes for each span: its first item …
documents.anchors.npy   header │ … 8 bytes for every 4,096 items: the span that covers the first of them …
documents.offsets.npy   header │ … 8 bytes for each payload: where it begins …
documents.payload.bin   … the payloads, one behind the other …
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import MissingError, ReadError, describe_errno
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.store.shards import Shard
from tokenfeed.store.store import Store
from tokenfeed.ui.overview import reader_of
from tokenfeed.ui.query import Query
from tokenfeed.ui.samples import choose_sample
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, without_paths

__all__ = ["show_bytes"]

_MOST_CELLS = 16
_MOST_BYTES = 48
"""That are shown of one cell."""
_WORD = 8


def show_bytes(subject: Subject, query: Query) -> Json:
    """Some items of a sample, from the `item`-th on, and their spans, as the files hold them.

    Each file is a list of cells; cells of several files that belong together have a `span` or an `item` in common,
    both numbers in the row of the sample or in the table. Of local stores alone.
    """
    store = subject.store
    pieces = choose_sample(store, query)
    items = pieces.items
    if items.size == 0:
        return {"shard": None, "files": []}
    place = min(query.whole("item", 0), items.size - 1)
    reader = reader_of(store)
    number = int(np.searchsorted(reader.starts, items[place], side="right")) - 1
    shard, shard_start = store.shards[number], int(reader.starts[number])
    if shard.is_remote:
        raise MissingError("the bytes of a store that lies elsewhere are not shown; its samples are")
    # Items of this shard that follow one another, so that they lie side by side in the files.
    same = items[place : place + _MOST_CELLS]
    run = int(np.argmax(np.append(np.diff(same) != 1, True))) + 1
    first = int(items[place]) - shard_start
    count = min(run, shard.num_items - first)
    files = [_column(store, shard, name, first, count, place) for name in store.columns]
    for table in store.spans:
        if shard.num_spans(table):
            span_start = int(reader.span_starts(table)[number])
            rows = _Rows(range(first, first + count), place, shard_start, span_start)
            files += _table_files(store, shard, table, rows)
    return {"shard": without_paths(shard.name), "first": first, "count": count, "place": place, "files": files}


class _Rows(NamedTuple):
    """What is shown, in the numbers of the shard; and where its numbers begin in those of the sample and the store."""

    items: range
    place: int
    shard_start: int
    span_start: int


def _column(store: Store, shard: Shard, name: str, first: int, count: int, place: int) -> Json:
    part, column = shard.column_part(name), store.columns[name]
    width = column.item_bytes
    cells = []
    for number in range(count):
        start = part.byte_start + (first + number) * width
        data = _read(part, start, min(width, _MOST_BYTES))
        is_scalar = not column.shape and column.dtype.kind in "biuf"
        value = str(np.frombuffer(data, column.dtype)[0]) if is_scalar else ""
        cells.append(_cell(start, width, data, value, item=place + number))
    return _file(part, name, f"one {column} for each item", cells)


def _table_files(store: Store, shard: Shard, table: str, rows: _Rows) -> list[Json]:
    """The files of a span table, if it has files: of other systems, boundaries are in memory."""
    parts = shard.span_parts(table)
    if not all(isinstance(part, Part) for part in parts):
        return []
    starts, anchors, offsets, payload = (part for part in parts if isinstance(part, Part))
    items, place, shard_start, span_start = rows
    first_anchor, last_anchor = items[0] // ANCHOR_ITEMS, items[-1] // ANCHOR_ITEMS
    found = store.spans[table].find(np.array([shard_start + items[0]]), np.array([0, len(items)]))
    spans = [int(number) - span_start for number in found.numbers[:_MOST_CELLS]]
    reach = {
        int(number) - span_start: [place + int(start), place + int(stop)]
        for number, start, stop in zip(found.numbers, found.starts, found.stops, strict=True)
    }
    anchor_cells = [_word(anchors, number) for number in range(first_anchor, last_anchor + 1)]
    for cell in anchor_cells:
        cell["span"] = span_start + int(cell["value"])
    start_cells = [_word(starts, span, span=span + span_start, reach=reach[span]) for span in spans]
    files = [
        _file(starts, table, "the first item of each span", start_cells),
        _file(anchors, table, f"the span that covers every {ANCHOR_ITEMS:,}th item", anchor_cells),
    ]
    if store.spans[table].codec is None or not spans:
        return files
    offset_cells = [_word(offsets, span, span=span + span_start) for span in [*spans, spans[-1] + 1]]
    _, begins, ends = store.spans[table].read(np.array([span + span_start for span in spans]))
    payload_cells = []
    for span, begin, end in zip(spans, begins.tolist(), ends.tolist(), strict=True):
        if begin >= 0:
            start = int.from_bytes(_read(offsets, offsets.byte_start + span * _WORD, _WORD), "little")
            shown = _read(payload, start, min(end - begin, _MOST_BYTES))
            cell = _cell(start, end - begin, shown, shown.decode("utf8", "replace"), span=span + span_start)
            payload_cells.append(cell)
    codec = store.spans[table].codec
    return [
        *files,
        _file(offsets, table, "where each payload begins", offset_cells),
        _file(payload, table, f"payloads, by codec {codec.name if codec else ''}", payload_cells),
    ]


def _word(part: Part, number: int, **links: Any) -> Json:
    start = part.byte_start + number * _WORD
    data = _read(part, start, _WORD)
    return _cell(start, _WORD, data, str(int.from_bytes(data, "little", signed=True)), **links)


def _cell(start: int, width: int, data: bytes, value: str, **links: Any) -> Json:
    hexadecimal = data.hex(" ") + (" …" if width > len(data) else "")
    return {"byte_start": start, "byte_stop": start + width, "hex": hexadecimal, "value": value, **links}


def _file(part: Part, table: str, what: str, cells: list[Json]) -> Json:
    return {
        "name": Path(part.path).name,
        "of": table,
        "what": what,
        "bytes": part.file_bytes,
        "header_bytes": part.byte_start,
        "cells": cells,
    }


def _read(part: Part, start: int, count: int) -> bytes:
    try:
        descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, count, start)
        finally:
            os.close(descriptor)
    except OSError as error:
        told = describe_errno(error.errno or 0)
        raise ReadError(f"{part.path} cannot be read: {told}", filename=part.path, errno=error.errno) from error
