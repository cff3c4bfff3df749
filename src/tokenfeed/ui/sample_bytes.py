"""The bytes of one sample on disk: its columns, and the starts, anchors, offsets and payloads of its spans.

tokens.npy              header │ … 2 bytes per item …
documents.starts.npy    header │ … 8 bytes per span: its first item …
documents.anchors.npy   header │ … 8 bytes per 4,096 items: the span that covers the first of them …
documents.offsets.npy   header │ … 8 bytes per payload: where it begins …
documents.payload.bin   … the payloads, one after the other …
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import MissingError
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import reading
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
"""Bytes of one cell that are shown."""
_WORD = 8


def show_bytes(subject: Subject, query: Query) -> Json:
    """Up to 16 items of a sample, from position `item` on, and their spans, as the files store them.

    Each file is a list of cells. Cells that belong together share an `item` (position in the row) or a `span` (number
    in the table). Works for local stores only.
    """
    store = subject.store
    items = choose_sample(store, query).items
    if items.size == 0:
        return {"shard": None, "files": []}
    place = min(query.whole("item", 0), items.size - 1)
    reader = reader_of(store)
    number = int(np.searchsorted(reader.starts, items[place], side="right")) - 1
    shard, shard_start = store.shards[number], int(reader.starts[number])
    if shard.is_remote:
        raise MissingError("the page shows the bytes of local stores only; this store is remote")
    # Consecutive items of this shard: they are next to each other in the files.
    same = items[place : place + _MOST_CELLS]
    run = int(np.argmax(np.append(np.diff(same) != 1, True))) + 1
    first = int(items[place]) - shard_start
    count = min(run, shard.num_items - first)
    files = [_column(store, shard, name, first, count, place) for name in store.columns]
    for table in store.spans:
        if shard.num_spans(table):
            span_start = int(reader.span_starts(table)[number])
            files += _table_files(store, shard, table, _Shown(first, count, place, shard_start, span_start))
    return {"shard": without_paths(shard.name), "first": first, "count": count, "place": place, "files": files}


class _Shown(NamedTuple):
    """Items [first, first + num_items) of a shard, and what to add to get numbers of the sample and of the store."""

    first: int
    num_items: int
    place: int
    """Position in the sample of the first item shown."""
    shard_start: int
    """Number in the store of the shard's first item."""
    span_start: int
    """Number in the table of the shard's first span."""


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


def _table_files(store: Store, shard: Shard, table: str, shown: _Shown) -> list[Json]:
    """The files of a span table. Token files of other systems have none: their boundaries are kept in memory."""
    parts = shard.span_parts(table)
    if not all(isinstance(part, Part) for part in parts):
        return []
    starts, anchors, *of_payloads = (part for part in parts if isinstance(part, Part))
    first, count, place, shard_start, span_start = shown
    found = store.spans[table].find(np.array([shard_start + first]), np.array([0, count]))
    spans = [int(number) - span_start for number in found.numbers[:_MOST_CELLS]]
    anchor_numbers = range(first // ANCHOR_ITEMS, (first + count - 1) // ANCHOR_ITEMS + 1)
    anchor_cells = [_word(anchors, number) for number in anchor_numbers]
    for cell in anchor_cells:
        cell["span"] = span_start + int(cell["value"])
    start_cells = [
        _word(starts, span, span=span + span_start, reach=[place + int(start), place + int(stop)])
        for span, start, stop in zip(spans, found.starts, found.stops, strict=False)
    ]
    files = [
        _file(starts, table, "the first item of each span", start_cells),
        _file(anchors, table, f"the span that covers every {ANCHOR_ITEMS:,}th item", anchor_cells),
    ]
    codec = store.spans[table].codec
    if codec is None or not spans:
        return files
    offsets, payload = of_payloads
    offset_cells = [_word(offsets, span, span=span + span_start) for span in [*spans, spans[-1] + 1]]
    _, begins, ends = store.spans[table].read(np.array([span + span_start for span in spans]))
    payload_cells = []
    for span, begin, end in zip(spans, begins.tolist(), ends.tolist(), strict=True):
        if begin >= 0:
            start = int.from_bytes(_read(offsets, offsets.byte_start + span * _WORD, _WORD), "little")
            data = _read(payload, start, min(end - begin, _MOST_BYTES))
            text = data.decode("utf8", "replace")
            payload_cells.append(_cell(start, end - begin, data, text, span=span + span_start))
    return [
        *files,
        _file(offsets, table, "where each payload begins", offset_cells),
        _file(payload, table, f"payloads, encoded by codec {codec.name}", payload_cells),
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
    with reading(part.path), Path(part.path).open("rb", buffering=0) as file:
        return os.pread(file.fileno(), count, start)
