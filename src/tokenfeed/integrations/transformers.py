"""The Trainer of transformers, fed by tokenfeed: exact order, exact resume, on any number of processes.

    from tokenfeed.integrations.transformers import Trainer

    trainer = Trainer(model=model, args=arguments, train_dataset=tokenfeed.open("store").windows(2047))
    trainer.train(resume_from_checkpoint=…)

Models of transformers shift labels themselves, so a row holds its inputs and its last target: windows(2047) gives rows
of 2,048 tokens, and no target is lost. The state lies in every checkpoint, in `tokenfeed.json`.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.integrations.checkpoint import AllRanks
from tokenfeed.loader.delivery import Delivery
from tokenfeed.loader.loader import Loader
from tokenfeed.observe.numbers import measure
from tokenfeed.plan.mixing import Mixture
from tokenfeed.store.batch import Batch
from tokenfeed.store.view import View
from tokenfeed.torch.device import to_device

__all__ = ["Samples", "Trainer", "as_inputs", "find_checkpoint"]

IGNORED = -100
"""Label that losses of transformers leave out."""

_STATE = "tokenfeed.json"
"""File of a checkpoint that holds the place in the data."""


def find_checkpoint(folder: str | Path) -> str | None:
    """The newest whole checkpoint in a Trainer's folder; None if there is none.

    `get_last_checkpoint` of transformers also gives one that was killed while it was written.
    """
    steps = {}
    for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}"):  # the file that is written last
        with suppress(ValueError):  # half a file
            steps[int(json.loads(path.read_text())["global_step"])] = str(path.parent)
    return steps[max(steps)] if steps else None


def as_inputs(batch: Batch, *, separate_documents: bool = False) -> dict[str, Any]:
    """What models of transformers take: `input_ids`, and `labels` beside them, −100 where a target does not count.

    `separate_documents` gives `position_ids` that begin again with every document: attention stays within it. Where
    a row is one document, it does so anyway. These models take no weights, so a batch that has them is refused.
    """
    if batch.rows.layout.is_weighted:
        raise ArgumentError(
            "models of transformers take no loss_weights: every target would count as 1. Make the view with loss_mask= "
            "instead, or compute the loss yourself from batch.loss_weights"
        )
    inputs, targets = (_as_tensor(array).long() for array in batch)
    mask = batch.loss_mask
    labels = targets if mask is None else targets.masked_fill(~torch.as_tensor(mask), IGNORED)
    first = labels.new_full((len(batch), 1), IGNORED)
    given = {
        "input_ids": torch.cat([inputs, targets[:, -1:].clamp(min=0)], dim=1),
        "labels": torch.cat([first, labels.masked_fill(labels < 0, IGNORED)], dim=1),
    }
    if not separate_documents or batch.rows.layout.length is None:
        return given | {"attention_mask": torch.ones_like(given["input_ids"])}
    numbers = batch.host.span_numbers()
    places = batch.host.position_ids
    last = np.where(numbers[:, -1] == numbers[:, -2], places[:, -1] + 1, 0)
    positions = torch.from_numpy(np.column_stack([places, last]).astype(np.int64))
    # With a cache, models of transformers do not look for documents.
    return given | {"position_ids": positions.to(inputs.device), "use_cache": False}


def _as_tensor(array: Any) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(array.astype(np.int64, copy=False))


class Samples(Dataset[dict[str, Any]]):
    """The samples of a view by number, as `Trainer` takes them for evaluation. Rows must have one length."""

    def __init__(self, view: View, *, separate_documents: bool = False) -> None:
        if view.layout.length is None:
            raise ArgumentError(
                "eval_dataset holds documents, whose lengths differ; evaluate on store.windows(…) or store.packed(…)"
            )
        self._view = view
        self._separate = separate_documents

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """The samples of a batch by one call, as torch asks for them."""
        rows = as_inputs(self._view.read(indices), separate_documents=self._separate)
        rows.pop("use_cache", None)  # the Trainer says so to the model
        return [{name: tensor[row] for name, tensor in rows.items()} for row in range(len(indices))]


class _Batches(IterableDataset[dict[str, Any]]):
    """The batches of a loader, an epoch of the Trainer at a time. The next epoch goes on where the last one ended."""

    def __init__(
        self, loader: Delivery, device: torch.device, *, longest: int | None, separate_documents: bool
    ) -> None:
        self.loader = loader
        self._longest = longest
        self._placed = to_device(loader, device)
        self._separate = separate_documents
        self.skipped = 0
        """Batches that the Trainer is going to throw away, for it takes a dataset to begin again on resume."""

    def __len__(self) -> int:
        """Batches in an epoch, where there is one: a stream has none, and sources of a mixture have their own."""
        if isinstance(self.loader, Loader) and len(self.loader.plan.sources) == 1:
            return self.loader.steps_per_epoch
        raise TypeError("this data has no epoch: give TrainingArguments(max_steps=…)")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        skipped, self.skipped = self.skipped, 0
        for step in range(len(self)) if has_length(self) else count():
            yield {} if step < skipped else self._next()

    def _next(self) -> dict[str, Any]:
        given = as_inputs(next(self._placed), separate_documents=self._separate)
        length = given["input_ids"].shape[1]
        if self._longest is not None and length > self._longest:
            raise ArgumentError(
                f"rows have {length:,} tokens, {length - 1:,} inputs and the last target, and the model takes "
                f"{self._longest:,}: make rows of length {self._longest - 1}"
            )
        return given


class Trainer(transformers.Trainer):
    """transformers' Trainer, whose `train_dataset` may be a view, a mixture, a Loader or a stream of tokenfeed.

    As the first base class it does the same for another trainer: `class Mine(Trainer, OtherTrainer)`. Batches go past
    `accelerator.prepare`: every process reads its own share. `eval_dataset` may be a view.
    """

    def __init__(
        self,
        *arguments: Any,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        separate_documents: bool = False,
        **more: Any,
    ) -> None:
        """`separate_documents` keeps attention within documents (`position_ids` begin again with each)."""
        self._data = train_dataset if isinstance(train_dataset, View | Mixture | Delivery) else None
        self._separate = separate_documents
        self._checkpoint: str | None = None
        self._batches: _Batches | None = None
        seen = train_dataset if self._data is None else self._stand_in(self._data)
        named = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
        wrapped = {name: self._as_samples(each) for name, each in named.items()}
        given = wrapped if isinstance(eval_dataset, dict) else wrapped[""]
        super().__init__(*arguments, train_dataset=seen, eval_dataset=given, **more)
        if self._data is not None:
            self._check(self._data)

    def _as_samples(self, data: Any) -> Any:
        return Samples(data, separate_documents=self._separate) if isinstance(data, View) else data

    def _stand_in(self, data: View | Mixture | Delivery) -> Any:
        """What the base class is given as its dataset. It asks whether there is a length, and no more."""
        return _Sized(data)

    def _check(self, data: View | Mixture | Delivery) -> None:
        if self.args.dataloader_num_workers:
            raise ArgumentError(
                f"dataloader_num_workers is {self.args.dataloader_num_workers}: each of these processes would deliver "
                "everything. Leave it at 0; batches are read ahead in threads"
            )
        if isinstance(data, Delivery) and has_length(data):
            raise ArgumentError(
                "train_dataset is a loader with an end (epochs=…): leave epochs out, and say TrainingArguments("
                "num_train_epochs=…) or max_steps"
            )

    def _make_loader(self, data: View | Mixture | Delivery) -> Delivery:
        """A loader for this process. One that was given must agree with what the trainer was told."""
        place = {"rank": self.args.process_index, "world_size": self.args.world_size}
        if not isinstance(data, Delivery):
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return Loader(
                data, self._train_batch_size, seed=seed, accumulate=self.args.gradient_accumulation_steps, **place
            )
        if (data.rank, data.world_size) != tuple(place.values()):
            raise ArgumentError(
                f"train_dataset is the loader of rank {data.rank} of {data.world_size}, in process "
                f"{place['rank']} of {place['world_size']}: leave out rank and world_size, or give a view"
            )
        if data.next_batch_size != self._train_batch_size:
            raise ArgumentError(
                f"train_dataset is a loader with batch_size={data.next_batch_size}, and the trainer's is "
                f"{self._train_batch_size} (per_device_train_batch_size): give both the same, or give a view"
            )
        steps = self.args.gradient_accumulation_steps
        if isinstance(data, Loader) and data.rule.accumulate != steps:
            raise ArgumentError(
                f"train_dataset is a loader with accumulate={data.rule.accumulate}, and the trainer's is {steps} "
                f"(gradient_accumulation_steps): give Loader(…, accumulate={steps}), or its run file counts other steps"
            )
        return data

    def get_train_dataloader(self) -> Any:
        if self._data is None:
            return super().get_train_dataloader()
        loader = self._make_loader(self._data)
        if self._checkpoint is not None:
            path = Path(self._checkpoint, _STATE)
            if not path.exists():
                raise StateError(
                    f"{path.parent} holds no {_STATE}: the run began without tokenfeed. To begin its data again, give "
                    "resume_from_checkpoint=None and load the weights into the model"
                )
            AllRanks(loader).load_state_dict(json.loads(path.read_text()))
        longest = getattr(self.model.config, "max_position_embeddings", None)  # not every model has a limit
        self._batches = _Batches(loader, self.args.device, longest=longest, separate_documents=self._separate)
        return DataLoader(self._batches, batch_size=None)

    def log(self, logs: dict[str, float], *arguments: Any, **more: Any) -> None:
        """With every training loss, what `tokenfeed.observe.measure` gives."""
        if self._batches is not None and "loss" in logs:
            logs = logs | measure(self._batches.loader)
        super().log(logs, *arguments, **more)

    def num_examples(self, dataloader: Any) -> int:
        if dataloader.dataset is self._batches:
            return len(dataloader) * int(self._train_batch_size * self.args.world_size)
        return int(super().num_examples(dataloader))

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **more: Any) -> Any:
        """transformers' `train`; with `resume_from_checkpoint=True`, from the newest whole checkpoint."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = find_checkpoint(self.args.output_dir) or True
        return super().train(resume_from_checkpoint, *arguments, **more)

    def _inner_training_loop(self, *arguments: Any, resume_from_checkpoint: str | None = None, **more: Any) -> Any:
        self._checkpoint = resume_from_checkpoint
        if self._data is not None:
            self.args.ignore_data_skip = False  # nothing is read to be skipped, and steps keep their place in the epoch
        return super()._inner_training_loop(*arguments, resume_from_checkpoint=resume_from_checkpoint, **more)

    def _init_training_state(self, *arguments: Any, **more: Any) -> tuple[int, int]:
        epochs, steps = super()._init_training_state(*arguments, **more)
        if self._batches is not None:
            self._batches.skipped = steps
        return epochs, steps

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._batches is not None:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            state = AllRanks(self._batches.loader).state_dict()
            if self.args.should_save:  # before the Trainer writes its own state, which makes the checkpoint whole
                folder.mkdir(parents=True, exist_ok=True)
                (folder / _STATE).write_text(json.dumps(state))
        super()._save_checkpoint(model, trial)


class _Sized(Dataset[Any]):
    """Says how long the data is, and is never iterated over."""

    def __init__(self, data: View | Mixture | Delivery) -> None:
        self._data = data

    def __len__(self) -> int:
        if isinstance(self._data, View):
            return len(self._data)
        raise TypeError("give TrainingArguments(max_steps=…), for this data has no length")
