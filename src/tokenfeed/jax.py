"""Batches as global JAX arrays: `for batch in tokenfeed.jax.to_arrays(loader, sharding)`.

The first axis of a sharding divides rows among W groups of processes; the processes of a group hold the same rows. Row
j of group r is sample k = K + j·W + r of the run, and row r·B + j of the global array of W·B rows: B is the batch size,
K the number of samples before the step, and groups are counted along the axis. (Where the rows of a group do not lie
side by side, they are still in that order.)
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.batch import LoadedBatch
from tokenfeed.loader.loader import Loader
from tokenfeed.text.streaming.feed import TextFeed

__all__ = ["ArrayBatch", "data_parallel", "to_arrays"]


class ArrayBatch:
    """A batch as global arrays. `inputs, targets = batch`.

    Every array has batch size times world size rows. Where a finite loader has fewer left, rows of zeros fill it up.
    """

    def __init__(
        self,
        host: LoadedBatch,
        sharding: Any,
        dtypes: Mapping[str, npt.DTypeLike],
        *,
        batch_size: int,
        world_size: int,
    ) -> None:
        self.host = host
        """This process's rows."""
        self._sharding = sharding
        self._dtypes = dtypes
        self._batch_size = batch_size
        self._world_size = world_size
        self._arrays: dict[str, Any] = {}

    def _array(self, name: str, local: npt.NDArray[Any]) -> Any:
        if name not in self._arrays:
            local = np.ascontiguousarray(local, self._dtypes.get(name, local.dtype))
            if len(local) < self._batch_size:
                local = np.pad(local, [(0, self._batch_size - len(local)), *[(0, 0)] * (local.ndim - 1)])
            shape = (self._world_size * self._batch_size, *local.shape[1:])
            self._arrays[name] = jax.make_array_from_process_local_data(self._sharding, local, shape)
        return self._arrays[name]

    @property
    def inputs(self) -> Any:
        return self._array("inputs", self.host.inputs)

    @property
    def targets(self) -> Any:
        return self._array("targets", self.host.targets)

    @property
    def loss_mask(self) -> Any:
        """Which targets count: (rows, length). None does in rows that only fill up."""
        mask = self.host.loss_mask
        return self._array("loss_mask", np.ones(self.host.targets.shape, np.bool_) if mask is None else mask)

    def column(self, name: str) -> Any:
        return self._array(name, self.host.column(name))

    @property
    def state(self) -> dict[str, Any]:
        return self.host.state

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Iterator[Any]:
        yield self.inputs
        yield self.targets


def to_arrays(
    loader: Loader | TextFeed, sharding: Any, *, dtypes: Mapping[str, npt.DTypeLike] | None = None
) -> Iterator[ArrayBatch]:
    """The batches of a loader as global arrays under a sharding. The state stays the loader's.

    The loader must have been made with `**data_parallel(sharding)`. `dtypes` gives the dtype of "inputs" and "targets"
    (int32 unless given) and of columns by name (the stored one).
    """
    place = data_parallel(sharding)
    if (loader.rank, loader.world_size) != (place["rank"], place["world_size"]):
        raise ArgumentError(
            f"the loader is rank {loader.rank} of {loader.world_size}, but the sharding makes this process rank "
            f"{place['rank']} of {place['world_size']}; make it with **tokenfeed.jax.data_parallel(sharding)"
        )
    return _arrays(loader, sharding, {"inputs": np.int32, "targets": np.int32, **(dtypes or {})})


def _arrays(loader: Loader | TextFeed, sharding: Any, dtypes: Mapping[str, npt.DTypeLike]) -> Iterator[ArrayBatch]:
    batches = iter(loader)
    while True:
        batch_size = _next_batch_size(loader)
        batch = next(batches, None)
        if batch is None:
            return
        yield ArrayBatch(batch, sharding, dtypes, batch_size=batch_size, world_size=loader.world_size)


def _next_batch_size(loader: Loader | TextFeed) -> int:
    """Rows of the next batch, if there are as many left."""
    if isinstance(loader, TextFeed):
        return loader.batch_size
    return loader.batch_sizes.at(loader.state_dict()["samples"])


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
