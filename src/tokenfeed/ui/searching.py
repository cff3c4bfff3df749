"""Search for documents by text in their payloads."""

import json
import time
from typing import Any

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json, plain

__all__ = ["search_documents"]

_SECONDS = 0.5
_SLICE = 512
_MOST_FOUND = 20


def search_documents(subject: Subject, query: Query) -> Json:
    """Documents from number `first` on whose payload contains `text`, ignoring case.

    A request reads payloads for half a second, or until it has found twenty; `next` says where to continue.
    """
    text = query.text("text")
    if text is None:
        raise ArgumentError("the search needs a text to look for")
    wanted = text.casefold()
    store = subject.store_of(query.text("source"))
    table = store.spans[query.choice("table", list(store.spans), "documents" if "documents" in store.spans else "")]
    number, total = query.whole("first", 0), len(table)
    found: list[Json] = []
    deadline = time.monotonic() + _SECONDS
    while number < total and len(found) < _MOST_FOUND and time.monotonic() < deadline:
        data, starts, stops = table.read(np.arange(number, min(number + _SLICE, total)))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if len(found) == _MOST_FOUND:
                break
            if start >= 0:
                payload = table.decode(data.data[start:stop], number)
                if wanted in _read(payload).casefold():
                    found.append({"document": number, "payload": plain(payload)})
            number += 1
    return {"text": text, "found": found, "next": number, "total": total}


def _read(payload: Any) -> str:
    """The payload as the page shows it."""
    shown = plain(payload)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
