"""Loaders as an IterableDataset or a torchdata node, for training code that expects one of these."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from tokenfeed.loader.delivery import Delivery, check_loader
from tokenfeed.torch.device import to_device

__all__ = ["as_dataset", "as_node", "data_parallel"]

Tensors = dict[str, Any]


def as_dataset(loader: Delivery, **options: Any) -> "IterableDataset[Tensors]":
    """Batches as dicts of tensors, for `DataLoader(dataset, batch_size=None)` or torchdata's `StatefulDataLoader`.

    The dicts are those of `Batch.as_dict`: `loss_mask` and `loss_weights` are among them, and None where every target
    counts. `options` are those of `to_device`, such as `flat=True`. The state is the loader's. Worker processes are
    refused: a loader reads ahead by itself, and its state would be theirs alone.
    """
    return _Dataset(check_loader(loader, "as_dataset"), options)


class _Dataset(IterableDataset[Tensors]):
    def __init__(self, loader: Delivery, options: dict[str, Any]) -> None:
        self._loader = loader
        self._options = options

    def __iter__(self) -> Iterator[Tensors]:
        return (batch.as_dict() for batch in to_device(self._loader, "cpu", **self._options))

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)

    def __repr__(self) -> str:
        return f"as_dataset({self._loader})"


def as_node(loader: Delivery, **options: Any) -> Any:
    """Batches as dicts of tensors, as those of `as_dataset`, as a `torchdata.nodes.BaseNode`. Needs torchdata."""
    from torchdata.nodes import BaseNode

    check_loader(loader, "as_node")

    class Node(BaseNode[Tensors]):
        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            if initial_state is not None:
                loader.load_state_dict(initial_state)
            self._batches = iter(to_device(loader, "cpu", **options))

        def next(self) -> Tensors:
            return next(self._batches).as_dict()

        def get_state(self) -> dict[str, Any]:
            return loader.state_dict()

        def __repr__(self) -> str:
            return f"as_node({loader})"

    return Node()


def data_parallel(mesh: Any, dimension: str = "dp") -> dict[str, int]:
    """Rank and world size of a DeviceMesh's data-parallel dimension: `Loader(view, 32, **data_parallel(mesh))`.

    Ranks that differ in other dimensions only, such as tensor-parallel ones, get the same batches.
    """
    along = mesh[dimension]
    return {"rank": along.get_local_rank(), "world_size": along.size()}
