"""The shape of nanoGPT's train.py, with a `get_batch` that has a state. Kill it, and start it again.

    torchrun --nproc-per-node 2 examples/nanogpt/train.py DATA --out DIR

DATA holds `train.bin` and `val.bin`, as nanoGPT's prepare.py writes them.
"""

import argparse
import json
import os
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

from tokenfeed.integrations.nanogpt import Batches  # import


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="checkpoints to write, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per evaluation and checkpoint")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which rows each rank trains on")
    options = parser.parse_args()

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(1337)
    model = torch.nn.Sequential(torch.nn.Embedding(options.vocabulary, 32), torch.nn.Linear(32, options.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    get_batch = Batches(options.data, options.length, options.batch_size)  # tokenfeed
    iter_num = 0
    if newest := max(options.out.glob("ckpt-*.pt"), default=None):
        checkpoint = torch.load(newest)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        iter_num = checkpoint["iter_num"]
        get_batch.load_state_dict(checkpoint["data"])  # tokenfeed
    options.out.mkdir(parents=True, exist_ok=True)
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    @torch.no_grad()
    def estimate_loss() -> dict[str, float]:
        return {split: sum(loss_of(*get_batch(split)).item() for _ in range(4)) / 4 for split in ("train", "val")}

    x, y = get_batch("train")
    while True:
        if iter_num and iter_num % options.every == 0 and rank == 0:  # here a batch is fetched, and not trained on
            print(f"step {iter_num}: {estimate_loss()}", flush=True)
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": iter_num,
                "data": get_batch.state_dict(),  # tokenfeed
            }
            path = options.out / f"ckpt-{iter_num:06}.pt"
            torch.save(checkpoint, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        if iter_num == options.steps:
            break
        if options.trace:
            with (options.trace / f"rank-{rank}.jsonl").open("a") as file:
                samples = [zlib.crc32(row.numpy().tobytes()) for row in x]
                file.write(json.dumps({"step": iter_num, "samples": samples}) + "\n")
        loss = loss_of(x, y)
        x, y = get_batch("train")
        loss.backward()
        if dist.is_initialized():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        iter_num += 1
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
