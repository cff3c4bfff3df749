"""Contents of a store: columns, span tables, splits, shards page by page, and lengths of documents."""

import numpy as np

from tokenfeed.kernels.spans import ANCHOR_ITEMS
from tokenfeed.storage.files import Part
from tokenfeed.store.describe import describe_columns, describe_table
from tokenfeed.store.reader import Reader
from tokenfeed.store.store import Store
from tokenfeed.types import Ints
from tokenfeed.ui.messages import Json, Query, plain, without_paths
from tokenfeed.ui.subject import Subject

__all__ = ["count_lengths", "describe_store", "list_shards", "reader_of", "sample_spans"]

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
    store = subject.store_of(query.text("source"))
    return {
        "name": subject.name,
        "items": store.num_items,
        "shards": len(store.shards),
        "columns": describe_columns(store),
        "spans": [_describe_table(store, name) for name in store.spans],
        "splits": [{"name": name, **size._asdict()} for name, size in store.splits.items() if name],
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
    store = subject.store_of(query.text("source"))
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
    store = subject.store_of(query.text("source"))
    table = query.choice("table", list(store.spans))
    numbers = sample_spans(reader_of(store).span_starts(table), _SAMPLED_SPANS)
    lengths = store.spans[table].locate(numbers)[1] if numbers.size else numbers
    limit = query.whole("length", 2048, least=1)
    told: Json = {"table": table, "sampled": int(lengths.size), "total": len(store.spans[table]), "bins": []}
    if lengths.size == 0:
        return told
    edges = _edges(int(lengths.max()))
    edges = edges[np.searchsorted(edges, lengths.min(), side="right") - 1 :]
    bins = zip(edges.tolist(), edges[1:].tolist(), np.histogram(lengths, edges)[0].tolist(), strict=False)
    return {
        **told,
        "bins": [dict(zip(("start", "stop", "count"), each, strict=True)) for each in bins],
        "shortest": int(lengths.min()),
        "median": float(np.median(lengths)),
        "mean": float(lengths.mean()),
        "p90": float(np.quantile(lengths, 0.9)),
        "longest": int(lengths.max()),
        "limit": limit,
        "longer": float((lengths > limit).mean()),
    }


def _edges(longest: int) -> Ints:
    """Edges of histogram bins [edge, next edge) that grow by a constant factor; the last bin holds `longest`."""
    if longest < _NUM_BINS:
        return np.arange(longest + 2)
    grown = np.unique(np.geomspace(1, longest + 1, _NUM_BINS).astype(np.int64))
    return np.concatenate(([0], grown[:-1], [longest + 1]))


def sample_spans(span_starts: Ints, run: int) -> Ints:
    """Spans to sample: all, or 64 runs of so many, each within a shard, so that few files are opened."""
    total = int(span_starts[-1])
    if total <= _SAMPLED_SHARDS * run:
        return np.arange(total)
    firsts = np.linspace(0, total - 1, _SAMPLED_SHARDS).astype(np.int64)
    ends = span_starts[np.searchsorted(span_starts, firsts, side="right")]
    runs = zip(firsts, np.minimum(firsts + run, ends), strict=True)
    return np.unique(np.concatenate([np.arange(*each) for each in runs]))
