"""Train a small GPT with FSDP2, and keep everything in one torch.distributed.checkpoint. Resume on any number of ranks.

    torchrun --nproc-per-node 2 examples/torch/train_fsdp.py STORE --checkpoint DIR

The batch of a step is one for all ranks together, whatever their number: a run that began on two ranks and goes on on
one, or on four, trains on the same samples in the same steps, and its losses agree but for the order of sums. At the
end every validation window is looked at exactly once, however few they are.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train_ddp import GPT

import tokenfeed
import tokenfeed.torch


class Weights:
    """Model and optimizer as one Stateful: shards of every rank, under names that do not depend on their number."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


@torch.no_grad()
def evaluate(model: torch.nn.Module, windows: Any, batch_size: int, device: torch.device) -> tuple[float, int]:
    """The mean loss over all windows, each once, and their number. Every rank takes equally many steps."""
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    loader = tokenfeed.Loader(windows, batch_size, epochs=1, shuffle=False)
    for batch in tokenfeed.torch.to_device(loader, device):
        if len(batch):
            sums += torch.tensor([model(*batch).item() * len(batch), len(batch)], dtype=torch.float64, device=device)
        else:  # nothing is left for this rank, but the others wait for it in all-gathers
            blank = torch.zeros(1, windows.length, dtype=torch.int64, device=device)
            model(blank, blank)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item(), int(sums[1])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=16, help="windows per step, over all ranks")
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
    world_size = dist.get_world_size()
    assert options.batch_size % world_size == 0, "the ranks share the batch equally"

    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("dp",))
    model = GPT(options.vocabulary, options.length, options.width, options.layers).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    windows = tokenfeed.open(options.store, split="train").windows(options.length)
    options.checkpoint.mkdir(parents=True, exist_ok=True)
    run = options.checkpoint / "run.jsonl"
    loader = tokenfeed.Loader(windows, options.batch_size // world_size, run=run, **tokenfeed.torch.data_parallel(mesh))

    step = 0
    state = {"weights": Weights(model, optimizer), "loader": loader}  # a loader is a Stateful as it is
    if newest := max(options.checkpoint.glob("step-*/.metadata"), default=None):  # written last: that one is complete
        dcp.load(state, checkpoint_id=newest.parent)
        step = int(newest.parent.name.removeprefix("step-"))

    batches = tokenfeed.torch.to_device(loader, device)
    while step < options.steps:
        loss = model(*next(batches))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        loss = loss.detach()
        dist.all_reduce(loss)
        if loader.rank == 0:
            print(f"step {step}: loss {loss.item() / world_size:.6f}", flush=True)
        if step % options.every == 0 or step == options.steps:
            dcp.save(state, checkpoint_id=options.checkpoint / f"step-{step:09}")

    validation = tokenfeed.open(options.store, split="val").windows(options.length)
    loss, seen = evaluate(model, validation, options.batch_size // world_size, device)
    if loader.rank == 0:
        print(f"validation: loss {loss:.6f} over {seen} windows of {len(validation)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
