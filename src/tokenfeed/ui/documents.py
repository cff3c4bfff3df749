"""A page of the documents of a store: number, length, payload, and how each begins."""

import numpy as np

from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui.messages import Json, Query, plain
from tokenfeed.ui.samples import read_text
from tokenfeed.ui.subject import Subject

__all__ = ["list_documents"]

_PAGE = 50
_SNIPPET = 40
"""Items of a document that are shown as text."""


def list_documents(subject: Subject, query: Query) -> Json:
    """Documents [first, first + count). Reads and allocates for these alone, however many there are."""
    store = subject.store_of(query.text("source"))
    usual = "documents" if "documents" in store.spans else ""
    table = store.spans[query.choice("table", list(store.spans), usual)]
    first, total = query.whole("first", 0), len(table)
    stop = min(first + query.whole("count", 25, least=1, most=_PAGE), total)
    documents = []
    if first < stop:
        numbers = np.arange(first, stop)
        tokenizer = subject.find(Tokenizer)
        data, begins, ends = table.read(numbers)
        columns = (numbers, *table.locate(numbers), begins, ends)
        for number, first_item, items, begin, end in zip(*(each.tolist() for each in columns), strict=True):
            payload = plain(table.decode(data.data[begin:end], number)) if begin >= 0 else None
            text = read_text(store, first_item, min(items, _SNIPPET), tokenizer)
            documents.append({"document": number, "items": items, "payload": payload, "text": text})
    return {"table": table.name, "total": total, "first": first, "documents": documents}
