"""One sample, token by token: a window, a document or a packed row, with its spans, its place on disk and its bytes.

Every sample is a list of pieces of the store, each [first item, first item + count), and padding. Only the items shown
are read, so a document of 100 million items costs no more than the part of it on the screen. On disk it is

tokens.npy              header │ … 2 bytes per item …
documents.starts.npy    header │ … 8 bytes per span: its first item …
documents.anchors.npy   header │ … 8 bytes per 4,096 items: the span that covers the first of them …
documents.offsets.npy   header │ … 8 bytes per payload: where it begins …
documents.payload.bin   … the payloads, one after the other …
"""

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import MissingError, SampleIndexError
from tokenfeed.format.manifest import Column
from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.runs.run import Run
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import open_binary, reading
from tokenfeed.store.shards import Shard
from tokenfeed.store.store import Store
from tokenfeed.store.view import View
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints
from tokenfeed.ui.messages import Json, Query, plain, without_paths
from tokenfeed.ui.overview import reader_of
from tokenfeed.ui.subject import Subject

__all__ = ["Excerpt", "choose_sample", "read_text", "show_bytes", "show_sample", "show_tokens"]

MOST_ITEMS = 4096
"""Items of one sample that are shown at once."""
_LONGEST = (1 << 24) - 1
_MOST_SPANS = 300
_MOST_COLUMNS = 8
_MOST_CELLS = 16
_MOST_BYTES = 48
"""Bytes of one cell that are shown."""
_WORD = 8
_MOST_PIXELS = 1 << 18
"""Pixels of all pictures of one sample that are shown."""
_MOST_PICTURES = 32
_MOST_WEIGHED = 1 << 16
"""Items of a sample whose weights in the loss are shown."""
_VIEWS = ("windows", "documents", "packed")


@dataclass(frozen=True)
class Excerpt:
    """The part of a sample that is shown."""

    index: int
    num_samples: int
    first_items: Ints
    counts: Ints
    num_items: int
    """Items of the whole sample, without padding."""
    offset: int
    """Position in the sample of the first item shown."""
    padding: int

    @classmethod
    def cut(
        cls, index: int, num_samples: int, first_items: Ints, counts: Ints, offset: int, padding: int = 0
    ) -> "Excerpt":
        """At most MOST_ITEMS items of a sample made of these pieces, from `offset` on; padding follows the last one."""
        stops = np.cumsum(counts)
        num_items = int(stops[-1]) if stops.size else 0
        offset = min(offset, max(0, num_items - 1))
        end = min(offset + MOST_ITEMS, num_items)
        begins = np.clip(stops - counts, offset, end)
        ends = np.clip(stops, offset, end)
        kept = ends > begins
        shown = (first_items + begins - (stops - counts))[kept], (ends - begins)[kept]
        return cls(index, num_samples, *shown, num_items, offset, padding if end == num_items else 0)

    @property
    def offsets(self) -> Ints:
        """Position of each piece in the row, and the end of the last."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    @property
    def items(self) -> Ints:
        """Number in the store of every item, in the order of the row."""
        runs = [np.arange(first, first + count) for first, count in zip(self.first_items, self.counts, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *runs])


def choose_view(store: Store, query: Query) -> View:
    """The view that a request names by `view`, `length` and `table`."""
    kind, length = query.choice("view", _VIEWS), query.whole("length", 256, least=1, most=_LONGEST)
    if kind == "windows":
        return store.windows(length)
    table = query.choice("table", list(store.spans))
    return store.documents(table) if kind == "documents" else store.packed(length, table=table)


def choose_sample(view: View, query: Query) -> Excerpt:
    """The sample that a request names by `index`, shown from `offset` on."""
    index = query.whole("index", 0)
    if index >= len(view):
        raise SampleIndexError(
            f"there is no sample {index:,}: the store has {len(view):,} {view.spec}, numbered from 0"
        )
    first_items, offsets = view.rows(np.array([index])).extents
    filled, counts = first_items >= 0, np.diff(offsets)
    padding = int(counts[~filled].sum())
    return Excerpt.cut(index, len(view), first_items[filled], counts[filled], query.whole("offset", 0), padding)


def show_sample(subject: Subject, query: Query) -> Json:
    """The items of a sample, decoded if there is a tokenizer, the spans they belong to, and its pictures."""
    store = subject.store_of(query.text("source"))
    view = choose_view(store, query)
    excerpt = choose_sample(view, query)
    batch = store.windows(1, extra=0).read(excerpt.items)
    scalars = [name for name, column in store.columns.items() if not column.shape][:_MOST_COLUMNS]
    primary = "tokens" if "tokens" in store.columns else next(iter(scalars), None)
    values = {name: batch.column(name)[:, 0] for name in scalars}
    return {
        "index": excerpt.index,
        "samples": excerpt.num_samples,
        "items": excerpt.num_items,
        "offset": excerpt.offset,
        "padding": excerpt.padding,
        "pieces": [
            {"start": int(start), "stop": int(stop), "first_item": int(first)}
            for start, stop, first in zip(excerpt.offsets[:-1], excerpt.offsets[1:], excerpt.first_items, strict=True)
        ],
        "primary": primary,
        "tokens": [] if primary is None else show_tokens(values[primary], subject.find(Tokenizer)),
        "columns": {name: _values(array) for name, array in values.items() if name != primary},
        "others": {name: str(column) for name, column in store.columns.items() if column.shape},
        "pictures": _pictures(store, excerpt.items),
        "loss": _loss(view, excerpt),
        "skipped": _skipped(subject, query.text("source")),
        "spans": {name: _spans(store, name, excerpt) for name in store.spans},
        "places": _places(store, excerpt, primary),
    }


def _loss(view: View, excerpt: Excerpt) -> list[float] | None:
    """Weight of each item shown as a target of training; None where all but the first count as 1, or are too many."""
    if excerpt.num_items > _MOST_WEIGHED:
        return None
    weights = view.unread([excerpt.index]).loss_weights
    if weights is None or (weights == 1).all():
        return None
    whole = np.concatenate(([0.0], weights[0]))[excerpt.offset :]
    return [round(float(each), 4) for each in whole[: excerpt.offsets[-1]]]


def _skipped(subject: Subject, source: str | None) -> list[Json]:
    """Documents that the run delivers without learning from them, each list from a sample of the run on."""
    run = subject.find(Run)
    if run is None or not run.starts:
        return []
    plan = run.starts[-1].plan
    number = plan.source_number(source) if source else 0
    return [
        {"from": at, "documents": list(documents)[:_MOST_SPANS]} for at, each, documents in plan.masks if each == number
    ]


def _pictures(store: Store, items: Ints) -> list[Json]:
    """The first items of columns that may be pictures: uint8 of shape (height, width), with 1, 3 or 4 channels."""
    found = []
    for name, column in store.columns.items():
        shape = column.shape
        if column.dtype != np.uint8 or len(shape) not in (2, 3):
            continue
        channels_first = len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3)
        height, width, channels = (*shape[1:], shape[0]) if channels_first else (*shape, 1)[:3]
        if channels not in (1, 3, 4) or min(height, width) < 2 or height * width > _MOST_PIXELS:
            continue
        count = min(items.size, _MOST_PICTURES, _MOST_PIXELS // (height * width))
        if count:
            pixels = store.windows(1, extra=0, columns=[name]).read(items[:count]).column(name)[:, 0]
            pixels = np.moveaxis(pixels, 1, -1) if channels_first else pixels
            shown = [base64.b64encode(np.ascontiguousarray(each).tobytes()).decode() for each in pixels]
            sizes = {"height": height, "width": width, "channels": channels}
            found.append({"column": name, **sizes, "total": int(items.size), "shown": shown})
    return found


def read_text(store: Store, first_item: int, count: int, tokenizer: Tokenizer | None) -> str:
    """Items [first_item, first_item + count) as text; as numbers without a tokenizer."""
    if "tokens" not in store.columns or store.columns["tokens"].shape or count <= 0:
        return ""
    tokens = store.windows(1, extra=0).read(np.arange(first_item, first_item + count)).column("tokens")[:, 0]
    if tokenizer is None or tokens.dtype.kind not in "iu":
        return " ".join(map(str, tokens.tolist()))
    known = tokenizer.vocabulary.tokens
    data = b"".join(known[token] or b"" for token in tokens.tolist() if 0 <= token < len(known))
    return data.decode("utf8", "replace")


def _values(array: Array) -> list[Any]:
    return [plain(value) for value in array.tolist()] if array.dtype.kind in "biuf" else list(map(str, array))


def show_tokens(tokens: Array, tokenizer: Tokenizer | None) -> list[list[Any]]:
    """[number, text, kind] of each token: kind 0 is text, 1 a special token, 2 bytes that are not text on their own.

    The text is empty without a tokenizer, and for a number that the vocabulary does not have.
    """
    if tokenizer is None or tokens.dtype.kind not in "iu":
        return [[plain(value), "", 0] for value in tokens.tolist()]
    special = set(tokenizer.vocabulary.special_tokens.values())
    known = tokenizer.vocabulary.tokens
    shown = []
    for number in tokens.tolist():
        data = known[number] if 0 <= number < len(known) else None
        text, kind = "", 0
        if data is not None:
            try:
                text, kind = data.decode(), 1 if number in special else 0
            except UnicodeDecodeError:
                text, kind = data.hex(" "), 2
        shown.append([number, text, kind])
    return shown


def _spans(store: Store, table: str, excerpt: Excerpt) -> Json:
    """The spans that the row touches, with positions in the row; the first 300 if there are more."""
    spans = store.spans[table]
    is_empty = excerpt.counts.size == 0  # an empty document touches no item, but is a span of its own
    found: Any = [[spans[excerpt.index]]] if is_empty else spans.find(excerpt.first_items, excerpt.offsets)
    listed: list[Json] = []
    total = 0
    for row, shift in zip(found, excerpt.offsets.tolist(), strict=False):
        total += len(row)
        for span in (row[number] for number in range(min(len(row), _MOST_SPANS - len(listed)))):
            places = {"number": span.number, "start": span.start + shift, "stop": span.stop + shift}
            listed.append({**places, "has_payload": span.has_payload, "payload": plain(span.payload)})
    return {"total": total, "spans": listed}


def _places(store: Store, excerpt: Excerpt, column: str | None) -> list[Json]:
    """Shard and items [start, stop) in it of each piece, and its bytes in the file of the primary column."""
    starts = reader_of(store).starts
    places: list[Json] = []
    for first, count in zip(excerpt.first_items.tolist(), excerpt.counts.tolist(), strict=True):
        number = int(np.searchsorted(starts, first, side="right")) - 1
        while number < len(store.shards) and starts[number] < first + count:
            shard, shift = store.shards[number], int(starts[number])
            start, stop = max(0, first - shift), min(shard.num_items, first + count - shift)
            number += 1
            if start == stop:
                continue
            place: Json = {"shard": without_paths(shard.name), "start": start, "stop": stop}
            if column is not None:
                byte_start, byte_stop = _bytes_of(shard.column_part(column), store.columns[column], start, stop)
                place |= {"byte_start": byte_start, "byte_stop": byte_stop}
            places.append(place)
    return places


def show_bytes(subject: Subject, query: Query) -> Json:
    """Up to 16 items of a sample, from position `item` on, and their spans, as the files store them.

    Each file is a list of cells. Cells that belong together share an `item` (position in the row) or a `span` (number
    in the table). Works for local stores only.
    """
    store = subject.store_of(query.text("source"))
    items = choose_sample(choose_view(store, query), query).items
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
    shown = _Shown(first, min(run, shard.num_items - first), place, shard_start)
    files = [_column_file(store, shard, name, shown) for name in store.columns]
    for table in store.spans:
        if shard.num_spans(table):
            files += _table_files(store, shard, table, shown, int(reader.span_starts(table)[number]))
    told = {"first": first, "count": shown.num_items, "place": place}
    return {"shard": without_paths(shard.name), **told, "files": files}


class _Shown(NamedTuple):
    """Items [first, first + count) of a shard, which begins at item `shard_start` of the store."""

    first: int
    num_items: int
    place: int
    """Position in the sample of the first item shown."""
    shard_start: int


def _column_file(store: Store, shard: Shard, name: str, shown: _Shown) -> Json:
    column, part = store.columns[name], shard.column_part(name)
    items = shown.shard_start + shown.first + np.arange(shown.num_items)
    is_scalar = not column.shape and column.dtype.kind in "biuf"
    values = store.windows(1, extra=0).read(items).column(name)[:, 0] if is_scalar else None
    cells = []
    for number in range(shown.num_items):
        start, stop = _bytes_of(part, column, shown.first + number, shown.first + number + 1)
        data = _read(part, start, min(stop - start, _MOST_BYTES))
        text = "" if values is None else str(values[number])
        cells.append({**_cell(start, stop - start, data, text), "item": shown.place + number})
    return _file(part, name, f"one {column} for each item", cells)


def _bytes_of(part: Part, column: Column, start: int, stop: int) -> tuple[int, int]:
    """First byte and end of items [start, stop) in the file of a column."""
    return part.byte_start + start * column.item_bytes, part.byte_start + stop * column.item_bytes


def _table_files(store: Store, shard: Shard, table: str, shown: _Shown, span_start: int) -> list[Json]:
    """The files of a span table. Token files of other systems have none: their boundaries are kept in memory."""
    parts = [part for part in shard.span_parts(table) if isinstance(part, Part)]
    if not parts:
        return []
    starts, anchors, *of_payloads = parts
    found = store.spans[table].find(np.array([shown.shard_start + shown.first]), np.array([0, shown.num_items]))
    spans = [int(number) - span_start for number in found.numbers[:_MOST_CELLS]]
    start_cells = _cells(starts, spans, _WORD, _word)
    for cell, span, start, stop in zip(start_cells, spans, found.starts, found.stops, strict=False):
        cell |= {"span": span + span_start, "reach": [shown.place + int(start), shown.place + int(stop)]}
    covering = range(shown.first // ANCHOR_ITEMS, (shown.first + shown.num_items - 1) // ANCHOR_ITEMS + 1)
    anchor_cells = _cells(anchors, covering, _WORD, _word)
    for cell in anchor_cells:
        cell["span"] = span_start + int(cell["value"])
    files = [
        _file(starts, table, "the first item of each span", start_cells),
        _file(anchors, table, f"the span that covers every {ANCHOR_ITEMS:,}th item", anchor_cells),
    ]
    codec = store.spans[table].codec
    if codec is None or not spans:
        return files
    offsets, payload = of_payloads
    offset_cells = _cells(offsets, [*spans, spans[-1] + 1], _WORD, _word)
    _, begins, ends = store.spans[table].read(np.array(spans) + span_start)
    payload_cells = []
    for span, cell, begin, end in zip([*spans, spans[-1] + 1], offset_cells, [*begins, -1], [*ends, -1], strict=True):
        cell["span"] = span + span_start
        if begin >= 0:
            data = _read(payload, int(cell["value"]), min(int(end - begin), _MOST_BYTES))
            text = data.decode("utf8", "replace")
            payload_cells.append({**_cell(int(cell["value"]), int(end - begin), data, text), "span": cell["span"]})
    return [
        *files,
        _file(offsets, table, "where each payload begins", offset_cells),
        _file(payload, table, f"payloads, encoded by codec {codec.name}", payload_cells),
    ]


def _word(data: bytes) -> str:
    return str(int.from_bytes(data, "little", signed=True))


def _cells(part: Part, numbers: Sequence[int], width: int, value: Callable[[bytes], str]) -> list[Json]:
    """Some entries of a file in which each has `width` bytes."""
    begins = [part.byte_start + number * width for number in numbers]
    read = [_read(part, begin, min(width, _MOST_BYTES)) for begin in begins]
    return [_cell(begin, width, data, value(data)) for begin, data in zip(begins, read, strict=True)]


def _cell(start: int, width: int, data: bytes, value: str) -> Json:
    hexadecimal = data.hex(" ") + (" …" if width > len(data) else "")
    return {"byte_start": start, "byte_stop": start + width, "hex": hexadecimal, "value": value}


def _file(part: Part, table: str, what: str, cells: list[Json]) -> Json:
    sizes = {"bytes": part.file_bytes, "header_bytes": part.byte_start}
    return {"name": Path(part.path).name, "of": table, "what": what, **sizes, "cells": cells}


def _read(part: Part, start: int, num_bytes: int) -> bytes:
    with reading(part.path), open_binary(part.path) as file:
        return os.pread(file.fileno(), num_bytes, start)
