"""Facts about a store for people and scripts: what `tokenfeed inspect` shows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenfeed.storage.folder import PathLike
from tokenfeed.store.numbers import outside
from tokenfeed.store.resolve import resolve
from tokenfeed.store.store import Store

__all__ = ["describe", "describe_columns", "describe_growth", "describe_table"]

_SHOWN_ITEMS = 16
_SHOWN_TOKENS = 200


def describe(store: Store, *, sample: int = 0, decode: Callable[[Any], str] | None = None) -> dict[str, Any]:
    """Facts about a store as JSON, with window and span number `sample` decoded. Reads no other items or spans.

    `decode` makes text of tokens.
    """
    samples: dict[str, dict[str, Any]] = {}
    windows = store.windows(_SHOWN_ITEMS, extra=0)
    if sample < len(windows):
        first, window = sample * _SHOWN_ITEMS, windows[sample]
        samples[f"Items {first:,} to {first + _SHOWN_ITEMS:,}"] = {
            name: np.array2string(window.column(name), threshold=_SHOWN_ITEMS, edgeitems=3, max_line_width=100)
            for name in store.columns
        } | ({} if decode is None else {"text": decode(window.tokens)})
    most = max([len(windows), *map(len, store.spans.values())])
    if sample >= max(1, most):
        raise outside(sample, most)
    for name, table in store.spans.items():
        if sample < len(table):
            span = table[sample]
            payload = span.payload if span.has_payload else "none"
            items = f"[{span.start:,}, {span.stop:,})"
            samples[f"Span {sample:,} of {name}"] = {"items": items, "payload": payload}
            if decode is not None:
                shown = np.arange(span.start, min(span.stop, span.start + _SHOWN_TOKENS))
                text = decode(store.windows(1, extra=0).read(shown).column("tokens")[:, 0])
                samples[f"Span {sample:,} of {name}"]["text"] = text
    return {
        "num_items": store.num_items,
        "num_shards": len(store.shards),
        "num_bytes": sum(shard.num_bytes for shard in store.shards),
        "split": store.split,
        "splits": {name: size._asdict() for name, size in store.splits.items()},
        "tokenizer": store.tokenizer,
        "provenance": dict(store.provenance),
        "identity": store.identity,
        "version": store.version,
        "versions": [each._asdict() for each in store.versions],
        "columns": describe_columns(store),
        "spans": [describe_table(store, name) for name in store.spans],
        "samples": samples,
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
