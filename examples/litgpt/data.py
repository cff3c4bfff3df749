"""A data module for litgpt, whose checkpoints then hold the place in the data. With PYTHONPATH=examples/litgpt:
litgpt pretrain pythia-14m --data data.Tokens --data.path store --out_dir out --resume auto
"""

import torch.distributed as dist
from litgpt.data import DataModule
from torch.utils.data import DataLoader, IterableDataset

import tokenfeed
from tokenfeed.torch import to_device


class Rows(IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):  # length + 1 tokens a row, of which litgpt makes inputs and targets
        return (batch.tokens for batch in to_device(self.make(), "cpu"))


class Tokens(DataModule):
    def __init__(self, path: str, seed: int = 42):
        self.path, self.seed = path, seed

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None, **_):
        self.batch_size, self.length = batch_size, max_seq_length or 2048

    def loader(self, split, **options):
        place = {"rank": dist.get_rank(), "world_size": dist.get_world_size()} if dist.is_initialized() else {}
        windows = tokenfeed.open(self.path, split=split).windows(self.length)
        return tokenfeed.Loader(windows, self.batch_size, seed=self.seed, **place, **options)

    def train_dataloader(self):
        loader = self.loader("train")
        batches = DataLoader(Rows(lambda: loader), batch_size=None)
        batches.state_dict, batches.load_state_dict = loader.state_dict, loader.load_state_dict
        return batches

    def val_dataloader(self):  # begins again at every evaluation
        return DataLoader(Rows(lambda: self.loader("val", epochs=1, shuffle=False)), batch_size=None)
