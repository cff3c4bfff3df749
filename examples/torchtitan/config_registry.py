"""torchtitan's small Llama on a store: put this function into the configuration registry that you train by.

torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_on_tokenfeed
"""

from typing import Any

from tokenfeed.integrations.torchtitan import TokenfeedDataLoader  # import


def llama3_on_tokenfeed() -> Any:
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    config.dataloader = TokenfeedDataLoader.Config(dataset_path="store", split="train")  # tokenfeed
    config.validator.dataloader = TokenfeedDataLoader.Config(dataset_path="store", split="val")  # tokenfeed
    config.checkpoint.enable = True
    return config
