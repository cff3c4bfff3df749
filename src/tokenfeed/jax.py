"""Batches as global JAX arrays: `for batch in tokenfeed.jax.to_arrays(loader, sharding)`.

Every process loads its own rows, and together they are one array of shape (world size · batch size, length). Row j of
process p is sample k = K + j·W + p of the run, and becomes row p·B + j of the global array (in the order in which the
sharding lays processes along its first axis).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tokenfeed.loader.batch import LoadedBatch
from tokenfeed.loader.delivery import Delivery

__all__ = ["ArrayBatch", "data_parallel", "to_arrays"]


class ArrayBatch:
    """A batch as global arrays. `inputs, targets = batch`."""

    def __init__(self, host: LoadedBatch, sharding: Any, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        self.host = host
        """This process's rows."""
        self._sharding = sharding
        self._dtypes = dtypes
        self._arrays: dict[str, Any] = {}

    def _array(self, name: str, local: npt.NDArray[Any]) -> Any:
        if name not in self._arrays:
            given = np.asarray(local, self._dtypes.get(name, local.dtype))
            self._arrays[name] = jax.make_array_from_process_local_data(self._sharding, np.ascontiguousarray(given))
        return self._arrays[name]

    @property
    def inputs(self) -> Any:
        return self._array("inputs", self.host.inputs)

    @property
    def targets(self) -> Any:
        return self._array("targets", self.host.targets)

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
    loader: Delivery, sharding: Any, *, dtypes: Mapping[str, npt.DTypeLike] | None = None
) -> Iterator[ArrayBatch]:
    """The batches of a loader as global arrays under a sharding. The state stays the loader's.

    `dtypes` gives the dtype of "inputs" and "targets" (int32 unless given) and of columns by name (the stored one).
    """
    chosen = {"inputs": np.int32, "targets": np.int32, **(dtypes or {})}
    return (ArrayBatch(batch, sharding, chosen) for batch in loader)


def data_parallel() -> dict[str, int]:
    """Rank and world size of this process: `Loader(view, 32, **tokenfeed.jax.data_parallel())`."""
    return {"rank": jax.process_index(), "world_size": jax.process_count()}
