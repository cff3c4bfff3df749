"""Hugging Face Accelerate, fed by tokenfeed: `batches = make_batches(accelerator, store.windows(2048), 8)`."""

from typing import Any

from tokenfeed.integrations.checkpoint import AllRanks, Data, make_loader
from tokenfeed.torch.device import DeviceLoader, to_device

__all__ = ["make_batches"]


def make_batches(accelerator: Any, data: Data, batch_size: int, **options: Any) -> DeviceLoader:
    """Batches of this process on its device; `save_state` and `load_state` of the accelerator keep their place.

    `data` is a view, a mixture, or a function of rank= and world_size= that makes a loader or a stream; `options` are
    those of `Loader`. Batches need no `accelerator.prepare`, which would divide them among processes a second time.
    Save where `accelerator.sync_gradients` is true: Accelerate does not save gradients.
    """
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    loader = make_loader(data, batch_size, place, **options)
    accelerator.register_for_checkpointing(AllRanks(loader))
    return to_device(loader, accelerator.device)
