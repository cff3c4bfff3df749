"""One sample, token by token: a window, a document or a packed row, with its spans and its place on disk.

Every sample is a list of pieces of the store, each [first item, first item + count), and padding. Only the items shown
are read, so a document of 100 million items costs no more than the part of it on the screen.
"""

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

__all__ = ["Excerpt", "choose_sample", "show_sample", "show_tokens"]

MOST_ITEMS = 4096
"""Items of one sample that are shown at once."""
_LONGEST = (1 << 24) - 1
_MOST_SPANS = 300
_MOST_COLUMNS = 8
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


def choose_sample(store: Store, query: Query) -> Excerpt:
    """The sample that a request names by `view`, `index`, `length` and `table`, shown from `offset` on."""
    view = query.choice("view", _VIEWS)
    index = query.whole("index", 0)
    length = query.whole("length", 256, least=1, most=_LONGEST)
    offset = query.whole("offset", 0)
    if view == "windows":
        num_samples = len(store.windows(length))
        _check(index, num_samples, f"windows of {length:,} + 1 items")
        return Excerpt.cut(index, num_samples, np.array([index * length]), np.array([length + 1]), offset)
    table = store.spans[query.choice("table", list(store.spans))]
    if view == "documents":
        _check(index, len(table), f"spans in table {table.name!r}")
        return Excerpt.cut(index, len(table), *table.locate(np.array([index])), offset)
    packed = store.packed(length, table=table.name)
    _check(index, len(packed), f"packed rows of {length:,} + 1 items")
    first_items, offsets = packed.rows(np.array([index])).extents
    filled, counts = first_items >= 0, np.diff(offsets)
    return Excerpt.cut(index, len(packed), first_items[filled], counts[filled], offset, int(counts[~filled].sum()))


def _check(index: int, count: int, what: str) -> None:
    if index >= count:
        raise SampleIndexError(f"there is no sample {index:,}: the store has {count:,} {what}, numbered from 0")


def show_sample(subject: Subject, query: Query) -> Json:
    """The items of a sample, decoded if there is a tokenizer, and the spans they belong to."""
    store = subject.store
    excerpt = choose_sample(store, query)
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
        "tokens": [] if primary is None else show_tokens(values[primary], subject.given_tokenizer),
        "columns": {name: _values(array) for name, array in values.items() if name != primary},
        "others": {name: str(column) for name, column in store.columns.items() if column.shape},
        "spans": {name: _spans(store, name, excerpt) for name in store.spans},
        "places": _places(store, excerpt, primary),
    }


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
                begin, width = shard.column_part(column).byte_start, store.columns[column].item_bytes
                place |= {"byte_start": begin + start * width, "byte_stop": begin + stop * width}
            places.append(place)
    return places
