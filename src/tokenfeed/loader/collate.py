"""Documents of any length as arrays of one shape: `Loader(store.documents(), 32, collate=pad(multiple_of=64))`."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.store.batch import HostBatch
from tokenfeed.types import Array, Bools, Ints

__all__ = ["Padded", "Truncate", "pad"]

Truncate = Literal["end", "start", "error"]


class Padded(NamedTuple):
    """Documents as rows: `columns[name]` is (rows, width, …), and `mask` is False for padding."""

    columns: dict[str, Array]
    lengths: Ints
    mask: Bools


def pad(
    *, multiple_of: int = 1, max_length: int | None = None, truncate: Truncate = "end", value: int = 0
) -> Callable[[HostBatch], Padded]:
    """A collate function: rows as wide as the longest document of the batch, rounded up to a multiple.

    A document longer than `max_length` loses its end, or its start, or is an error. `value` fills what is left.
    """
    if multiple_of < 1 or (max_length is not None and max_length < 1) or truncate not in ("end", "start", "error"):
        raise ArgumentError(f"pad(multiple_of={multiple_of}, max_length={max_length}, truncate={truncate!r}) cannot be")

    def collate(batch: HostBatch) -> Padded:
        if batch.rows.layout.length is not None:
            raise ArgumentError("only documents are padded; windows have one length")
        kept = batch.lengths
        if max_length is not None:
            if truncate == "error" and (kept > max_length).any():
                number = batch.indices[int(np.argmax(kept))]
                raise ArgumentError(f"document {number} has {kept.max():,} items; max_length is {max_length:,}")
            kept = np.minimum(kept, max_length)
        width = -(-int(kept.max(initial=0)) // multiple_of) * multiple_of
        mask = np.arange(width) < kept[:, None]
        cut = batch.lengths - kept if truncate == "start" else np.zeros_like(kept)
        # Item j of row i of the result is item offsets[i] + cut[i] + j of the batch.
        sources = ((batch.offsets[:-1] + cut)[:, None] + np.arange(width))[mask]
        columns = {}
        for name, column in batch.columns.items():
            rows = np.full((len(batch), width, *column.shape[1:]), value, column.dtype)
            rows[mask] = column[sources]
            columns[name] = rows
        return Padded(columns, kept, mask)

    return collate
