"""What is in a store, in words and numbers, for people and scripts to look at."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenfeed.store.store import Store

__all__ = ["Description", "describe"]

_SHOWN_ITEMS = 16


@dataclass(frozen=True)
class Description:
    """What `tokenfeed inspect` shows."""

    num_items: int
    num_shards: int
    num_bytes: int
    splits: list[str]
    tokenizer: str | None
    provenance: dict[str, Any]
    identity: str
    columns: list[dict[str, Any]]
    spans: list[dict[str, Any]]
    samples: dict[str, dict[str, Any]]
    """A window and a document, decoded."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe(store: Store, *, sample: int = 0) -> Description:
    """Look into a store. Reads one window, one document of every table, and nothing else."""
    columns = [
        {"name": name, "dtype": str(column), "bytes": store.num_items * column.item_bytes}
        for name, column in store.columns.items()
    ]
    spans = [
        {
            "name": name,
            "codec": table.codec.name if table.codec else None,
            "spans": len(table),
            "mean_items": store.num_items / max(1, len(table)),
        }
        for name, table in store.spans.items()
    ]
    return Description(
        store.num_items,
        len(store.shards),
        sum(shard.num_bytes for shard in store.shards),
        store.splits,
        store.tokenizer,
        dict(store.provenance),
        store.identity,
        columns,
        spans,
        _samples(store, sample),
    )


def _samples(store: Store, number: int) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = {}
    windows = store.windows(_SHOWN_ITEMS, extra=0)
    if number < len(windows):
        start = number * _SHOWN_ITEMS
        window = windows[number]
        samples[f"Items {start:,} to {start + _SHOWN_ITEMS:,}"] = {
            name: _short(window.column(name)) for name in store.columns
        }
    for name, table in store.spans.items():
        if number < len(table):
            span = table[number]
            samples[f"Span {number:,} of {name}"] = {
                "items": f"[{span.start:,}, {span.stop:,})",
                "payload": span.payload if span.has_payload else "none",
            }
    return samples


def _short(array: Any) -> str:
    return np.array2string(array, threshold=_SHOWN_ITEMS, edgeitems=3, max_line_width=100)
