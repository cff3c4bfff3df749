"""Documents of a store: a page of them as a table, what their payloads hold, and a search in payloads and text.

The work of one request is bounded by time; the page asks to continue.
"""

import json
import math
import operator
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.store.spans import SpanTable
from tokenfeed.store.store import Store
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.types import Ints
from tokenfeed.ui.messages import Json, Query, plain
from tokenfeed.ui.overview import reader_of, sample_spans
from tokenfeed.ui.samples import read_text
from tokenfeed.ui.subject import Subject

__all__ = ["list_documents", "search_documents", "show_fields"]

_PAGE = 50
_SNIPPET = 40
_MOST_READ = 1 << 20
"""Documents of which a field is read, to sort and filter by it."""
_MOST_KEPT = 2
_FIELD_SECONDS = 0.5
_LONGEST_VALUE = 64
_LARGEST = 1 << 1000
_FILTER = re.compile(r"\s*(.+?)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_reading = threading.Lock()
_MOST_FIELDS = 12
_FIELD_RUN = 16
_FIELD_BINS = 16
_MOST_VALUES = 5
_SEARCH_SECONDS = 0.3
_SLICE = 4096
_FIRST_ITEMS = 1 << 14
_SLICE_ITEMS = 1 << 18
"""Items of documents that are searched before the clock is looked at: few at first, so that results appear soon."""
_MOST_ITEMS = 1 << 20
_SOON_SECONDS = 0.05
_MOST_FOUND = 20
_AROUND = 60
"""Characters shown on either side of what was found."""
_TEXTUAL = ("json", "utf8")
"""Codecs whose bytes hold every letter and digit of what they encode."""


def _table_of(subject: Subject, query: Query) -> tuple[Store, SpanTable]:
    store = subject.store_of(query.text("source"))
    usual = "documents" if "documents" in store.spans else ""
    return store, store.spans[query.choice("table", list(store.spans), usual)]


def list_documents(subject: Subject, query: Query) -> Json:
    """A page of documents: number, length, payload, and how it begins.

    `sort` is `document`, `tokens` or a field of the payloads, downward with `-` before it; `filter` is such as
    `score >= 0.5`. A field is read for half a second in each request: `known` says of how many documents it is known.
    Nothing is sorted before all are known.
    """
    store, table = _table_of(subject, query)
    first, count = query.whole("first", 0), query.whole("count", 25, least=1, most=_PAGE)
    sort, condition = query.text("sort") or "document", query.text("filter")
    total = known = len(table)
    everything, chosen = np.arange(total), None
    if condition is not None:
        name, matches = _parse_filter(condition)
        column = _read_field(subject, query, table, name)
        known = len(column)
        chosen = np.flatnonzero([value is not None and matches(value) for value in column])
    if sort.removeprefix("-") != "document":
        column = _read_field(subject, query, table, sort.removeprefix("-"))
        known = min(known, len(column))
        ordered = _sort(column, sort.startswith("-")) if known == min(total, _MOST_READ) else np.empty(0, np.int64)
        chosen = ordered if chosen is None else ordered[np.isin(ordered, chosen)]
    elif sort == "-document":
        chosen = (everything if chosen is None else chosen)[::-1]
    numbers = (everything if chosen is None else chosen)[first : first + count]
    return {
        "table": table.name,
        "total": total,
        "matching": total if chosen is None else chosen.size,
        "known": known,
        "most": min(total, _MOST_READ),
        "first": first,
        "sort": sort,
        "documents": _describe(store, table, numbers, subject),
    }


def _parse_filter(text: str) -> tuple[str, Callable[[Any], bool]]:
    """(field, whether a value of it is wanted) of `field operator value`. Numbers are compared as such."""
    found = _FILTER.fullmatch(text)
    if found is None:
        raise ArgumentError(f"filter is {text[:80]!r}; expected a field, one of = != < <= > >= ~, and a value")
    name, sign, wanted = found.groups()
    if sign == "~":
        return name, lambda value: wanted.casefold() in str(value).casefold()
    compare = _SIGNS[sign]
    with suppress(ValueError):
        number = float(wanted)
        return name, lambda value: compare(value, number) if isinstance(value, float) else sign == "!="
    return name, lambda value: bool(compare(str(value).casefold(), wanted.casefold()))


def _read_field(subject: Subject, query: Query, table: SpanTable, name: str) -> list[Any]:
    """A field of every payload, as a number, a short text or None: as many as were read up to now, half a second more.

    `tokens` is the length of the document, `payload` a payload that is no object, and `payload.tokens` a field that has
    the name of another column.
    """
    if name == "tokens":
        return list(map(float, table.locate(np.arange(min(len(table), _MOST_READ)))[1]))
    key = query.text("source") or "", table.name, name
    with _reading:
        values: list[Any] = subject.kept.pop(key, [])
        subject.kept[key] = values  # the latest is the last
        while len(subject.kept) > _MOST_KEPT:
            subject.kept.pop(next(iter(subject.kept)))
        began, most = time.monotonic(), min(len(table), _MOST_READ)
        while len(values) < most and time.monotonic() - began < _FIELD_SECONDS:
            numbers = np.arange(len(values), min(len(values) + _SLICE, most))
            data, starts, stops = table.read(numbers)
            for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
                payload = table.decode(data.data[start:stop], number) if start >= 0 else None
                values.append(_value_of(payload, name))
        if len(values) == most and not any(value is not None for value in values):
            raise ArgumentError(f"no payload has a field {name[:80]!r}")
        return list(values)


def _value_of(payload: Any, name: str) -> float | str | None:
    value = payload.get(name.removeprefix("payload.")) if isinstance(payload, dict) else payload
    is_nan = isinstance(value, float) and math.isnan(value)
    if value is None or is_nan or (not isinstance(payload, dict) and name != "payload"):
        return None  # NaN has no place in an order
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return float(value)
    return (value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False))[:_LONGEST_VALUE]


def _sort(values: list[Any], down: bool) -> Ints:
    """Numbers of documents by value: numbers, then texts; those without a value come last either way."""
    there = [number for number, value in enumerate(values) if value is not None]
    there.sort(key=lambda number: _sort_key(values[number]), reverse=down)
    return np.array(there + [number for number, value in enumerate(values) if value is None], np.int64)


def _sort_key(value: float | str) -> tuple[bool, float, str]:
    return (False, value, "") if isinstance(value, float) else (True, 0.0, value.casefold())


def _describe(store: Store, table: SpanTable, numbers: Ints, subject: Subject) -> list[Json]:
    first_items, lengths = table.locate(numbers) if numbers.size else (numbers, numbers)
    tokenizer = subject.find(Tokenizer)
    return [
        {
            "document": number,
            "items": length,
            "payload": payload,
            "text": read_text(store, first, min(length, _SNIPPET), tokenizer),
        }
        for number, first, length, payload in zip(
            numbers.tolist(), first_items.tolist(), lengths.tolist(), _payloads(table, numbers), strict=True
        )
    ]


def _payloads(table: SpanTable, numbers: Ints) -> Iterator[Any]:
    data, starts, stops = table.read(numbers)
    for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
        yield plain(table.decode(data.data[start:stop], number)) if start >= 0 else None


def show_fields(subject: Subject, query: Query) -> Json:
    """What the fields of payloads hold, from a sample of documents: a histogram of numbers, or the usual texts."""
    store, table = _table_of(subject, query)
    numbers = sample_spans(reader_of(store).span_starts(table.name), _FIELD_RUN)
    values: dict[str, list[Any]] = {}
    for payload in _payloads(table, numbers) if numbers.size else ():
        for name, value in (payload if isinstance(payload, dict) else {"payload": payload}).items():
            if value is not None and (name in values or len(values) < _MOST_FIELDS):
                values.setdefault(name, []).append(value)
    return {
        "table": table.name,
        "sampled": int(numbers.size),
        "fields": [{"name": name, "count": len(held), **_summarise(held)} for name, held in values.items()],
    }


def _summarise(values: list[Any]) -> Json:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        counts, edges = np.histogram(np.array(values, np.float64), _FIELD_BINS)
        return {"bins": counts.tolist(), "least": float(edges[0]), "most": float(edges[-1])}
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    common = Counter(text[:80] for text in texts)
    return {"different": len(common), "values": common.most_common(_MOST_VALUES)}


def search_documents(subject: Subject, query: Query) -> Json:
    """Documents from number `first` on whose payload or text contains `text`, ignoring case.

    A request looks for a third of a second, less where it finds something, or until it has found twenty; `next` says
    where to continue. Payloads of textual codecs, and texts, are searched as bytes: only where the longest run of ASCII
    letters and digits is found is anything decoded.
    """
    text = query.text("text")
    if text is None:
        raise ArgumentError("the search needs a text to look for")
    where = query.choice("where", ("anything", "payload", "text"))
    store, table = _table_of(subject, query)
    tokenizer = subject.find(Tokenizer) if where != "payload" and _has_tokens(store) else None
    number, total = query.whole("first", 0), len(table)
    found: list[Json] = []
    wanted = text.casefold()
    words = None if tokenizer is None else [token or b"" for token in tokenizer.vocabulary.tokens]
    began, num_items = time.monotonic(), _FIRST_ITEMS
    while number < total and len(found) < _MOST_FOUND:
        if time.monotonic() - began > (_SOON_SECONDS if found else _SEARCH_SECONDS):
            break
        numbers = np.arange(number, min(number + _SLICE, total))
        if words is not None:  # as many documents as have so many items, but at least one
            fits = int(np.searchsorted(np.cumsum(table.locate(numbers)[1]), num_items, side="right"))
            numbers = numbers[: max(1, fits)]
            num_items = min(2 * num_items, _SLICE_ITEMS)
        hits: dict[int, Json] = {}
        if where != "text":
            hits = dict(_find_in_payloads(table, numbers, wanted))
        if words is not None:
            for each, around in _find_in_text(store, table, numbers, wanted, words):
                hits[each] = {**hits.get(each, {}), "around": around}
        kept = sorted(hits)[: _MOST_FOUND - len(found)]
        told = (
            {one["document"]: one for one in _describe(store, table, np.array(kept, np.int64), subject)} if kept else {}
        )
        found += [{**told[each], **hits[each]} for each in kept]
        number = int(numbers[-1]) + 1 if len(kept) == len(hits) else kept[-1] + 1
    return {"text": text, "found": found, "next": number, "total": total, "in_text": tokenizer is not None}


def _has_tokens(store: Store) -> bool:
    column = store.columns.get("tokens")
    return column is not None and not column.shape and column.dtype.kind in "iu"


def _core(wanted: str) -> bytes:
    """The longest run of ASCII letters and digits, which every encoding of the text holds as it is."""
    return max(re.findall("[a-z0-9]+", wanted), key=len, default="").encode()


def _find_in_payloads(table: SpanTable, numbers: Ints, wanted: str) -> Iterator[tuple[int, Json]]:
    data, starts, stops = table.read(numbers)
    core = _core(wanted) if table.codec_name in _TEXTUAL else b""
    lowered = bytes(data.data).lower() if core else b""
    if core and core not in lowered:
        return
    for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
        if start < 0 or (core and lowered.find(core, start, stop) < 0):
            continue
        shown = plain(table.decode(data.data[start:stop], number))
        told = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        if wanted in told.casefold():
            yield number, {"payload": shown}


def _find_in_text(
    store: Store, table: SpanTable, numbers: Ints, wanted: str, words: list[bytes]
) -> Iterator[tuple[int, str]]:
    """(document, the text around the place) of the first place in each document; in one alone, its first million."""
    core, offsets = _core(wanted), np.concatenate(([0], np.cumsum(table.locate(numbers)[1])))
    if offsets[-1] > _MOST_ITEMS:  # the caller gives one document that is so long
        first = int(table.locate(numbers)[0][0])
        tokens = store.windows(1, extra=0).read(np.arange(first, first + _MOST_ITEMS)).column("tokens")[:, 0]
    else:
        tokens = store.documents(table.name).read(numbers).column("tokens")
    pieces = [words[token] if 0 <= token < len(words) else b"" for token in tokens.tolist()]
    data = b"".join(pieces)
    lowered = data.lower()
    if core not in lowered:
        return
    ends = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces])))[np.minimum(offsets, len(pieces))]
    for number, (begin, end) in zip(numbers.tolist(), pairwise(ends.tolist()), strict=True):
        if lowered.find(core, begin, end) < 0:
            continue
        text = data[begin:end].decode("utf8", "replace")
        place = text.casefold().find(wanted)
        if place >= 0:
            cut = max(0, place - _AROUND)
            yield number, ("…" if cut else "") + text[cut : place + len(wanted) + _AROUND]
