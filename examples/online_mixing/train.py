"""Online data mixing (arXiv 2312.02406): a bandit whose reward is the loss of a source sets the shares of all.

torchrun --nproc-per-node 2 examples/online_mixing/train.py FOLDER     # with the stores FOLDER/web and FOLDER/code
"""

import math
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import tokenfeed
from tokenfeed.torch import to_device

FOLDER, NAMES, COUNT, EVERY, SMOOTHING = sys.argv[1], ["web", "code"], 2, 10, 0.9
if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
views = {name: (tokenfeed.open(f"{FOLDER}/{name}").windows(16), 1.0) for name in NAMES}
loader = tokenfeed.Loader(tokenfeed.mix(views), 8, run=f"{FOLDER}/run.jsonl")
model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
shares, rewards, explored = torch.full((COUNT,), 1 / COUNT), torch.zeros(COUNT), 1 / COUNT
sums = torch.zeros(2, COUNT)  # by source: losses, and rows
for step, batch in zip(range(1, 101), to_device(loader, "cpu"), strict=False):
    loss = cross_entropy(model(batch.inputs).transpose(1, 2), batch.targets, reduction="none")
    loss.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    sums.index_add_(1, torch.as_tensor(batch.sources), torch.stack([loss.detach().mean(1), torch.ones(len(loss))]))
    if step % EVERY == 0:
        if dist.is_initialized():
            dist.all_reduce(sums)  # all ranks make the same change
        for source in sums[1].nonzero():  # those that were drawn
            reward = sums[0, source] / sums[1, source] / shares[source]
            rewards[source] = SMOOTHING * rewards[source] + (1 - SMOOTHING) * reward
        least = min(1 / COUNT, math.sqrt(math.log(COUNT) / (COUNT * step / EVERY)))
        shares, explored = (1 - COUNT * least) * torch.softmax(explored * rewards, 0) + least, least
        loader.amend(weights=dict(zip(NAMES, shares.tolist(), strict=True)))
        sums.zero_()
