"""Facts about a store for people and scripts: what `tokenfeed inspect` shows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenfeed.storage.folder import PathLike
from tokenfeed.store.numbers import outside
from tokenfeed.store.resolve import resolve
from tokenfeed.store.spans import Span
from tokenfeed.store.store import Store

__all__ = ["describe", "describe_columns", "describe_growth", "describe_table"]

_SHOWN_ITEMS = 16
_MOST_NUMBERS = 1024
_SHOWN_TOKENS = 200


def describe(store: Store, *, sample: int = 0, decode: Callable[[Any], str] | None = None) -> dict[str, Any]:
    """Facts about a store as JSON, with window and span number `sample` decoded. Reads no other items or spans.

    `decode` makes text of tokens.
    """
    spans = {name: table[sample] for name, table in store.spans.items() if sample < len(table)}
    num_windows = len(store.windows(_SHOWN_ITEMS, extra=0))
    most = max([num_windows, *map(len, store.spans.values())])
    if sample >= max(1, most):
        raise outside(sample, most)
    start = sample * _SHOWN_ITEMS
    return {
        "num_items": store.num_items,
        "num_shards": len(store.shards),
        "num_bytes": sum(shard.num_bytes for shard in store.shards),
        "split": store.split,
        "splits": [{"name": name, **size._asdict()} for name, size in store.splits.items()],
        "tokenizer": store.tokenizer,
        "provenance": dict(store.provenance),
        "identity": store.identity,
        "version": store.version,
        "versions": [each._asdict() for each in store.versions],
        "columns": describe_columns(store),
        "spans": [describe_table(store, name) for name in store.spans],
        "sample": {
            "number": sample,
            "items": _describe_items(store, start, start + _SHOWN_ITEMS, decode) if sample < num_windows else None,
            "spans": [_describe_span(store, name, span, decode) for name, span in spans.items()],
        },
    }


def _describe_items(store: Store, start: int, stop: int, decode: Callable[[Any], str] | None) -> dict[str, Any]:
    """Items [start, stop), or as many as make up few numbers; NaN and infinities, which JSON lacks, become null."""
    items = store.windows(1, extra=0).read(np.arange(start, stop))
    columns = {name: items.column(name)[:, 0] for name in store.columns}
    shown = {name: values[: _MOST_NUMBERS // max(1, values[0].size)] for name, values in columns.items()}
    return {
        "start": start,
        "stop": stop,
        "columns": [
            {"name": name, "values": np.where(np.isfinite(values), values, np.array(None)).tolist()}
            for name, values in shown.items()
        ],
        **({} if decode is None else {"text": decode(columns["tokens"])}),
    }


def _describe_span(store: Store, table: str, span: Span, decode: Callable[[Any], str] | None) -> dict[str, Any]:
    shown = np.arange(span.start, min(span.stop, span.start + _SHOWN_TOKENS))
    return {
        "table": table,
        "start": span.start,
        "stop": span.stop,
        "payload": span.payload if span.has_payload else None,
        **({} if decode is None else {"text": decode(store.windows(1, extra=0).read(shown).column("tokens")[:, 0])}),
    }


def describe_columns(store: Store) -> list[dict[str, Any]]:
    """Name, dtype and size of each column."""
    return [
        {"name": name, "dtype": str(column), "bytes": store.num_items * column.item_bytes}
        for name, column in store.columns.items()
    ]


def describe_table(store: Store, name: str) -> dict[str, Any]:
    """Name, codec and number of spans of a span table."""
    spans, codec = len(store.spans[name]), store.spans[name].codec_name
    return {"name": name, "codec": codec, "spans": spans, "mean_items": store.num_items / max(1, spans)}


def describe_growth(path: PathLike) -> str:
    """Which checkpoints the last version of a store affects, and how to go on from them; "" for the first version."""
    whole = resolve(path)
    changes, version, is_lost = [], len(whole.manifest.versions), False
    for split in whole.splits or ("",):
        before, after = ("none", None, *(each.identity for each in whole.select(split or None).versions))[-2:]
        is_lost |= before is None
        if before != after:
            changes.append(f"{split or 'data'} {before or 'lost'} → {after}")
    if version < 2 or not changes:
        return ""
    told = f"version {version} of the store, identity of {', '.join(changes)}"
    if is_lost:
        return f"{told}. Checkpoints of earlier versions cannot go on: shards that they need were replaced"
    return (
        f"{told}. Checkpoints made before need tokenfeed.open(path, version={version - 1}); a run that should go on "
        "with new documents needs them in a store of their own: loader.amend(grow=rows)"
    )
