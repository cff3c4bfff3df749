"""TRL's SFTTrainer, fed by tokenfeed: `SFTTrainer(model=…, args=SFTConfig(…), train_dataset=store.packed(2047))`.

Rows come as they are: tokenised, packed and masked before. See `tokenfeed.integrations.transformers`.
"""

from typing import Any

import datasets
import trl

from tokenfeed.integrations import transformers
from tokenfeed.integrations.transformers import find_checkpoint
from tokenfeed.loader.delivery import Delivery
from tokenfeed.plan.mixing import Mixture
from tokenfeed.store.view import View

__all__ = ["SFTTrainer", "find_checkpoint"]


class SFTTrainer(transformers.Trainer, trl.SFTTrainer):
    """trl's SFTTrainer, whose `train_dataset` may be a view, a mixture, a Loader or a stream of tokenfeed."""

    def _stand_in(self, data: View | Mixture | Delivery) -> Any:
        """SFTTrainer looks at the columns of the first row, and prepares what has none of these."""
        return datasets.Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})

    def _prepare_dataset(self, dataset: Any, *arguments: Any, **more: Any) -> Any:
        mine = self._data is not None or isinstance(dataset, transformers.Samples)
        return dataset if mine else super()._prepare_dataset(dataset, *arguments, **more)
