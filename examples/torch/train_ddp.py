"""Train a small GPT on a store, on as many ranks as there are. Kill it at any moment and start it again, on any number.

    torchrun --nproc-per-node 2 examples/torch/train_ddp.py STORE --checkpoint DIR

Steps are micro-steps: one batch on every rank. A checkpoint may fall between the micro-steps of one accumulation; the
gradients so far are in it. A run that was killed and resumed trains on the samples of one that was not, each exactly
once; with the same number of ranks, on the CPU, it ends with the same weights, bit for bit.

DIR is one folder for all ranks. Every checkpoint is kept: to go back to one, delete the later ones.
"""

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import tokenfeed
import tokenfeed.torch


class Block(nn.Module):
    """Causal attention, then two layers on every token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention_in(self.norm_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """From (batch, length) inputs and targets to the mean loss. No dropout, so there is no random state to save."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.blocks(self.tokens(inputs) + self.places.weight[: inputs.shape[1]])
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=10_000, help="micro-steps in all, with those before a resume")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-steps per update of the weights")
    parser.add_argument("--every", type=int, default=500, help="micro-steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank and micro-step")
    parser.add_argument("--length", type=int, default=256, help="tokens per window")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which samples each rank trains on")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(options.seed)
    model = GPT(options.vocabulary, options.length, options.width, options.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    options.checkpoint.mkdir(parents=True, exist_ok=True)
    windows = tokenfeed.open(options.store).windows(options.length)
    loader = tokenfeed.Loader(windows, options.batch_size, seed=options.seed, run=options.checkpoint / "run.jsonl")
    batches = tokenfeed.torch.to_device(loader, device)

    # DistributedDataParallel arranges its buckets anew after the first backward, which changes the order of sums and,
    # from three ranks on, the last bits. A blank first one lets a fresh run and a resumed one sum alike.
    parallel = DistributedDataParallel(model)
    blank = torch.zeros(1, options.length, dtype=torch.int64, device=device)
    parallel(blank, blank).backward()
    optimizer.zero_grad()

    step = 0
    if newest := max(options.checkpoint.glob("step-*.pt"), default=None):
        state = torch.load(newest, map_location="cpu", weights_only=True)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batches.load_state_dict(state["loader"])
        for parameter, gradient in zip(model.parameters(), state["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(device)

    trace = None
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)
        trace = (options.trace / f"rank-{loader.rank}.jsonl").open("a", buffering=1)  # line by line

    while step < options.steps:
        batch = next(batches)
        step += 1
        is_update = step % options.accumulate == 0
        is_checkpoint = step % options.every == 0 or step == options.steps
        if trace:  # before the ranks meet in `backward`: what a checkpoint contains, all of them have noted
            line = {"step": step, "samples": batch.samples.tolist(), "indices": batch.host.indices.tolist()}
            trace.write(json.dumps(line) + "\n")

        # Gradients are averaged over ranks when they are used, and when they are saved: then those of rank 0 are
        # everybody's, and a resume can give them to any number of ranks.
        with nullcontext() if is_update or is_checkpoint else parallel.no_sync():
            loss = parallel(*batch)
            (loss / options.accumulate).backward()
        if is_update:
            optimizer.step()
            optimizer.zero_grad()

        if is_checkpoint and loader.rank == 0:
            state = {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": batches.state_dict(),
                "gradients": [parameter.grad for parameter in model.parameters()],  # None after an update
            }
            save(options.checkpoint / f"step-{step:09}.pt", state)
            print(
                f"step {step}: loss {loss.item():.4f}, {loader.stats().wait_fraction:.2%} of the time waited for data"
            )

    # Whoever owns the process group last waits for its threads. This wrapper would do so with the interpreter locked,
    # which a thread of gloo may be waiting for: so it goes first.
    del parallel
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
