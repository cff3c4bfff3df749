"""Loops around what tests cannot start whole: torchtitan's checkpoints, and examples for nanoGPT, Megatron and Orbax.

    loops.py NAME STORE --checkpoint DIR --trace DIR

torchtitan's trainer wants a GPU, and nanoGPT and Megatron's loader are in no package: here runs what of them touches
data. Each
function gives the step to begin with, batches as lists of what is noted, and what saves a step. Ranks are found as
torchrun sets them.
"""

import argparse
import json
import os
import runpy
import zlib
from pathlib import Path

import numpy as np

import tokenfeed

EXAMPLES = Path(__file__).parents[3] / "examples"


def torchtitan(options, rank, ranks):
    """Its data loader, saved in the background by its manager of checkpoints."""
    import torch
    import torch.distributed as dist
    from torchtitan.components.checkpoint import CheckpointManager

    from tokenfeed.integrations.torchtitan import TokenfeedDataLoader

    class State:
        """As torchtitan's trainer is one, for its step."""

        def __init__(self):
            self.step = 0

        def state_dict(self):
            return {"step": torch.tensor(self.step)}

        def load_state_dict(self, state):
            self.step = int(state["step"])

    dist.init_process_group("gloo")
    place = {"dp_rank": rank, "dp_world_size": ranks, "seq_len": options.length, "local_batch_size": options.batch_size}
    config = TokenfeedDataLoader.Config(dataset_path=str(options.store), split="train")
    loader, trained = config.build(**place, tokenizer=None), State()
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=options.every, async_mode="async", folder="."),
        dataloader=loader,
        model_parts=[torch.nn.Linear(2, 2)],
        optimizers=State(),
        lr_schedulers=State(),
        states={"train_state": trained},
        sd_adapter=None,
        base_folder=str(options.checkpoint),
    )
    manager.load()

    def save(step):
        trained.step = step
        manager.save(step)

    def close():
        manager.maybe_wait_for_saving()
        dist.barrier()
        dist.destroy_process_group()

    return trained.step, (given["input"].tolist() for given, _ in loader), save, close


def megatron(options, rank, ranks):
    """Its checkpoints count the samples consumed, and its sampler gives a run of samples to every rank."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    samples_of = runpy.run_path(str(EXAMPLES / "megatron/provider.py"))["Samples"]
    dist.init_process_group("gloo")
    windows = tokenfeed.open(options.store, split="train").windows(options.length)
    dataset = samples_of({"web": (windows, 1)}, 10_000_000, seed=0)
    newest = max(options.checkpoint.glob("iter_*.json"), default=None)
    step, consumed = json.loads(newest.read_text()) if newest else (0, 0)
    first, size = (step, consumed), options.batch_size
    starts = range(consumed + rank * size, len(dataset), size * ranks)
    sampler = (range(start, start + size) for start in starts)

    def save(step):
        dist.barrier()
        path = options.checkpoint / f"iter_{step:07}.json"
        if rank == 0:
            consumed = first[1] + (step - first[0]) * size * ranks
            path.with_suffix(".part").write_text(json.dumps([step, consumed]))
            path.with_suffix(".part").rename(path)

    batches = (batch["tokens"].tolist() for batch in DataLoader(dataset, batch_sampler=sampler))
    return step, batches, save, dist.destroy_process_group


def nanogpt(options, rank, ranks):
    """It saves, and evaluates on rank 0 alone, when it has fetched a batch that it has not trained on."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    make = runpy.run_path(str(EXAMPLES / "nanogpt/get_batch.py"))["Batches"]
    get_batch = make(options.store, options.length, options.batch_size)
    newest = max(options.checkpoint.glob("ckpt-*.pt"), default=None)
    checkpoint = torch.load(newest) if newest else {"iter_num": 0}
    if newest:
        get_batch.load_state_dict(checkpoint["data"])

    def batches():
        inputs, _ = get_batch("train")
        while True:
            trained = inputs
            inputs, _ = get_batch("train")
            dist.barrier()  # where gradients are exchanged
            yield [zlib.crc32(row.numpy().tobytes()) for row in trained]

    def save(step):
        if rank == 0:
            with torch.no_grad():
                assert all((get_batch(split)[0] < 2**16).all() for split in ("train", "val"))
            path = options.checkpoint / f"ckpt-{step:06}.pt"
            torch.save({"iter_num": step, "data": get_batch.state_dict()}, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)

    return checkpoint["iter_num"], batches(), save, dist.destroy_process_group


def orbax(options, rank, ranks):
    """Weights and the place in the data, saved in the background by one manager of all processes."""
    import jax
    import orbax.checkpoint as ocp

    example = runpy.run_path(str(EXAMPLES / "orbax/checkpoint.py"))
    jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", ranks, rank)
    windows = tokenfeed.open(options.store, split="train").windows(options.length)
    loader = tokenfeed.Loader(windows, options.batch_size, rank=rank, world_size=ranks)
    manager = ocp.CheckpointManager(options.checkpoint.absolute())
    step = manager.latest_step() or 0
    if step:
        weights = example["restore"](manager, {"w": np.zeros(1000)}, loader)
        assert (weights["w"] == step).all()

    def save(step):
        example["save"](manager, step, {"w": np.full(1000, float(step))}, loader)

    return step, (batch.inputs.tolist() for batch in loader), save, manager.close


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=["torchtitan", "megatron", "nanogpt", "orbax"])
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--trace", type=Path)
    for name in ("--steps", "--every", "--batch-size", "--length"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for folder in (options.checkpoint, options.trace):
        folder.mkdir(parents=True, exist_ok=True)
    step, batches, save, close = globals()[options.loop](options, rank, ranks)
    with (options.trace / f"rank-{rank}.jsonl").open("a", buffering=1) as file:
        while step < options.steps:
            file.write(json.dumps({"step": step, "samples": next(batches)}) + "\n")
            step += 1
            if step % options.every == 0:
                save(step)
    close()


if __name__ == "__main__":
    main()
