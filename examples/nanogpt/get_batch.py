"""nanoGPT's `get_batch`, with a state. In its train.py, in place of the function:

get_batch = Batches(data_dir, block_size, batch_size, device)     # the folder of train.bin and val.bin
checkpoint = {…, "data": get_batch.state_dict()}; get_batch.load_state_dict(checkpoint["data"])

nanoGPT fetches a batch before it saves, so the state is the one before the last training batch. What is asked for under
`torch.no_grad` is evaluation: the same windows every time, and nothing is taken from training.
"""

import torch

import tokenfeed
from tokenfeed.torch import to_device


class Batches:
    def __init__(self, folder, block_size, batch_size, device="cpu", seed=1337):
        self.folder, self.shape, self.device = folder, (block_size, batch_size), device
        self.train, self.evaluation = self.load("train", seed=seed), {}
        self.state = self.train.state_dict()

    def load(self, split, **options):
        windows = tokenfeed.open(f"{self.folder}/{split}.bin").windows(self.shape[0])
        loader = tokenfeed.Loader(windows, self.shape[1], **options)
        return to_device(loader, self.device, dtypes={"inputs": torch.int64})

    def __call__(self, split):
        if split == "train" and torch.is_grad_enabled():
            self.state, self.evaluation = self.train.state_dict(), {}
            return tuple(next(self.train))
        if split not in self.evaluation:
            self.evaluation[split] = self.load(split, rank=0, world_size=1)
        return tuple(next(self.evaluation[split]))

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.train.load_state_dict(state)
        self.state = state
