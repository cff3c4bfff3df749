"""Train while machines come and go: the samples of committed steps are those of a run that nothing disturbed.

    torchrun --nnodes 1:3 --nproc-per-node 1 --max-restarts 100 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \
        examples/torch/train_elastic.py STORE --checkpoint DIR

Start this on one to three machines, and on more later. When one is lost, or another comes, torchrun starts all workers
again with another world size; each goes on after the last checkpoint, as another rank, with its part of the same global
batch. A step is committed by the checkpoint after it: a step that was under way when a machine was lost is done again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn import functional

import tokenfeed


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="one folder for all machines")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--global-batch", type=int, default=12, help="rows of all ranks together; 12 fits 1 to 4 ranks")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes at least")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    options.checkpoint.mkdir(parents=True, exist_ok=True)
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(options.vocabulary, 32), nn.Linear(32, options.vocabulary))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    view = tokenfeed.open(options.store).windows(options.length)
    loader = tokenfeed.Loader(view, options.global_batch, rank=0, world_size=1, run=options.checkpoint / "run.jsonl")
    loader.resize(rank=rank, world_size=world_size, same_global_batch=True)
    path = options.checkpoint / "checkpoint.pt"
    step = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["loader"]), step=step)
    while step < options.steps:
        batch = next(loader)
        inputs, targets = (torch.as_tensor(each.astype("int64")) for each in batch)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        time.sleep(options.pause)
        trained = gather({"samples": batch.samples.tolist(), "first": inputs[:, 0].tolist()}, world_size)
        if rank == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state = {"step": step, **states, "loader": json.dumps(batch.state)}
            torch.save(state, path.with_suffix(".partial"))
            with (options.checkpoint / "steps.jsonl").open("a") as file:
                file.write(json.dumps({"step": step - 1, "ranks": trained, "loss": loss.item()}) + "\n")
            path.with_suffix(".partial").replace(path)  # now the step is committed
        torch.distributed.barrier()
    loader.close()
    torch.distributed.destroy_process_group()


def gather(value: Any, world_size: int) -> list[Any]:
    """The values of all ranks."""
    values: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return values


if __name__ == "__main__":
    main()
