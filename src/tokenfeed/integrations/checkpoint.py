"""Loaders in the checkpoints of trainers, and made for the process that a trainer says this is.

A `Loader` has one state, the same on every rank, and is a Stateful of torch.distributed.checkpoint as it is, saved at
once or in the background. A stream has a state on every rank: `AllRanks(feed)` gathers them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from tokenfeed.errors import ArgumentError
from tokenfeed.loader.delivery import Delivery, PlacedLoader
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.mixing import Mixture
from tokenfeed.plan.plan import Plan
from tokenfeed.store.view import View

__all__ = ["AllRanks", "Data", "gather", "make_loader"]

Data = View | Mixture | Plan | Callable[..., Delivery]
"""What a trainer is fed from: a view, a mixture, a plan, or a call with rank= and world_size= that makes a loader."""


def gather(state: Any, world_size: int, group: Any = None) -> list[Any]:
    """The states of all ranks, by torch.distributed. Every rank must call it after the same batch."""
    if world_size == 1:
        return [state]
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError(
            f"a stream on {world_size} ranks has a state on each, and torch.distributed, which gathers them, is not "
            "initialised: call init_process_group first"
        )
    states: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(states, state, group=group)
    return states


class AllRanks:
    """A loader or a stream as a Stateful whose state is that of all ranks, on any number of which it can go on.

    All ranks must call `state_dict` together, as trainers and torch.distributed.checkpoint do.
    """

    def __init__(self, loader: Delivery | PlacedLoader[Any]) -> None:
        self.loader = loader.loader if isinstance(loader, PlacedLoader) else loader

    def state_dict(self) -> dict[str, Any]:
        state = self.loader.state_dict()
        if isinstance(self.loader, Loader):
            return state
        # One string: torch.distributed.checkpoint would make an entry of every number.
        return {"ranks": json.dumps(gather(state, self.loader.world_size))}

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(json.loads(state["ranks"]) if "ranks" in state else state)


def make_loader(data: Data, batch_size: int, place: Mapping[str, Any], **options: Any) -> Delivery:
    """A loader for one place. `options` are those of `Loader`; a call that makes a loader has its own."""
    if isinstance(data, View | Mixture | Plan):
        return Loader(data, batch_size, **options, **place)
    if not callable(data) or isinstance(data, Delivery):
        raise ArgumentError(
            f"data is {data!r:.100}; expected a view such as store.windows(2048), a mixture, or a function that makes "
            "a loader for rank= and world_size=, such as lambda **place: tokenfeed.stream(…, **place)"
        )
    made = data(**place)
    if not isinstance(made, Delivery) or (made.rank, made.world_size) != tuple(place.values()):
        raise ArgumentError(
            f"data made {made!r:.100}; expected a Loader or a stream with rank={place['rank']} and "
            f"world_size={place['world_size']}, as it was told"
        )
    return made
