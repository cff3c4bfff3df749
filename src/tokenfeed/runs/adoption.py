"""Runs of other systems, continued: what they have consumed of an epoch, and the rest of it, as views.

Megatron-core and OLMo-core keep the order of a run in files. The samples they name are samples of a view, so the rest
of the order is a subset of it: a `Loader` over `adopted.unseen` goes on with nothing lost or repeated, shuffled anew,
or with `shuffle=False` in the very order that they would have taken.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, PlanMismatchError, quantity
from tokenfeed.format.foreign.file import fingerprint, is_file, peek, whole
from tokenfeed.format.npy import MAGIC
from tokenfeed.storage.folder import PathLike
from tokenfeed.store.gpt_samples import GptSamples, GptSpec, index_digest, load_array
from tokenfeed.store.store import Store, open_store
from tokenfeed.store.subset import Listed, Selection, Subset, SubsetSpec
from tokenfeed.store.view import View
from tokenfeed.types import Array

__all__ = ["Adopted", "OrderSpec", "adopt_megatron", "adopt_olmo", "count_blend"]

_SLICE = 1 << 20


class Adopted(NamedTuple):
    """A run of another system."""

    view: View
    """All samples of its epoch (of Megatron-core, of all epochs that its index has)."""
    seen: View
    """The samples that it has consumed, in the order it took."""
    unseen: View
    """The samples that it has not, in the order it would have taken."""


@dataclass(frozen=True)
class OrderSpec(SubsetSpec):
    """The samples that entries [start, stop) of a file name, in its order."""

    kind: ClassVar[str] = "order"

    file: str
    digest: str
    """Checksum of the file."""
    start: int
    stop: int

    def select(self, view: View) -> Selection:
        path = Path(self.file)
        if not is_file(path):
            raise NotFoundError(f"there is no file {path}, which has the order of the run that was adopted")
        if (found := fingerprint(path)) != self.digest:
            raise PlanMismatchError(f"{path} has digest {found}, and had {self.digest}: it is the order of another run")
        return Listed(_load_order(path)[self.start : self.stop])

    def __str__(self) -> str:
        return f"{self.base} [{self.start}, {self.stop}) of {self.digest}"


def adopt_megatron(data: Store | PathLike, index: PathLike, *, consumed: int, extra: int = 1) -> Adopted:
    """The run of Megatron-core over one data file, after its first `consumed` samples.

    `data` is the data file, `.idx` and `.bin`, or the store that was opened from it. `index` is the folder with the
    cached indices of `GPTDataset`, or the path of the three files up to `-shuffle_index.npy`, where the folder has
    those of several. `consumed` is what its checkpoints call `consumed_train_samples`; in a blend, `count_blend` tells
    it for every data file. `extra` is 0 for runs with `add_extra_token_to_sequence=False`.

    Samples are exactly those of Megatron-core: `length` + 1 tokens across documents in its shuffled order, of which the
    last is the first of the next sample. All sample lengths are checked here, one pass over the index.
    """
    prefix = _find_index(Path(index))
    samples = load_array(Path(f"{prefix}-sample_index.npy"), dimensions=2)
    store = data if isinstance(data, Store) else open_store(data)
    if samples.shape[0] < 2:
        raise PlanMismatchError(f"{prefix}-sample_index.npy has no sample")
    unknown = GptSamples(store, GptSpec(prefix, index_digest(prefix), 1 << 40, extra))
    length = int(unknown.lengths(np.zeros(1, np.int64))[0]) - extra
    view = GptSamples(store, GptSpec(prefix, unknown.spec.digest, length, extra))
    view.check()
    return _adopt(view, Path(f"{prefix}-shuffle_index.npy"), consumed)


def adopt_olmo(
    data: Store | PathLike | Sequence[PathLike],
    indices: PathLike,
    *,
    length: int,
    consumed: int,
    dtype: Any = None,
    max_target_length: int | None = None,
) -> Adopted:
    """An epoch of OLMo-core over a `NumpyFSLDataset`, after its first `consumed` instances.

    `data` are its token files in the same order, with their `dtype`, or the store that was opened from them. `indices`
    is its `global_indices_….npy` of that epoch. `consumed` is `tokens_processed // sequence_length` of its checkpoint.
    `max_target_length` is the `max_target_sequence_length` of the dataset, if it had one.

    An instance is `length` tokens of one file, without a token more: OLMo-core shifts labels within it. So its views
    have inputs of `length` and no targets. The instances at the end of an epoch that fill no batch, which OLMo-core
    leaves out, are in `unseen`.
    """
    store = data if isinstance(data, Store) else open_store(data, dtype=dtype)
    return _adopt(store.windows(length, extra=0, group=max_target_length, by_shard=True), Path(indices), consumed)


def count_blend(dataset_index: PathLike, consumed: int) -> list[int]:
    """How many of the first `consumed` samples of a blend of Megatron-core come from each of its data files.

    `dataset_index` is the file `…-BlendedDataset-train-dataset_index.npy`.
    """
    path = Path(dataset_index)
    order = load_array(path, dimensions=1)
    _check_consumed(consumed, order.size, path)
    if order.size and not 0 <= order.min() <= order.max() < order.size:
        raise CorruptionError(f"{path} names data file {order.max():,} of a blend; it is no dataset index")
    counts: list[int] = np.bincount(order[:consumed], minlength=int(order.max(initial=-1)) + 1).tolist()
    return counts


def _find_index(given: Path) -> str:
    """The path of index files without their endings."""
    ending = "-shuffle_index.npy"
    if is_file(Path(f"{given}{ending}")):
        return str(given.absolute())
    found = sorted(given.glob(f"*-train{ending}")) if given.is_dir() else []
    if len(found) > 1:
        names = ", ".join(path.name.removesuffix(ending) for path in found[:5])
        raise ArgumentError(f"{given} has the indices of several runs: {names}. Say which: index='{given}/…'")
    if not found:
        raise NotFoundError(
            f"{given} has no file *-train{ending}. Give the folder that Megatron-core caches indices in "
            "(path_to_cache, or cache/GPTDataset_indices beside the data), or the path of the files up to their endings"
        )
    return str(found[0].absolute()).removesuffix(ending)


def _load_order(path: Path) -> Array:
    """Entries of a NumPy file, or of one of OLMo-core, which has the name of one and no header; left on disk."""
    if peek(path, len(MAGIC)) == MAGIC:
        return load_array(path, dimensions=1)
    count = whole(path, np.dtype("<u4")).file_bytes // 4
    return np.memmap(path, "<u4", "r", shape=(count,)) if count else np.empty(0, "<u4")


def _adopt(view: View, path: Path, consumed: int) -> Adopted:
    if not is_file(path):
        raise NotFoundError(f"there is no file {path}, which has the order of the run to be adopted")
    order = _load_order(path)
    if order.size != len(view):
        raise PlanMismatchError(
            f"{path} orders {quantity(order.size, 'sample')}, and {view} has {len(view):,}: give the same data files "
            "in the same order, of the same dtype and length, as the run had"
        )
    _check_consumed(consumed, order.size, path)
    is_there = np.zeros(len(view), np.bool_)
    for start in range(0, order.size, _SLICE):
        part = order[start : start + _SLICE]
        if part.min() < 0 or part.max() >= len(view):
            raise CorruptionError(f"{path} names sample {part.max():,} of {len(view):,}: it is no order of them")
        is_there[part] = True
    if not is_there.all():
        raise CorruptionError(f"{path} names a sample twice, and sample {int(np.argmin(is_there)):,} never")
    seen, unseen = (
        OrderSpec(view.spec, str(path.absolute()), fingerprint(path), start, stop)
        for start, stop in ((0, consumed), (consumed, order.size))
    )
    return Adopted(view, *(Subset(view, spec.select(view), spec) for spec in (seen, unseen)))


def _check_consumed(consumed: int, size: int, path: Path) -> None:
    if not 0 <= operator.index(consumed) <= size:
        raise ArgumentError(f"consumed is {consumed:,}; {path} orders {quantity(size, 'sample')}")
