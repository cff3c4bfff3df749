"""A data module for litgpt: `litgpt pretrain … --data tokenfeed.integrations.litgpt.Tokens --data.path store`."""

from collections.abc import Iterator
from typing import Any

import torch
from litgpt.data import DataModule
from torch.utils.data import DataLoader, IterableDataset

from tokenfeed.integrations.checkpoint import find_place
from tokenfeed.loader.loader import Loader
from tokenfeed.store.store import open_store
from tokenfeed.torch.device import to_device

__all__ = ["Tokens"]


class Tokens(DataModule):
    """Windows of a store, or of whatever `tokenfeed.open` opens. Checkpoints of litgpt hold the place in the data."""

    def __init__(self, path: str, val_path: str | None = None, seed: int = 42) -> None:
        """Training reads the split "train" of `path` and validation its split "val", or `val_path` if it is given."""
        super().__init__()
        self.path = path
        self.val_path = val_path
        self.seed = seed
        self._shape = 1, 2048

    def connect(
        self, tokenizer: Any = None, batch_size: int = 1, max_seq_length: int | None = None, **_: object
    ) -> None:
        self._shape = batch_size, max_seq_length or 2048

    def _load(self, path: str, split: str | None, *, again: bool, **options: Any) -> "_Rows":
        batch_size, length = self._shape
        windows = open_store(path, split=split).windows(length)
        loader = Loader(windows, batch_size, seed=self.seed, **find_place(), **options)
        return _Rows(loader, again=again)

    def train_dataloader(self) -> "_Rows":
        return self._load(self.path, None if self.val_path else "train", again=False)

    def val_dataloader(self) -> "_Rows":
        path, split = (self.val_path, None) if self.val_path else (self.path, "val")
        return self._load(path, split, again=True, epochs=1, shuffle=False)


class _Tokens(IterableDataset[torch.Tensor]):
    def __init__(self, loader: Loader, *, again: bool) -> None:
        self._batches = to_device(loader, "cpu")
        self._beginning = loader.state_dict() if again else None

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._beginning is not None:
            self._batches.load_state_dict(self._beginning)
        return (batch.tokens for batch in self._batches)


class _Rows(DataLoader[torch.Tensor]):
    """Rows of length + 1 tokens, of which litgpt makes inputs and targets; with the loader's state.

    Every loop over it begins `again`, as in validation, which stops early; or goes on.
    """

    def __init__(self, loader: Loader, *, again: bool) -> None:
        super().__init__(_Tokens(loader, again=again), batch_size=None)
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._loader.load_state_dict(state)
