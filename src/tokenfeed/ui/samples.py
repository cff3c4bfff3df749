"""One sample, token by token: a window, a document or a packed row, with its spans and its place in the store.

Every sample is a list of pieces of the store, each [first item, first item + count), and padding. Only the items shown
are read, so a document of 100 million items costs no more than the part of it on the screen.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.errors import SampleIndexError
from tokenfeed.runs.run import Run
from tokenfeed.store.store import Store
from tokenfeed.store.view import View
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Array, Ints
from tokenfeed.ui.messages import Json, Query, plain, without_paths
from tokenfeed.ui.subject import Subject

__all__ = ["Excerpt", "read_text", "show_sample", "show_tokens"]

MOST_ITEMS = 4096
"""Items of one sample that are shown at once."""
_LONGEST = (1 << 24) - 1
_MOST_SPANS = 300
_MOST_COLUMNS = 8
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
    """The items of a sample, decoded if there is a tokenizer, and the spans they belong to."""
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
        "loss": _loss(view, excerpt),
        "skipped": _skipped(subject, query.text("source")),
        "spans": {name: _spans(store, name, excerpt) for name in store.spans},
        "places": _places(store, excerpt),
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
        {"from": at, "documents": mask.documents[:_MOST_SPANS].tolist()}
        for at, each, mask in plan.masks
        if each == number
    ]


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
            place = {"number": span.number, "start": span.start + shift, "stop": span.stop + shift}
            listed.append({**place, "payload": plain(span.payload)})
    return {"total": total, "spans": listed}


def _places(store: Store, excerpt: Excerpt) -> list[Json]:
    """Shard and items [start, stop) in it of each piece."""
    reader = store.windows(1, extra=0).reader
    pieces = zip(excerpt.first_items.tolist(), excerpt.counts.tolist(), strict=True)
    places = [place for first, count in pieces for place in reader.locate(first, first + count)]
    return [{"shard": without_paths(place.shard), "start": place.start, "stop": place.stop} for place in places]
