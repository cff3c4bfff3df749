"""Lightning, fed by tokenfeed: `trainer.fit(module, DataModule(store.windows(2048), batch_size=8))`.

Lightning asks what `DataModule` gives it for its state whenever it saves, and gives it back on resume.
"""

from collections.abc import Iterator
from typing import Any

import lightning

from tokenfeed.errors import ArgumentError
from tokenfeed.integrations.checkpoint import AllRanks, Data, make_loader
from tokenfeed.loader.delivery import Delivery
from tokenfeed.loader.loader import Loader
from tokenfeed.torch.device import DeviceBatch, to_device

__all__ = ["DataModule"]


class DataModule(lightning.LightningDataModule):
    """Batches on the module's device: `inputs, targets = batch`. A resumed run has the samples of one never stopped."""

    def __init__(
        self, train: Data, batch_size: int, *, val: Data | None = None, epoch_steps: int | None = None, **options: Any
    ) -> None:
        """`train` is a view, a mixture, or a function of rank= and world_size= that makes a loader or a stream.

        `epoch_steps` is what Lightning calls an epoch: validation and schedules go by it, and the order of samples does
        not. By default it is one epoch of the view; mixtures and streams need it. `val` is seen whole, in order, every
        time. `options` are those of `Loader` for `train`.
        """
        super().__init__()
        self._train = train
        self._val = val
        self._batch_size = batch_size
        self._epoch_steps = epoch_steps
        self._options = options

    def _make(self, data: Data, **options: Any) -> Delivery:
        # Lightning's own launcher sets no RANK, so a loader cannot find its rank by itself.
        assert self.trainer is not None
        place = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        return make_loader(data, self._batch_size, place, **options)

    def train_dataloader(self) -> "_Training":
        loader = self._make(self._train, **self._options)
        steps = self._epoch_steps
        if steps is None:
            if not isinstance(loader, Loader) or len(loader.plan.sources) > 1:
                raise ArgumentError(
                    "epoch_steps is None, and mixtures and streams have no epoch: give the number of steps that "
                    "Lightning is to call one, such as epoch_steps=1000"
                )
            steps = loader.steps_per_epoch
        return _Training(loader, self.trainer.strategy.root_device, steps)

    def val_dataloader(self) -> "list[Any] | _Validation":
        if self._val is None:
            return []
        return _Validation(self, self._val)


class _Training:
    """An epoch of Lightning at a time. Having a length, it is not fetched from ahead, so that its state is exact."""

    def __init__(self, loader: Delivery, device: Any, steps: int) -> None:
        self._batches = to_device(loader, device)
        self._state = AllRanks(loader)
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[DeviceBatch]:
        return iter(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return self._state.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._state.load_state_dict(state)


class _Validation:
    """Everything once over all ranks, from the beginning each time: Lightning looks at two batches before training."""

    def __init__(self, module: DataModule, data: Data) -> None:
        self._module = module
        self._data = data

    def _make(self) -> Delivery:
        return self._module._make(self._data, epochs=1, shuffle=False)

    def __len__(self) -> int:
        return len(self._make())

    def __iter__(self) -> Iterator[DeviceBatch]:
        assert self._module.trainer is not None
        return iter(to_device(self._make(), self._module.trainer.strategy.root_device))
