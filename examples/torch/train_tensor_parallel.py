"""Train a small GPT on a mesh of two dimensions: data-parallel groups of tensor-parallel ranks.

    torchrun --nproc-per-node 4 examples/torch/train_tensor_parallel.py STORE --tensor-parallel 2

Ranks of one group work on the same rows, each with its part of the weights; groups work on different rows. A loader
needs to know of the groups alone: `data_parallel(mesh)` says which of how many this rank belongs to. Nothing is sent
from rank to rank: all of a group compute the same numbers k, and read the same samples.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from train_ddp import GPT

import tokenfeed
import tokenfeed.torch


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--tensor-parallel", type=int, default=2, help="ranks in a group")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16, help="windows per step, over all groups")
    parser.add_argument("--length", type=int, default=256, help="tokens per window")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    groups, rest = divmod(dist.get_world_size(), options.tensor_parallel)
    assert (rest, options.batch_size % groups) == (0, 0), "groups are of one size, and share the batch equally"
    mesh = init_device_mesh(device.type, (groups, options.tensor_parallel), mesh_dim_names=("dp", "tp"))

    torch.manual_seed(0)
    model = GPT(options.vocabulary, options.length, options.width, options.layers).to(device)
    for block in model.blocks:
        parallelize_module(block.mlp, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    parallelize_module(model, mesh["tp"], {"head": ColwiseParallel(output_layouts=Replicate())})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    windows = tokenfeed.open(options.store).windows(options.length)
    loader = tokenfeed.Loader(windows, options.batch_size // groups, **tokenfeed.torch.data_parallel(mesh, "dp"))
    for step, batch in enumerate(tokenfeed.torch.to_device(loader, device), 1):
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss)
        mean, samples = loss.item() / dist.get_world_size(), batch.samples.tolist()
        print(
            f"step {step}, group {loader.rank}, rank {dist.get_rank()}: loss {mean:.6f}, samples {samples}", flush=True
        )
        if step == options.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
