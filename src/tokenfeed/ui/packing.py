"""How documents fill rows of one length: drawn to scale, and what is left empty.

The rows are those that `tokenfeed pack` would make of some documents, by the same kernels, in memory: nothing is
written, and no plan need be there.
"""

from itertools import pairwise

import numpy as np

from tokenfeed.kernels import bestfit
from tokenfeed.store.packing import Block
from tokenfeed.store.store import Store
from tokenfeed.types import Ints
from tokenfeed.ui.query import Query
from tokenfeed.ui.subject import Subject
from tokenfeed.ui.telling import Json

__all__ = ["pack_some", "show_rows"]

_MOST_DOCUMENTS = 4096
_MOST_ROWS = 40
_MOST_LENGTH = 1 << 20


class _Some:
    """The lengths of some documents, as the packer reads them."""

    def __init__(self, lengths: Ints) -> None:
        self._lengths = lengths
        self.count = lengths.size

    def read(self, first: int, out: Ints) -> None:
        out[:] = self._lengths[first : first + out.size]


class _Kept:
    """Rows, kept in memory where the packer writes them to files."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.rows: list[list[tuple[int, int]]] = []
        """(first item, count) of the pieces of each."""

    def write(self, rows: Ints, pieces: Ints) -> None:
        bounds = [*rows.tolist(), len(pieces)]
        lengths = pieces[:, 1] & 0xFFFFFFFF
        whole = list(zip(pieces[:, 0].tolist(), lengths.tolist(), strict=True))
        self.rows += [whole[start:stop] for start, stop in pairwise(bounds)]
        self.num_rows += rows.size


def pack_some(lengths: Ints, width: int) -> list[list[tuple[int, int]]]:
    """Rows of up to `width` items, each a list of (first item, count); documents lie one behind the other from 0 on."""
    kept = _Kept()
    if lengths.size:
        block = Block(_Some(lengths), 0, lengths.size, width, 0)  # type: ignore[arg-type]
        for _ in block.run(kept):  # type: ignore[arg-type]
            pass
    return kept.rows


def show_rows(subject: Subject, query: Query) -> Json:
    """The rows of `count` documents from the `first` on, and what they waste beside padding each by itself."""
    store = subject.store
    table = query.choice("table", list(store.spans))
    length = query.whole("length", 2048, least=1, most=_MOST_LENGTH)
    count = query.whole("count", 512, least=1, most=_MOST_DOCUMENTS)
    total = len(store.spans[table])
    first = min(query.whole("first", 0), max(0, total - count))
    lengths = _lengths(store, table, first, min(count, total - first))
    width = length + 1
    starts = np.concatenate(([0], np.cumsum(lengths)))
    rows = pack_some(lengths, width)
    items = int(starts[-1])
    chosen = query.whole("row", 0, most=max(0, len(rows) - 1))
    alone = int((-(-lengths // width)).sum()) * width
    return {
        "table": table,
        "length": length,
        "first": first,
        "documents": int(lengths.size),
        "total": total,
        "rows": len(rows),
        "items": items,
        "used": items / (len(rows) * width) if rows else 1.0,
        "used_alone": items / alone if alone else 1.0,
        "cut": int((lengths > width).sum()),
        "shown_from": chosen,
        "shown": [_describe_row(row, starts, first) for row in rows[chosen : chosen + _MOST_ROWS]],
    }


def _lengths(store: Store, table: str, first: int, count: int) -> Ints:
    lengths: Ints = store.spans[table].locate(np.arange(first, first + count))[1]
    return np.minimum(lengths, bestfit.LONGEST)


def _describe_row(row: list[tuple[int, int]], starts: Ints, first: int) -> list[Json]:
    """Its pieces: which document, which of its items, how many."""
    described = []
    for item, count in row:
        document = int(np.searchsorted(starts, item, side="right")) - 1
        begin, whole = int(item - starts[document]), int(starts[document + 1] - starts[document])
        described.append({"document": first + document, "start": begin, "count": count, "of": whole})
    return described
