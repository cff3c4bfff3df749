"""`GptSamples`: the samples of Megatron-core's `GPTDataset`, as its index files say them.

Megatron-core lays the sequences of a data file end to end, in the shuffled order of `document_index`, once for every
epoch, and cuts that line into samples: sample s begins at item `sample_index[s][1]` of the sequence at place
`sample_index[s][0]` of the line, and ends where sample s + 1 begins, or one item later. So a sample crosses sequences,
and is told exactly by pieces of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from tokenfeed.errors import CorruptionError, PlanMismatchError, quantity
from tokenfeed.format.foreign.file import fingerprint
from tokenfeed.format.foreign.megatron import find_sequences
from tokenfeed.kernels.items import PADDING
from tokenfeed.storage.local import reading
from tokenfeed.store.data import Data, offsets_of
from tokenfeed.store.numbers import check_inside, lay, slices
from tokenfeed.store.packed import PieceRows
from tokenfeed.store.spec import ViewSpec
from tokenfeed.store.view import View
from tokenfeed.types import Array, Ints

__all__ = ["GptSamples", "GptSpec", "index_digest", "load_array"]


def load_array(path: Path, *, dimensions: int) -> Array:
    """An array of whole numbers that NumPy wrote, left on disk."""
    with reading(str(path)):
        try:
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise CorruptionError(f"{path} is no NumPy array: {error}") from error
    if array.ndim != dimensions or array.dtype.kind not in "iu":
        found = f"{array.dtype} of shape {array.shape}"
        raise CorruptionError(f"{path} holds {found}; expected whole numbers in {quantity(dimensions, 'dimension')}")
    return array


def _files(prefix: str) -> tuple[Path, Path]:
    return Path(f"{prefix}-document_index.npy"), Path(f"{prefix}-sample_index.npy")


def index_digest(prefix: str) -> str:
    """Checksum of blocks of the index files."""
    return "".join(fingerprint(path)[:8] for path in _files(prefix))


@dataclass(frozen=True)
class GptSpec(ViewSpec):
    """One sample of Megatron-core's `GPTDataset`: `length` + `extra` items."""

    kind: ClassVar[str] = "megatron"

    index: str
    """Path of the index files, up to `-document_index.npy` and `-sample_index.npy`."""
    digest: str
    """Checksum of the index files."""
    length: int
    extra: int = 1

    @property
    def unit(self) -> ViewSpec:
        return replace(self.sample, index="", digest="")

    def __str__(self) -> str:
        extra = "" if self.extra == 1 else f", extra={self.extra}"
        return f"megatron({self.length}{extra}, {self.digest})"


class _Line(NamedTuple):
    """The index of one data file."""

    documents: Array
    samples: Array
    first_items: Ints
    """First item of every sequence of the file, and the end of the last."""
    name: str

    @classmethod
    def load(cls, data: Data, spec: GptSpec) -> "_Line":
        documents, samples = (load_array(path, dimensions=n) for n, path in enumerate(_files(spec.index), 1))
        if samples.shape[0] < 1 or samples.shape[1] != 2:
            raise CorruptionError(f"{spec.index}-sample_index.npy has shape {samples.shape}; expected (samples + 1, 2)")
        if index_digest(spec.index) != spec.digest:
            raise PlanMismatchError(
                f"{spec.index}-*.npy have digest {index_digest(spec.index)}, and had {spec.digest}: they are the index "
                "of another run. Restore them"
            )
        paths = [Path(shard.column_part("tokens").path).with_suffix(".idx") for shard in data.shards]
        if len(paths) != 1 or not paths[0].is_file():
            raise PlanMismatchError(
                f"{spec.index} is the index of one Megatron data file, .idx and .bin; the store is of "
                f"{quantity(len(paths), 'file')}: {', '.join(map(str, paths[:3]))}"
            )
        return cls(documents, samples, find_sequences(paths[0]), spec.index)

    def __len__(self) -> int:
        return int(self.samples.shape[0]) - 1

    def pieces(self, numbers: Ints, extra: int) -> tuple[Ints, Ints, Ints]:
        """(row, first item, length) of the pieces of samples, row by row, without empty ones."""
        begin, end = (self.samples[each].astype(np.int64) for each in (numbers, numbers + 1))
        counts = end[:, 0] - begin[:, 0] + 1
        if numbers.size and not (counts.min() > 0 and begin.min() >= 0 and end[:, 0].max() < self.documents.size):
            raise self._damaged("sample_index points outside document_index")
        entries = offsets_of(counts)
        sequences = self.documents[lay(begin[:, 0], counts)].astype(np.int64)
        if sequences.size and not (sequences.min() >= 0 and sequences.max() < self.first_items.size - 1):
            raise self._damaged("document_index names sequences that the data file does not have")
        starts, stops = self.first_items[sequences], self.first_items[sequences + 1]
        lasts = entries[1:] - 1
        inside = starts[lasts] + end[:, 1] + extra <= stops[lasts]
        stops[lasts] = starts[lasts] + end[:, 1] + extra
        starts[entries[:-1]] += begin[:, 1]
        lengths = stops - starts
        if not (inside.all() and (lengths >= 0).all()):
            raise self._damaged("sample_index points outside its sequence")
        kept = lengths > 0
        return np.repeat(np.arange(numbers.size), counts)[kept], starts[kept], lengths[kept]

    def _damaged(self, what: str) -> PlanMismatchError:
        return PlanMismatchError(f"{self.name}: {what}. It is damaged, or the index of another data file")


class GptSamples(View, opens=GptSpec):
    """Sample i is sample i of the line that Megatron-core cuts, before it shuffles samples: pieces of sequences.

    Targets count across sequences, as in Megatron-core; those of padding do not.

    Sequences a a a, b, c c c in the order c a b, length 2:  sample 0 = c c c,  sample 1 = c a a,  sample 2 = a a b
    """

    spec: GptSpec
    length: int

    def __init__(self, data: Data, spec: GptSpec, lines: Sequence[tuple[int, _Line]] = ()) -> None:
        """`lines` are those of several data files, each with its first item."""
        super().__init__(data, spec, spec.length, extra=spec.extra)
        self.length, self.width = spec.length, spec.length + spec.extra
        self._lines = list(lines) or [(0, _Line.load(data, spec))]
        self._first_samples = np.cumsum([0, *(len(line) for _, line in self._lines)])

    def __len__(self) -> int:
        return int(self._first_samples[-1])

    def rows(self, numbers: Ints) -> PieceRows:
        check_inside(numbers, len(self))
        parts = []
        for (first_item, line), first, stop in zip(
            self._lines, self._first_samples[:-1], self._first_samples[1:], strict=True
        ):
            chosen = np.flatnonzero((numbers >= first) & (numbers < stop))
            rows, first_items, lengths = line.pieces(numbers[chosen] - first, self.spec.extra)
            parts.append((chosen[rows], first_items + first_item, lengths))
        rows, first_items, lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
        missing = self.width - np.bincount(rows, lengths, numbers.size).astype(np.int64)
        if numbers.size and missing.min() < 0:
            raise CorruptionError(
                f"{self.spec}: a sample has {self.width - missing.min()} items, more than {self.width}"
            )
        short = np.flatnonzero(missing)
        rows = np.concatenate((rows, short))
        order = np.argsort(rows, kind="stable")
        first_items = np.concatenate((first_items, np.full(short.size, PADDING)))[order]
        offsets = offsets_of(np.concatenate((lengths, missing[short]))[order])
        entries = np.searchsorted(rows[order], np.arange(numbers.size + 1))
        return PieceRows(self, numbers, entries, first_items, offsets, crosses=True)

    def check(self) -> None:
        """Raise a PlanMismatchError unless every sample but the last of a line is of this length. O(samples)."""
        for numbers in slices(len(self)):
            wrong = numbers[self.rows(numbers).lengths != self.width]
            wrong = wrong[~np.isin(wrong + 1, self._first_samples)]
            if wrong.size:
                raise PlanMismatchError(
                    f"sample {wrong[0]} of {self.spec.index} has {self.lengths(wrong[:1])[0]} items, expected "
                    f"{self.width}: it is the index of another data file, or of another length"
                )

    @property
    def mean_length(self) -> Fraction:
        lasts = self._first_samples[1:][np.diff(self._first_samples) > 0] - 1
        missing = int((self.width - self.lengths(lasts)).sum())
        return Fraction(len(self) * self.length - missing, max(1, len(self)))

    def samples_touching(self, documents: Sequence[int] | Ints, *, table: str | None = None) -> Ints:
        """As for every view. One pass over the index."""
        starts, stops = self._locate_spans(documents, table)
        found = [np.empty(0, np.int64)]
        for numbers in slices(len(self)) if starts.size else ():
            begins, offsets = self.rows(numbers).extents
            last = np.searchsorted(starts, begins + np.diff(offsets)) - 1  # of the spans that begin before the end
            touched = (begins >= 0) & (last >= 0) & (begins < stops[last])
            found.append(numbers[np.unique(offsets[:-1][touched] // self.width)])
        return np.unique(np.concatenate(found))

    def _join(self, others: Sequence["GptSamples"], data: Data) -> "GptSamples":
        lines, first_item = [], 0
        for view in (self, *others):
            lines += [(first_item + first, line) for first, line in view._lines]
            first_item += view.data.num_items
        return GptSamples(data, self.spec, lines)
