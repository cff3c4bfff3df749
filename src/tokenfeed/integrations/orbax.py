"""Loaders in checkpoints of Orbax, beside the weights:

manager.save(step, args=ocp.args.Composite(weights=ocp.args.StandardSave(weights), data=to_save(loader)))
restore(loader, manager, step)
"""

from typing import Any

import orbax.checkpoint as ocp

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Delivery, PlacedLoader
from tokenfeed.loader.loader import Loader

__all__ = ["restore", "to_save"]


def _find(loader: Delivery | PlacedLoader[Any]) -> Delivery:
    found = loader.loader if isinstance(loader, PlacedLoader) else loader
    if not isinstance(found, Loader) and found.world_size > 1:
        raise ArgumentError(
            f"a stream on {found.world_size} processes has a state on each, and Orbax keeps that of one: prepare a "
            "store, whose loader has the same state everywhere, or write state_dict() to a file from every process"
        )
    return found


def to_save(loader: Delivery | PlacedLoader[Any]) -> Any:
    """The place in the data after the last batch delivered, as an argument for Orbax: JSON of about 200 bytes."""
    return ocp.args.JsonSave(_find(loader).state_dict())


def restore(loader: Delivery | PlacedLoader[Any], manager: Any, step: int | None = None, *, item: str = "data") -> None:
    """Send a loader to where it was at a step of a CheckpointManager, by default its latest.

    `item` is the name that `to_save` was given in the Composite.
    """
    found = manager.restore(step, args=ocp.args.Composite(**{item: ocp.args.JsonRestore()}))
    _find(loader).load_state_dict(found[item])
