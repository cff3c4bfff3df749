"""Summary of a store: sizes, columns, span tables, splits and origin."""

from tokenfeed.store.describe import describe_columns, describe_table
from tokenfeed.ui.messages import Json, Query, plain, without_paths
from tokenfeed.ui.subject import Subject

__all__ = ["describe_store"]


def describe_store(subject: Subject, query: Query) -> Json:
    """Summary of the store. Takes O(shards) time on the server; the answer stays small."""
    store = subject.store_of(query.text("source"))
    return {
        "items": store.num_items,
        "shards": len(store.shards),
        "columns": describe_columns(store),
        "spans": [describe_table(store, name) for name in store.spans],
        "splits": [{"name": name, **size._asdict()} for name, size in store.splits.items() if name],
        "tokenizer": None if store.tokenizer is None else without_paths(store.tokenizer),
        "identity": store.identity if len(store.shards) else None,
        "provenance": plain(dict(store.provenance), clean=True),
    }
