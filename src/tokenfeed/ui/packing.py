"""Documents packed into rows of one length, drawn to scale, with the space that stays empty.

The rows are those `tokenfeed pack` would make of these documents, made in memory by the same kernels. Nothing is
written, and no packing plan is needed.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.kernels import bestfit
from tokenfeed.store.packing import pack_block
from tokenfeed.types import Ints
from tokenfeed.ui.messages import Json, Query
from tokenfeed.ui.subject import Subject

__all__ = ["pack_some", "show_rows"]

_MOST_DOCUMENTS = 4096
_MOST_ROWS = 40
_MOST_COMPARED = 1024
"""Documents packed into rows of several lengths."""
_MOST_PACKED = 1 << 18
_MOST_LENGTH = 1 << 20


def pack_some(lengths: Ints, width: int) -> list[list[tuple[int, int]]]:
    """Rows of up to `width` items, each a list of (first item, count); the documents follow one another from item 0."""

    def read(first: int, out: npt.NDArray[np.uint32]) -> None:
        out[:] = lengths[first : first + out.size]

    packed: list[list[tuple[int, int]]] = []
    counts = np.zeros(bestfit.NUM_COUNTS, np.int64)
    for _, rows, pieces in pack_block(read, 0, lengths.size, width, 0, 0, counts):
        whole = list(zip(pieces[:, 0].tolist(), (pieces[:, 1] & 0xFFFFFFFF).tolist(), strict=True))
        packed += [whole[start:stop] for start, stop in pairwise([*rows.tolist(), len(pieces)])]
    return packed


def show_rows(subject: Subject, query: Query) -> Json:
    """The rows of `count` documents from number `first` on: how full they are, and how full padded rows would be."""
    store = subject.store_of(query.text("source"))
    table = query.choice("table", list(store.spans))
    length = query.whole("length", 2048, least=1, most=_MOST_LENGTH)
    count = query.whole("count", 512, least=1, most=_MOST_DOCUMENTS)
    total = len(store.spans[table])
    first = min(query.whole("first", 0), max(0, total - count))
    lengths = store.spans[table].locate(np.arange(first, min(first + count, total)))[1]
    lengths = np.minimum(lengths, bestfit.LONGEST)
    width = length + 1
    if lengths.sum() > _MOST_PACKED * width:
        raise ArgumentError(
            f"{quantity(lengths.size, 'document')} of {lengths.sum():,} items make more than {_MOST_PACKED:,} rows, "
            "which the page does not pack. Choose longer rows or fewer documents"
        )
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
        "by_length": _by_length(lengths),
        "shown_from": chosen,
        "shown": [_describe_row(row, starts, first) for row in rows[chosen : chosen + _MOST_ROWS]],
    }


def _by_length(lengths: Ints) -> list[Json]:
    """How full rows of other lengths are."""
    some = lengths[:_MOST_COMPARED]
    told = []
    for length in (1 << power for power in range(8, 18)):
        if 8 * length <= some.sum() <= _MOST_PACKED * length:  # the last row of few would count too much
            rows, alone = len(pack_some(some, length + 1)), int((-(-some // (length + 1))).sum())
            used, used_alone = (int(some.sum()) / max(1, number * (length + 1)) for number in (rows, alone))
            longer = float((some > length).mean())
            told.append({"length": length, "used": used, "used_alone": used_alone, "longer": longer})
    return told


def _describe_row(row: list[tuple[int, int]], starts: Ints, first: int) -> list[Json]:
    """The pieces of a row: document, first item within the document, number of items."""
    described = []
    for item, count in row:
        document = int(np.searchsorted(starts, item, side="right")) - 1
        begin, whole = int(item - starts[document]), int(starts[document + 1] - starts[document])
        described.append({"document": first + document, "start": begin, "count": count, "of": whole})
    return described
