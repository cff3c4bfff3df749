"""tokenfeed for torch: batches on a device, and adapters for torch's own ways of loading and checkpointing.

A `Loader` is a `torch.distributed.checkpoint` Stateful as it is.
"""

from tokenfeed.store.forms import ContextParallel
from tokenfeed.torch.adapters import as_dataset, as_node, data_parallel
from tokenfeed.torch.bits import evaluate_bpb
from tokenfeed.torch.device import DeviceBatch, DeviceLoader, to_device

__all__ = [
    "ContextParallel",
    "DeviceBatch",
    "DeviceLoader",
    "as_dataset",
    "as_node",
    "data_parallel",
    "evaluate_bpb",
    "to_device",
]
