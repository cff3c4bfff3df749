"""Forms of a batch beside padded rows: rows laid end to end without padding, and slices for context parallelism.

A form holds pairs: an input, and the target that follows it in its row. Three ways to count them:

item    place in a column of the batch, its rows laid end to end
place   number of a pair in the whole batch, before it is divided among ranks
slot    number of a pair in the arrays of the form
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError
from tokenfeed.store.numbers import lay
from tokenfeed.types import Array, Bools, Ints

if TYPE_CHECKING:
    from tokenfeed.store.batch import HostBatch

__all__ = ["Arrays", "ContextParallel", "Cut", "arrange", "cut_flat"]


class Arrays(NamedTuple):
    """A batch in another form. All arrays but the last two have one shape: (total,), or (rows, length) of a slice."""

    inputs: Any
    targets: Any
    """Items that follow the inputs. None where rows have none."""
    loss_mask: Any
    """Whether each target counts. None where all do."""
    loss_weights: Any
    """Weight of each target, float32; 0 where it does not count. None where all count as 1."""
    position_ids: Any
    """Place of every input within its document's part of the row, int32."""
    cu_seqlens: Any
    """Where the parts of documents begin in the batch, laid end to end and undivided, and the end: int32."""
    cu_seqlens_padded: Any
    """The same with padding, where parts are padded to be divided; else `cu_seqlens`."""
    max_seqlen: int
    """Length of the longest part, with its padding."""


class Cut(NamedTuple):
    """Which pairs a form has: runs that are side by side in a row, in the order of the form."""

    shape: tuple[int, ...]
    first_items: Ints
    """Item of the first input of each run."""
    first_places: Ints
    counts: Ints
    """Pairs of each run."""
    real: Ints
    """Pairs of each run that are no padding: the first ones."""
    bounds: Ints
    """Places at which parts of documents begin, padding not counted, and the end."""
    padded: Ints
    """The same, with padding."""
    extra: int
    """Items that a run has after its inputs: 1 where there are targets."""

    @property
    def max_seqlen(self) -> int:
        return int(np.diff(self.padded).max(initial=0))

    @property
    def is_padded(self) -> bool:
        return bool((self.real < self.counts).any())

    def take(self, column: Array) -> tuple[Array, Ints]:
        """The items of all runs and no others, and where each run begins in them. A view where they lie side by side.

        `column` is one of the batch, its rows laid end to end.
        """
        sizes = self.counts + self.extra
        starts = np.cumsum(sizes) - sizes
        if not self.counts.size:
            return column[:0], starts
        first, total = int(self.first_items[0]), int(sizes.sum())
        if not self.is_padded and (self.first_items - first == starts).all():
            return column[first : first + total], starts
        sizes = np.where(self.real > 0, self.real + self.extra, 0)
        taken = np.zeros((total, *column.shape[1:]), column.dtype)
        taken[lay(starts, sizes)] = column[lay(self.first_items, sizes)]
        return taken, starts

    def is_real(self) -> Bools:
        """Which slots are no padding."""
        real: Bools = lay(np.zeros_like(self.counts), self.counts) < np.repeat(self.real, self.counts)
        return real


def _real_pairs(batch: "HostBatch") -> Ints:
    """Pairs of each row whose items are no padding."""
    layout = batch.rows.layout
    pairs = batch.lengths - min(1, layout.extra)
    return np.clip(pairs, 0, None if layout.length is None else layout.length)


def _bounds(batch: "HostBatch", length: int) -> Ints:
    """Places at which parts of documents begin in rows of `length` pairs, and the end.

    Rows are the parts where the store does not say where documents begin.
    """
    layout = batch.rows.layout
    if layout.table not in layout.tables:
        return np.arange(len(batch) + 1) * length
    return batch.spans_of(length=length).cu_seqlens().astype(np.int64)


def cut_flat(batch: "HostBatch") -> Cut:
    """All pairs of real items, row after row; a document of one item has none.

    rows a a b · ·  and  c c c d d, 4 inputs each:  inputs a a c c c d,  targets a b c c d d,  bounds 0 2 5 6
    """
    layout = batch.rows.layout
    counts = _real_pairs(batch)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    bounds = offsets
    if layout.length is not None:
        rows, within = np.divmod(_bounds(batch, layout.length), layout.length)
        bounds = offsets[rows] + np.minimum(within, np.append(counts, 0)[rows])
    bounds, kept = np.unique(bounds), counts > 0
    return Cut(
        (int(offsets[-1]),),
        batch.offsets[:-1][kept],
        offsets[:-1][kept],
        counts[kept],
        counts[kept],
        bounds,
        bounds,
        min(1, layout.extra),
    )


@dataclass(frozen=True)
class ContextParallel:
    """Which part of every row, or of every document, is that of one context-parallel rank.

    All ranks of a context-parallel group read the same rows: give the Loader the rank and world size of the
    data-parallel dimension alone.

    >>> ContextParallel(rank=1, size=2).indices(8).tolist()      # of chunks 0 1 2 3, rank 0 has 0 and 3
    [2, 3, 4, 5]
    """

    rank: int
    size: int
    layout: Literal["zigzag", "contiguous"] = "zigzag"
    """Zig-zag: of 2 · size chunks, rank r has r and 2 · size − 1 − r, so that causal attention is equal work for all.
    Contiguous: of `size` chunks, rank r has r."""
    by: Literal["row", "document"] = "row"
    """What is divided: rows, into (rows, length / size); or the parts of documents in them, each padded to whole chunks
    and laid end to end, as `thd_get_partitioned_indices` of Transformer Engine does."""

    def __post_init__(self) -> None:
        whole = all(isinstance(each, int | np.integer) for each in (self.rank, self.size))
        if not whole or self.size < 1 or not 0 <= self.rank < self.size:
            raise ArgumentError(f"context-parallel rank {self.rank!r} of {self.size!r}; expected 0 <= rank < size")
        if self.layout not in ("zigzag", "contiguous") or self.by not in ("row", "document"):
            raise ArgumentError(
                f"ContextParallel(layout={self.layout!r}, by={self.by!r}); the layout is 'zigzag' or 'contiguous', by "
                "'row' or 'document'"
            )

    @classmethod
    def of(cls, mesh: Any, **options: Any) -> "ContextParallel":
        """This process in one dimension of a DeviceMesh: `ContextParallel.of(mesh["cp"])`."""
        if mesh.ndim != 1:
            names = mesh.mesh_dim_names or ("cp",)
            raise ArgumentError(f"the mesh has {mesh.ndim} dimensions; give one of them: mesh[{names[-1]!r}]")
        return cls(mesh.get_local_rank(), mesh.size(), **options)

    @property
    def num_chunks(self) -> int:
        """Chunks that a row or a document is divided into: what its length must be a multiple of."""
        return self.size * (2 if self.layout == "zigzag" else 1)

    @property
    def chunks(self) -> Ints:
        """Numbers of the chunks of this rank."""
        return np.array([self.rank] if self.layout == "contiguous" else [self.rank, 2 * self.size - 1 - self.rank])

    def indices(self, length: int) -> Ints:
        """Places in a row of `length` inputs that this rank has, in its order."""
        chunk = self._divide(length)
        return lay(self.chunks * chunk, np.full(self.chunks.size, chunk))

    def _divide(self, length: int) -> int:
        """Length of a chunk."""
        if length % self.num_chunks:
            below = length - length % self.num_chunks
            fitting = " or ".join(f"{each:,}" for each in (below, below + self.num_chunks) if each)
            twice = "2 · " if self.layout == "zigzag" else ""
            raise ArgumentError(
                f"rows of {length:,} inputs cannot be divided among {self.size} context-parallel ranks: the length "
                f"must be a multiple of {twice}size = {self.num_chunks}. Make rows of {fitting}"
            )
        return length // self.num_chunks

    def cut(self, batch: "HostBatch") -> Cut:
        """The pairs of this rank. Rows of documents, which are padded anyway, are padded to whole chunks; an input that
        has no target is padding there.
        """
        layout = batch.rows.layout
        extra = min(1, layout.extra)
        if self.by == "document":
            whole = cut_flat(batch)
            lengths = np.diff(whole.bounds)
            sizes = -(-lengths // self.num_chunks)
            padded = np.concatenate(([0], np.cumsum(sizes * self.num_chunks)))
            # A part lies in one row, and each run of `whole` is a row.
            rows = np.searchsorted(whole.first_places, whole.bounds[:-1], side="right") - 1
            starts = whole.first_items[rows] + whole.bounds[:-1] - whole.first_places[rows]
            bounds = whole.bounds
            shape: tuple[int, ...] = (int(sizes.sum()) * self.chunks.size,)
        else:
            length = batch.length
            if layout.length is None:
                length = -(-length // self.num_chunks) * self.num_chunks
            sizes = np.full(len(batch), self._divide(length))
            lengths = _real_pairs(batch) if layout.length is None else np.full(len(batch), length)
            padded = np.arange(len(batch) + 1) * length
            starts, bounds = batch.offsets[:-1], _bounds(batch, length)
            shape = len(batch), length // self.size
        firsts = sizes[:, None] * self.chunks
        return Cut(
            shape,
            (starts[:, None] + firsts).reshape(-1),
            (padded[:-1, None] + firsts).reshape(-1),
            np.repeat(sizes, self.chunks.size),
            np.clip(lengths[:, None] - firsts, 0, sizes[:, None]).reshape(-1),
            bounds,
            padded if self.by == "document" else bounds,
            extra,
        )


def weigh(batch: "HostBatch", cut: Cut) -> tuple[Bools | None, Array | None]:
    """Mask and weights of the pairs of a cut; None where all count, and where there are no weights but the mask."""
    layout = batch.rows.layout
    if cut.extra == 0:
        return None, None
    items, found = lay(cut.first_items, cut.counts), None
    if layout.length is None:
        learned = batch.learned
        if learned is not None:
            found = learned[np.minimum(items + 1, learned.shape[0] - 1)]
    else:
        rows, within = np.divmod(items, layout.length + layout.extra)
        grid = batch.loss_weights if layout.is_weighted else batch.loss_mask
        if grid is not None:
            found = grid.reshape(-1)[np.minimum(rows * layout.length + within, grid.size - 1)]
    if cut.is_padded:
        real = cut.is_real()
        found = real if found is None else found * real
    if found is None:
        return None, None
    found = found.reshape(cut.shape)
    return (found != 0, found.astype(np.float32, copy=False)) if layout.is_weighted else (found != 0, None)


def arrange(batch: "HostBatch", cut: Cut) -> Arrays:
    """A batch in host memory, cut."""
    taken, starts = cut.take(batch.items)
    real = cut.is_real() if cut.is_padded else None

    def side(shift: int) -> Array:
        chosen = taken[lay(starts + shift, cut.counts)]
        return (chosen if real is None else np.where(real, chosen, np.zeros((), chosen.dtype))).reshape(cut.shape)

    mask, weights = weigh(batch, cut)
    whole = np.repeat(cut.padded[:-1], np.diff(cut.padded))
    places = lay(cut.first_places, cut.counts)
    return Arrays(
        side(0),
        side(1) if cut.extra else None,
        mask,
        mask.astype(np.float32) if weights is None and mask is not None else weights,
        (places - whole[places]).astype(np.int32).reshape(cut.shape),
        cut.bounds.astype(np.int32),
        cut.padded.astype(np.int32),
        cut.max_seqlen,
    )
