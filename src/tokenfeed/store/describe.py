"""Facts about a store for people and scripts: what `tokenfeed inspect` shows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenfeed.store.store import Store

__all__ = ["describe", "describe_columns", "describe_table"]

_SHOWN_ITEMS = 16
_SHOWN_TOKENS = 200


def describe(store: Store, *, sample: int = 0, decode: Callable[[Any], str] | None = None) -> dict[str, Any]:
    """Facts about a store as JSON, with window and span number `sample` decoded. Reads no other items or spans.

    `decode` makes text of tokens.
    """
    return {
        "num_items": store.num_items,
        "num_shards": len(store.shards),
        "num_bytes": sum(shard.num_bytes for shard in store.shards),
        "splits": store.splits,
        "tokenizer": store.tokenizer,
        "provenance": dict(store.provenance),
        "identity": store.identity,
        "columns": describe_columns(store),
        "spans": [describe_table(store, name) for name in store.spans],
        "samples": _samples(store, sample, decode),
    }


def describe_columns(store: Store) -> list[dict[str, Any]]:
    """Name, dtype and size of each column."""
    return [
        {"name": name, "dtype": str(column), "bytes": store.num_items * column.item_bytes}
        for name, column in store.columns.items()
    ]


def describe_table(store: Store, name: str) -> dict[str, Any]:
    """Name, codec and number of spans of a span table."""
    table = store.spans[name]
    codec = table.codec.name if table.codec else None
    return {"name": name, "codec": codec, "spans": len(table), "mean_items": store.num_items / max(1, len(table))}


def _samples(store: Store, number: int, decode: Callable[[Any], str] | None) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = {}
    windows = store.windows(_SHOWN_ITEMS, extra=0)
    if number < len(windows):
        start, window = number * _SHOWN_ITEMS, windows[number]
        title = f"Items {start:,} to {start + _SHOWN_ITEMS:,}"
        samples[title] = {name: _short(window.column(name)) for name in store.columns}
        if decode is not None:
            samples[title]["text"] = decode(window.tokens)
    for name, table in store.spans.items():
        if number < len(table):
            span = table[number]
            samples[f"Span {number:,} of {name}"] = {
                "items": f"[{span.start:,}, {span.stop:,})",
                "payload": span.payload if span.has_payload else "none",
            }
            if decode is not None:
                items = np.arange(span.start, min(span.stop, span.start + _SHOWN_TOKENS))
                text = decode(store.windows(1, extra=0).read(items).column("tokens")[:, 0])
                samples[f"Span {number:,} of {name}"]["text"] = text
    return samples


def _short(array: Any) -> str:
    return np.array2string(array, threshold=_SHOWN_ITEMS, edgeitems=3, max_line_width=100)
