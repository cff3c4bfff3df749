"""torchtitan's data loader: `config.dataloader = TokenfeedDataLoader.Config(dataset_path="store", split="train")`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from tokenfeed.loader.loader import Loader
from tokenfeed.store.store import open_store
from tokenfeed.torch.device import DeviceBatch, to_device

__all__ = ["TokenfeedDataLoader"]

_IGNORED = -100
"""Label that torchtitan's loss leaves out."""


class TokenfeedDataLoader(BaseDataLoader):
    """Windows of a store, of the length that the training has; with `packed`, rows of whole documents.

    The state is the same on every rank, and fits any number of them. Where the store has documents, positions begin
    again with each, so that attention stays within it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        split: str | None = None
        seed: int = 0
        packed: bool = False
        infinite: bool = True
        """Whether epochs follow each other without end. torchtitan's validator sets it."""

    def __init__(
        self, config: Any, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: object
    ) -> None:
        store = open_store(config.dataset_path, split=config.split)
        self._has_documents = config.packed or "documents" in store.spans
        spans = ["documents"] if self._has_documents else []
        view = store.packed(seq_len, spans=spans) if config.packed else store.windows(seq_len, spans=spans)
        epochs = None if config.infinite else 1
        self.loader = Loader(
            view, local_batch_size, seed=config.seed, epochs=epochs, rank=dp_rank, world_size=dp_world_size
        )
        self._batches = to_device(self.loader, "cpu", dtypes={"inputs": torch.int64})

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        return map(self._give, self._batches)

    def _give(self, batch: DeviceBatch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        inputs, labels = batch
        places = torch.arange(batch.length)
        if len(batch) == 0:  # nothing is left for this rank, but the others take a step
            inputs = inputs.new_zeros(1, batch.length)
            return {"input": inputs, "positions": places[None]}, torch.full_like(inputs, _IGNORED)
        positions = places.expand(inputs.shape)
        if self._has_documents:
            positions = torch.as_tensor(batch.position_ids).to(torch.int64)
        if batch.loss_mask is not None:
            labels = labels.masked_fill(~batch.loss_mask, _IGNORED)
        return {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        if state:  # a checkpoint of weights alone has none
            self.loader.load_state_dict(state)
