"""Contents of a store: columns, span tables, splits, shards page by page, and the lengths of its documents."""

from collections import Counter

import numpy as np

from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.store.describe import describe_columns, describe_table
from tokenfeed.store.reader import Reader
from tokenfeed.store.store import Store
from tokenfeed.types import Ints
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, plain, without_paths

__all__ = ["count_lengths", "describe_store", "list_shards", "reader_of"]

_MOST_SHARDS = 100
_SAMPLED_SHARDS = 64
_SAMPLED_SPANS = 256
"""Consecutive spans read from each sampled shard."""
_NUM_BINS = 28


def reader_of(store: Store) -> Reader:
    """The reader of the store, which knows where its items are."""
    return store.windows(1, extra=0).reader


def describe_store(subject: Subject, query: Query) -> Json:
    """Summary of the store. Takes O(shards) time on the server; the answer stays small."""
    store = subject.store
    splits, items = Counter[str](), Counter[str]()
    for shard in store.shards:
        splits[shard.split or ""] += 1
        items[shard.split or ""] += shard.num_items
    return {
        "name": subject.name,
        "items": store.num_items,
        "shards": len(store.shards),
        "columns": describe_columns(store),
        "spans": [_describe_table(store, name) for name in store.spans],
        "splits": [{"name": name, "shards": splits[name], "items": items[name]} for name in sorted(splits) if name],
        "tokenizer": None if store.tokenizer is None else without_paths(store.tokenizer),
        "identity": store.identity if len(store.shards) else None,
        "provenance": plain(dict(store.provenance), clean=True),
        "views": {"windows": True, "documents": list(store.spans), "packed": list(store.spans)},
    }


def _describe_table(store: Store, name: str) -> Json:
    table, items = store.spans[name], store.num_items
    payload, is_exact = _payload_bytes(store, name)
    return {
        **describe_table(store, name),
        "index_bytes": len(table) * (16 if table.codec else 8) + 8 * (items // ANCHOR_ITEMS + 1),
        "payload_bytes": payload,
        "payload_is_exact": is_exact,
    }


def _payload_bytes(store: Store, name: str) -> tuple[int, bool]:
    """(bytes of all payloads, whether the figure is exact): beyond 640 shards it is an estimate from a sample."""
    shards = _evenly(len(store.shards), 10 * _SAMPLED_SHARDS)
    found = 0
    for number in shards:
        parts = store.shards[number].span_parts(name) if store.spans[name].codec else ()
        found += parts[3].file_bytes if len(parts) == 4 and isinstance(parts[3], Part) else 0
    return found * len(store.shards) // max(1, len(shards)), len(shards) == len(store.shards)


def _evenly(count: int, most: int) -> list[int]:
    """Up to `most` numbers of [0, count), evenly spread, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)).tolist() if count else []


def list_shards(subject: Subject, query: Query) -> Json:
    """Shards [first, first + count): first item, sizes, and bytes on disk of each."""
    store = subject.store
    first = query.whole("first", 0)
    count = query.whole("count", 25, least=1, most=_MOST_SHARDS)
    starts = reader_of(store).starts
    rows = [
        {
            "number": number,
            "name": without_paths(shard.name),
            "split": shard.split,
            "first_item": int(starts[number]),
            "items": shard.num_items,
            "spans": {name: shard.num_spans(name) for name in store.spans},
            "bytes": shard.num_bytes,
        }
        for number, shard in enumerate(store.shards[first : first + count], first)
    ]
    return {"first": first, "total": len(store.shards), "shards": rows}


def count_lengths(subject: Subject, query: Query) -> Json:
    """Histogram of span lengths in a table, from a sample of at most 16,384 spans of 64 shards."""
    store = subject.store
    table = query.choice("table", list(store.spans))
    numbers = _sample_spans(reader_of(store).span_starts(table))
    lengths = store.spans[table].locate(numbers)[1] if numbers.size else numbers
    told: Json = {"table": table, "sampled": int(lengths.size), "total": len(store.spans[table]), "bins": []}
    if lengths.size == 0:
        return told
    edges = _edges(int(lengths.max()))
    edges = edges[np.searchsorted(edges, lengths.min(), side="right") - 1 :]
    counts, _ = np.histogram(lengths, edges)
    return {
        **told,
        "bins": [
            {"start": int(start), "stop": int(stop), "count": int(count)}
            for start, stop, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
        "shortest": int(lengths.min()),
        "median": float(np.median(lengths)),
        "mean": float(lengths.mean()),
        "p90": float(np.quantile(lengths, 0.9)),
        "longest": int(lengths.max()),
    }


def _edges(longest: int) -> Ints:
    """Edges of histogram bins [edge, next edge) that grow by a constant factor; the last bin holds `longest`."""
    if longest < _NUM_BINS:
        return np.arange(longest + 2)
    grown = np.unique(np.geomspace(1, longest + 1, _NUM_BINS).astype(np.int64))
    return np.concatenate(([0], grown[:-1], [longest + 1]))


def _sample_spans(span_starts: Ints) -> Ints:
    """Span numbers to sample: runs at evenly spread positions in evenly spread shards, so that few files are opened."""
    filled = np.flatnonzero(np.diff(span_starts))
    chosen = filled[_evenly(filled.size, _SAMPLED_SHARDS)]
    runs = [np.empty(0, np.int64)]
    for place, shard in enumerate(chosen.tolist()):
        start, stop = int(span_starts[shard]), int(span_starts[shard + 1])
        # A store of few shards gives several runs per shard; of many, one per shard, each at another position.
        for part in range(max(1, _SAMPLED_SHARDS // chosen.size)):
            share = (part + place / chosen.size) / max(1, _SAMPLED_SHARDS // chosen.size)
            first = start + int(share * max(0, stop - start - _SAMPLED_SPANS))
            runs.append(np.arange(first, min(stop, first + _SAMPLED_SPANS)))
    return np.unique(np.concatenate(runs))
