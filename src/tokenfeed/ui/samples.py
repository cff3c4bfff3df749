"""One sample, token by token: a window, a document or a packed row, with its spans and where it lies.

Whatever the view, a sample is some pieces of the store, [first item, first item + count), and padding. What is read is
these items alone, so a document of a hundred million items costs no more than what is shown of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import SampleIndexError
from tokenfeed.store.store import Store
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints
from tokenfeed.ui.overview import reader_of
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, plain, without_paths

__all__ = ["Pieces", "choose_sample", "show_sample", "show_tokens"]

MOST_ITEMS = 4096
"""That are shown of one sample."""
_LONGEST = (1 << 24) - 1
_MOST_SPANS = 300
_MOST_COLUMNS = 8
_VIEWS = ("windows", "documents", "packed")


@dataclass(frozen=True)
class Pieces:
    """What a sample is made of, as far as it is shown."""

    index: int
    num_samples: int
    first_items: Ints
    counts: Ints
    num_items: int
    """Of the whole sample, without padding."""
    offset: int
    """Where in the sample it begins to be shown."""
    padding: int

    @classmethod
    def cut(
        cls, index: int, num_samples: int, first_items: Ints, counts: Ints, offset: int, padding: int = 0
    ) -> "Pieces":
        """At most MOST_ITEMS of a sample made of these pieces, from `offset` on; padding comes with its last ones."""
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
        """Where each piece begins in the row, and the end."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    @property
    def items(self) -> Ints:
        """The number in the store of every item, in the order of the row."""
        runs = [np.arange(first, first + count) for first, count in zip(self.first_items, self.counts, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *runs])


def choose_sample(store: Store, query: Query) -> Pieces:
    """The sample that a request names by `view`, `index`, `length` and `table`; of a long one, from `offset` on."""
    view = query.choice("view", _VIEWS)
    index = query.whole("index", 0)
    length = query.whole("length", 256, least=1, most=_LONGEST)
    offset = query.whole("offset", 0)
    if view == "windows":
        num_samples = len(store.windows(length))
        _check(index, num_samples, f"windows of {length:,} + 1")
        first_items, counts = np.array([index * length]), np.array([length + 1])
        return Pieces.cut(index, num_samples, first_items, counts, offset)
    table = store.spans[query.choice("table", list(store.spans))]
    if view == "documents":
        _check(index, len(table), f"spans of {table.name!r}")
        return Pieces.cut(index, len(table), *table.locate(np.array([index])), offset)
    rows = store.packed(length, table=table.name).plan
    _check(index, len(rows), f"packed rows of {length:,} + 1")
    found = rows.find(np.array([index]))
    counts = np.diff(found.offsets)
    padding = int(counts[~found.filled].sum())
    return Pieces.cut(index, len(rows), found.first_items[found.filled], counts[found.filled], offset, padding)


def _check(index: int, count: int, what: str) -> None:
    if index >= count:
        raise SampleIndexError(f"there is no sample {index:,}: the store has {count:,} {what}")


def show_sample(subject: Subject, query: Query) -> Json:
    """The items of a sample, decoded where there is a tokenizer, with the spans that they are in."""
    store = subject.store
    pieces = choose_sample(store, query)
    items = pieces.items
    batch = store.windows(1, extra=0).read(items)
    scalars = [name for name, column in store.columns.items() if not column.shape][:_MOST_COLUMNS]
    primary = "tokens" if "tokens" in store.columns else next(iter(scalars), None)
    values = {name: batch.column(name)[:, 0] for name in scalars}
    tokens = None if primary is None else values[primary]
    return {
        "index": pieces.index,
        "samples": pieces.num_samples,
        "items": pieces.num_items,
        "offset": pieces.offset,
        "padding": pieces.padding,
        "pieces": [
            {"start": int(start), "stop": int(stop), "first_item": int(first)}
            for start, stop, first in zip(pieces.offsets[:-1], pieces.offsets[1:], pieces.first_items, strict=True)
        ],
        "primary": primary,
        "tokens": [] if tokens is None else show_tokens(tokens, subject.given_tokenizer),
        "columns": {name: _values(array) for name, array in values.items() if name != primary},
        "others": {name: str(column) for name, column in store.columns.items() if column.shape},
        "spans": {name: _spans(store, name, pieces) for name in store.spans},
        "places": _places(store, pieces, primary),
    }


def _values(array: Array) -> list[Any]:
    return [plain(value) for value in array.tolist()] if array.dtype.kind in "biuf" else list(map(str, array))


def show_tokens(tokens: Array, tokenizer: Tokenizer | None) -> list[list[Any]]:
    """[number, text, kind] of each: kind 0 is text, 1 a special token, 2 bytes that are no text by themselves.

    Without a tokenizer the text is empty, and so it is for a number that is not in the vocabulary.
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


def _spans(store: Store, table: str, pieces: Pieces) -> Json:
    """The spans that the row touches, in places of the row; of a great many, the first."""
    if pieces.items.size == 0:
        found: Any = [[store.spans[table][pieces.index]]]
    else:
        found = store.spans[table].find(pieces.first_items, pieces.offsets)
    listed: list[Json] = []
    total = 0
    for place, row in enumerate(found):
        shift = int(pieces.offsets[place]) if pieces.items.size else 0
        total += len(row)
        shown = range(min(len(row), _MOST_SPANS - len(listed)))
        listed += [_describe_span(row[number], shift) for number in shown]
    return {"total": total, "spans": listed}


def _describe_span(span: Any, shift: int) -> Json:
    return {
        "number": span.number,
        "start": span.start + shift,
        "stop": span.stop + shift,
        "has_payload": span.has_payload,
        "payload": plain(span.payload),
    }


def _places(store: Store, pieces: Pieces, column: str | None) -> list[Json]:
    """Where the items lie: shard, items [start, stop) of it, and bytes of the file of the primary column."""
    reader = reader_of(store)
    by_name = {shard.name: shard for shard in _shards_of(store, pieces)}
    told = []
    for first, count in zip(pieces.first_items.tolist(), pieces.counts.tolist(), strict=True):
        for place in reader.locate(first, first + count):
            entry: Json = {"shard": without_paths(place.shard), "start": place.start, "stop": place.stop}
            if column is not None and place.shard in by_name:
                begin = by_name[place.shard].column_part(column).byte_start
                width = store.columns[column].item_bytes
                entry |= {"byte_start": begin + place.start * width, "byte_stop": begin + place.stop * width}
            told.append(entry)
    return told


def _shards_of(store: Store, pieces: Pieces) -> Sequence[Any]:
    if pieces.items.size == 0:
        return []
    numbers = np.unique(np.searchsorted(reader_of(store).starts, pieces.items, side="right") - 1)
    return [store.shards[number] for number in numbers.tolist()]
