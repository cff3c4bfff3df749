"""A dataset for Megatron-LM's `build_pretraining_data_loader`. In the function that provides datasets:

return Dataset(train, num_samples[0], seed=args.seed), Dataset(val, num_samples[1]), None

Megatron numbers the samples of a run and keeps in its checkpoints how many were consumed. Item k of this dataset is
sample k of a plan, so a resumed run has the same samples, on any number of ranks, and a blend may change in mid-run.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.loader.reading import Joined, StepReader, Steps
from tokenfeed.plan.mixing import Mixture
from tokenfeed.plan.plan import Plan
from tokenfeed.store.batch import HostBatch
from tokenfeed.store.view import View

__all__ = ["Dataset"]


class Dataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The first samples of a run, by number, as Megatron's GPT models take them.

    Nothing is built before the first sample is read. It needs `--dataloader-type single`, the default of pretraining:
    `cyclic` would shuffle a second time. Workers (`--num-workers`) give the same samples; 0 is as good.
    """

    def __init__(
        self,
        data: View | Mixture | Plan,
        num_samples: int,
        *,
        seed: int = 0,
        separate_documents: bool = False,
    ) -> None:
        """`num_samples` is what Megatron asks for; there may be many epochs in it. `separate_documents` begins
        `position_ids` again with every document, as `--reset-position-ids` does.
        """
        self.plan = data if isinstance(data, Plan) else Plan.of(data, seed=seed)
        if self.plan.end is not None and self.plan.end < num_samples:
            raise ArgumentError(
                f"num_samples is {num_samples:,}, and the run ends after {self.plan.end:,} samples: allow more epochs "
                "(max_epochs), or train for fewer iterations"
            )
        joined = Joined.of(self.plan)
        if joined.view.layout.length is None:
            raise ArgumentError("samples are documents, whose lengths differ: give store.windows(…) or store.packed(…)")
        self._read = StepReader(self.plan, joined, collate=None)
        self._num_samples = num_samples
        self._separate = separate_documents

    def __reduce__(self) -> Any:  # for workers that are spawned
        return partial(type(self), separate_documents=self._separate), (self.plan, self._num_samples)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, sample: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([sample])[0]

    def __getitems__(self, samples: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """The samples of a micro-batch, read by one call."""
        numbers = np.array([int(sample) for sample in samples], np.int64)
        if numbers.size == 0:
            return []
        first, last = int(numbers.min()), int(numbers.max())
        if not 0 <= first <= last < len(self):
            raise SampleIndexError(f"samples {first} to {last} of a dataset of {len(self):,}")
        (batch,) = self._read(Steps(first, numbers, [(numbers.size, last + 1, (first, last + 1))]))
        return self._rows_of(batch)

    def _rows_of(self, batch: HostBatch) -> list[dict[str, torch.Tensor]]:
        shape = batch.inputs.shape
        mask = np.ones(shape) if batch.loss_mask is None else batch.loss_mask
        places = batch.position_ids if self._separate else np.broadcast_to(np.arange(shape[1]), shape)
        columns = {
            "tokens": batch.inputs.astype(np.int64),
            "labels": batch.targets.astype(np.int64),
            "loss_mask": mask.astype(np.float32),
            "position_ids": np.asarray(places).astype(np.int64),
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(column) for name, column in columns.items()}
        return [{name: tensor[row] for name, tensor in tensors.items()} for row in range(len(batch))]
