"""The shape of nanochat's base_train.py, with tokenfeed's loaders under nanochat's names. Kill it, and start it again.

    torchrun --nproc-per-node 2 examples/nanochat/train.py TEXT TOKENIZER --checkpoint DIR

In nanochat itself one import changes, and nothing else. As there, a batch is fetched before a checkpoint is saved, and
rank 0's state is the only one that is saved: it holds those of all ranks, and fits any number of them.
"""

import argparse
import json
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

import tokenfeed
from tokenfeed.integrations.nanochat import (  # import
    tokenizing_distributed_data_loader_bos_bestfit,
    tokenizing_distributed_data_loader_with_state_bos_bestfit,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a folder of Parquet files, the last of which is for validation")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which rows each rank trains on")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, tokenizer = dist.get_rank(), tokenfeed.Tokenizer.load(options.tokenizer)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(tokenizer.vocab_size, 32), torch.nn.Linear(32, tokenizer.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, resume_state = 0, None
    if newest := max(options.checkpoint.glob("meta_*.json"), default=None):
        step, resume_state = (json.loads(newest.read_text())[name] for name in ("step", "dataloader_state_dict"))
        model.load_state_dict(torch.load(newest.with_name(f"model_{step:06}.pt")))

    resumed_from, shape = step, (tokenizer, options.batch_size, options.length)
    files = [str(path) for path in sorted(options.text.glob("*.parquet"))]  # in nanochat, they are nanochat's
    train_loader = tokenizing_distributed_data_loader_with_state_bos_bestfit(
        *shape, split="train", device="cpu", resume_state_dict=resume_state, files=files
    )
    val_loader = tokenizing_distributed_data_loader_bos_bestfit(*shape, split="val", device="cpu", files=files)
    options.checkpoint.mkdir(parents=True, exist_ok=True)
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    x, y, state = next(train_loader)
    while True:
        if step != resumed_from and step % options.every == 0 and rank == 0:
            torch.save(model.state_dict(), options.checkpoint / f"model_{step:06}.pt")
            meta = options.checkpoint / f"meta_{step:06}.json"
            meta.with_suffix(".part").write_text(json.dumps({"step": step, "dataloader_state_dict": state}))
            meta.with_suffix(".part").rename(meta)
            with torch.no_grad():
                print(f"step {step}: validation loss {loss_of(*next(val_loader)):.4f}", flush=True)
        if step == options.steps:
            break
        if options.trace:
            with (options.trace / f"rank-{rank}.jsonl").open("a") as file:
                samples = [zlib.crc32(row.numpy().tobytes()) for row in x]
                file.write(json.dumps({"step": step, "samples": samples}) + "\n")
        loss_of(x, y).backward()
        x, y, state = next(train_loader)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
