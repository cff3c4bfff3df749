"""Megatron-LM's `train_valid_test_datasets_provider`, for a script such as its pretrain_gpt.py.

Megatron numbers the samples of a run, and its checkpoints say how many were consumed. Item k here is sample k of a
plan, so a resumed run has the same samples, on any number of ranks. It needs `--dataloader-type single`, the default.
"""

import numpy as np
import torch

import tokenfeed


class Samples(torch.utils.data.Dataset):
    def __init__(self, sources, num_samples, seed=0):  # sources: {name: (view, weight)}
        self.plan = tokenfeed.Plan.of(tokenfeed.mix(sources), seed=seed)
        self.views = [sources[source.name][0] for source in self.plan.sources]
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, sample):
        (source,), _, (index,) = self.plan.locate([sample])
        batch = self.views[source].read([index])
        tokens, labels = (torch.from_numpy(each[0].astype(np.int64)) for each in batch)
        mask = torch.ones(len(tokens)) if batch.loss_mask is None else torch.from_numpy(batch.loss_mask[0]).float()
        return {"tokens": tokens, "labels": labels, "loss_mask": mask, "position_ids": torch.arange(len(tokens))}


def train_valid_test_datasets_provider(num_samples, vp_stage=None):
    from megatron.training import get_args

    args = get_args()
    web, code, valid = (
        tokenfeed.open(f"{name}_text_document.idx").windows(args.seq_length) for name in ("web", "code", "valid")
    )
    train = Samples({"web": (web, 0.7), "code": (code, 0.3)}, num_samples[0], args.seed)
    return train, Samples({"valid": (valid, 1)}, num_samples[1]), None
