"""What packing wastes by row length: documents packed in memory, as `tokenfeed pack` packs them. Nothing is written."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenfeed.kernels import bestfit
from tokenfeed.store.packing import pack_block
from tokenfeed.types import Ints
from tokenfeed.ui.messages import Json, Query
from tokenfeed.ui.subject import Subject

__all__ = ["pack_some", "show_waste"]

_MOST_DOCUMENTS = 4096
_MOST_PACKED = 1 << 18
"""Rows of one length that are packed."""
_MOST_LENGTH = 1 << 20
_LENGTHS = tuple(1 << power for power in range(8, 18))
_FEWEST_ROWS = 8
"""Rows of a usual length; where there are fewer, the last one would count too much."""


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


def show_waste(subject: Subject, query: Query) -> Json:
    """How full packed and padded rows of several lengths are, for `count` documents from number `first` on.

    `length` is one more length, such as that of the run. Lengths that would make too many rows are left out.
    """
    store = subject.store_of(query.text("source"))
    table = query.choice("table", list(store.spans))
    own = query.whole("length", 0, most=_MOST_LENGTH)
    count = query.whole("count", 1024, least=1, most=_MOST_DOCUMENTS)
    total = len(store.spans[table])
    first = min(query.whole("first", 0), max(0, total - count))
    lengths = store.spans[table].locate(np.arange(first, min(first + count, total)))[1]
    lengths = np.minimum(lengths, bestfit.LONGEST)
    items = int(lengths.sum())
    usual = {length for length in _LENGTHS if _FEWEST_ROWS * length <= items}
    chosen = sorted(usual | ({own} if own else set()))
    return {
        "table": table,
        "first": first,
        "documents": int(lengths.size),
        "total": total,
        "lengths": [_describe(lengths, length) for length in chosen if items <= _MOST_PACKED * (length + 1)],
    }


def _describe(lengths: Ints, length: int) -> Json:
    """How full rows of `length` inputs, and one target more, are; those of padded documents hold one document each."""
    width = length + 1
    rows, padded = len(pack_some(lengths, width)), int((-(-lengths // width)).sum())
    items = int(lengths.sum())
    return {
        "length": length,
        "rows": rows,
        "used": items / (rows * width) if rows else 1.0,
        "used_padded": items / (padded * width) if padded else 1.0,
        "longer": int((lengths > width).sum()),
    }
