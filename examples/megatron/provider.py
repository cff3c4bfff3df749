"""Megatron-LM's `train_valid_test_datasets_provider`, for a script such as its pretrain_gpt.py.

Megatron asks for so many samples of each split, and its checkpoints say how many were consumed.
"""

from collections.abc import Sequence
from typing import Any

import tokenfeed
from tokenfeed.integrations.megatron import Dataset  # import


def train_valid_test_datasets_provider(train_val_test_num_samples: Sequence[int], vp_stage: Any = None) -> Any:
    from megatron.training import get_args

    args = get_args()
    train, valid, _ = train_val_test_num_samples
    web = tokenfeed.open("web_text_document.idx").windows(args.seq_length)  # tokenfeed
    code = tokenfeed.open("code_text_document.idx").windows(args.seq_length)  # tokenfeed
    blend = tokenfeed.mix({"web": (web, 0.7), "code": (code, 0.3)})  # tokenfeed
    held_out = tokenfeed.open("valid_text_document.idx").windows(args.seq_length)  # tokenfeed
    return Dataset(blend, train, seed=args.seed), Dataset(held_out, valid), None  # tokenfeed
