"""Batches as global JAX arrays: `for batch in tokenfeed.jax.to_arrays(loader, sharding)`.

The first axis of a sharding divides rows among W groups of processes; the processes of a group hold the same rows. Row
j of group r is sample k = K + j·W + r of the run, and row r·B + j of the global array of W·B rows: B is the batch size,
K the number of samples before the step, and groups are counted along the axis. (Where the rows of a group do not lie
side by side, they are still in that order.)
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Delivery, PlacedBatch, PlacedLoader, check_loader
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.forms import Arrays, Cut, arrange
from tokenfeed.types import Array, Ints

__all__ = ["ArrayBatch", "ArrayLoader", "data_parallel", "to_arrays"]


class ArrayBatch(PlacedBatch):
    """A batch as global arrays, inputs and targets of int32 unless `dtypes` says otherwise.

    Every array has batch size times world size rows. Where a finite loader has fewer left, rows of zeros fill it up,
    and `loss_mask` leaves them out; so there always is a mask. `samples` and the like are those of this process, and so
    are `flat`, `slice(…)` and `cu_seqlens`, whose lengths differ from process to process.
    """

    def __init__(
        self,
        host: HostBatch,
        sharding: Any,
        dtypes: Mapping[str, npt.DTypeLike],
        *,
        batch_size: int,
        world_size: int,
    ) -> None:
        super().__init__(host)
        self._sharding = sharding
        self._dtypes = dtypes
        self._batch_size = batch_size
        self._world_size = world_size
        self._arrays: dict[str, Any] = {}
        self.data = host.data

    def _global(self, local: Array, dtype: npt.DTypeLike) -> Any:
        local = np.ascontiguousarray(local, dtype)
        if len(local) < self._batch_size:
            local = np.pad(local, [(0, self._batch_size - len(local)), *[(0, 0)] * (local.ndim - 1)])
        shape = (self._world_size * self._batch_size, *local.shape[1:])
        return jax.make_array_from_process_local_data(self._sharding, local, shape)

    def _kept(self, name: str, local: Array) -> Any:
        if name not in self._arrays:
            self._arrays[name] = self._global(local, self._dtypes[name])
        return self._arrays[name]

    @property
    def inputs(self) -> Any:
        return self._kept("inputs", self._host.inputs)

    @property
    def targets(self) -> Any:
        return self._kept("targets", self._host.targets)

    @property
    def loss_mask(self) -> Any:
        mask = self._host.loss_mask
        return self._kept("loss_mask", np.ones(self._host.targets.shape, np.bool_) if mask is None else mask)

    @property
    def loss_weights(self) -> Any:
        weights = self._host.loss_weights
        return self._kept("loss_weights", np.ones(self._host.targets.shape) if weights is None else weights)

    @property
    def position_ids(self) -> Any:
        return self._kept("position_ids", self._host.position_ids)

    @property
    def cu_seqlens(self) -> Any:
        """Parts of the rows of this process: an array of its own."""
        return jax.device_put(self._host.cu_seqlens)

    def _arrange(self, cut: Cut) -> Arrays:
        """Arrays of this process alone: how long they are differs from process to process, and from batch to batch."""
        found = arrange(self._host, cut)._asdict()
        return Arrays(
            **{
                name: jax.device_put(np.asarray(each, self._dtypes.get(name))) if isinstance(each, np.ndarray) else each
                for name, each in found.items()
            }
        )

    def _place_column(self, name: str) -> Any:
        local = self._host.column(name)
        if self.rows.layout.length is None:
            raise ArgumentError(
                f"column {name!r} holds documents of different lengths, which no global array can hold; use inputs and "
                "targets, which are padded, or batch.host.column"
            )
        return self._global(local, self._dtypes.get(name, local.dtype))

    def _as_array(self, numbers: Ints) -> Any:
        return np.ascontiguousarray(numbers)

    def __repr__(self) -> str:
        return f"ArrayBatch({self._host}, under {self._sharding})"


class ArrayLoader(PlacedLoader[ArrayBatch]):
    """The batches of a loader as global arrays. Made by `to_arrays`."""

    def __init__(self, loader: Delivery, sharding: Any, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        super().__init__(loader)
        self._sharding = sharding
        self._dtypes = dtypes

    def __next__(self) -> ArrayBatch:
        size = self.loader.next_batch_size
        world_size = self.loader.world_size
        return ArrayBatch(next(self.loader), self._sharding, self._dtypes, batch_size=size, world_size=world_size)

    def __repr__(self) -> str:
        return f"to_arrays({self.loader}, {self._sharding})"


def to_arrays(loader: Delivery, sharding: Any, *, dtypes: Mapping[str, npt.DTypeLike] | None = None) -> ArrayLoader:
    """The batches of a loader as global arrays under a sharding. The state stays the loader's.

    The loader must have been made with `**data_parallel(sharding)`. `dtypes` gives the dtype of "inputs" and "targets"
    (int32 unless given) and of columns by name (the stored one).
    """
    place = data_parallel(sharding)
    check_loader(loader, "to_arrays")
    if (loader.rank, loader.world_size) != (place["rank"], place["world_size"]):
        raise ArgumentError(
            f"the loader is rank {loader.rank} of {loader.world_size}, but the sharding makes this process rank "
            f"{place['rank']} of {place['world_size']}; make it with **tokenfeed.jax.data_parallel(sharding)"
        )
    usual: dict[str, npt.DTypeLike] = dict.fromkeys(("inputs", "targets", "position_ids"), np.int32)
    usual |= {"loss_mask": np.bool_, "loss_weights": np.float32}
    return ArrayLoader(loader, sharding, {**usual, **(dtypes or {})})


def data_parallel(sharding: Any = None) -> dict[str, int]:
    """Rank and world size of this process along the first axis of a sharding: `Loader(view, 32, **data_parallel(…))`.

    Processes that hold the same rows, as those along a model axis do, have the same rank. Without a sharding, every
    process has its own.
    """
    if sharding is None:
        return {"rank": jax.process_index(), "world_size": jax.process_count()}
    rows = sharding.devices_indices_map((sharding.num_devices, sharding.num_devices))
    held: dict[int, set[int]] = {}
    for device, (slice_of_rows, *_) in rows.items():
        held.setdefault(device.process_index, set()).add(slice_of_rows.start or 0)
    groups = sorted({tuple(sorted(starts)) for starts in held.values()})
    if sum(map(len, groups)) != len(set().union(*groups)) or len({len(group) for group in groups}) > 1:
        raise ArgumentError(f"processes hold rows that overlap in part, or unequally many, under {sharding}")
    return {"rank": groups.index(tuple(sorted(held[jax.process_index()]))), "world_size": len(groups)}
