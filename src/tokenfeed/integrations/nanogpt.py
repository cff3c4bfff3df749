"""nanoGPT's `get_batch`, with a state. In `train.py`:

    from tokenfeed.integrations.nanogpt import Batches

    get_batch = Batches(data_dir, block_size, batch_size, device=device)   # in place of the function
    checkpoint = {…, "data": get_batch.state_dict()}
    get_batch.load_state_dict(checkpoint["data"])                          # where it resumes

nanoGPT draws windows with replacement. Here every window comes once an epoch, in an order that one seed decides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tokenfeed.errors import MissingError
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.mixing import Mixture
from tokenfeed.store.store import open_store
from tokenfeed.store.view import View
from tokenfeed.torch.device import DeviceLoader, to_device

__all__ = ["Batches"]


class Batches:
    """`get_batch(split)`: inputs and targets of int64 on the device.

    nanoGPT's loop fetches a batch before it saves, so `state_dict` is the state before the last training batch: a
    resumed run begins with it. And its `estimate_loss` asks for training batches too, on one rank. What is asked for
    under `torch.no_grad` is evaluation, comes from a loader of its own, and is the same windows every time.
    """

    def __init__(
        self,
        data: str | Path | Mapping[str, View | Mixture],
        block_size: int,
        batch_size: int,
        *,
        device: Any = "cpu",
        seed: int = 1337,
    ) -> None:
        """`data` is a folder with `train.bin` and `val.bin`, or views by split."""
        self._data = data if isinstance(data, Mapping) else Path(data)
        self._shape = block_size, batch_size
        self._device = device
        self._seed = seed
        self._train = self._place(Loader(self._view("train"), batch_size, seed=seed))
        self._state = self._train.state_dict()
        self._evaluation: dict[str, DeviceLoader] = {}

    def _view(self, split: str) -> View | Mixture:
        if isinstance(self._data, Mapping):
            if split not in self._data:
                raise MissingError(f"there is no split {split!r}; there are {', '.join(self._data)}")
            return self._data[split]
        return open_store(self._data / f"{split}.bin").windows(self._shape[0])

    def _place(self, loader: Loader) -> DeviceLoader:
        return to_device(loader, self._device, dtypes={"inputs": torch.int64})

    def __call__(self, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        if split == "train" and torch.is_grad_enabled():
            self._evaluation.clear()  # the next evaluation begins again
            self._state = self._train.state_dict()
            batch = next(self._train)
        else:
            if split not in self._evaluation:
                loader = Loader(self._view(split), self._shape[1], seed=self._seed + 1, rank=0, world_size=1)
                self._evaluation[split] = self._place(loader)
            batch = next(self._evaluation[split])
        return batch.inputs, batch.targets

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint before the last training batch, the same on every rank."""
        return self._state

    def load_state_dict(self, state: Any) -> None:
        """Go on with the batch that was fetched, and not trained on, when the state was taken."""
        self._train.load_state_dict(state)
        self._state = self._train.state_dict()
