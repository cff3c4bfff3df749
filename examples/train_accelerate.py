"""Train a small GPT with Hugging Face Accelerate. Start it again, on any number of processes, and it goes on.

    accelerate launch --num_processes 2 examples/train_accelerate.py STORE --checkpoint DIR       (GPUs)
    torchrun --nproc-per-node 2 examples/train_accelerate.py STORE --checkpoint DIR               (anything)

`prepare` gets the model and the optimizer, but not the loader, which divides samples among ranks already.
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from train_ddp import GPT

import tokenfeed
import tokenfeed.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="updates in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="updates per checkpoint")
    parser.add_argument("--accumulate", type=int, default=2, help="batches per update")
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank and batch")
    parser.add_argument("--length", type=int, default=256, help="tokens per window")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which samples each rank trains on")
    options = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=options.accumulate)
    torch.manual_seed(0)
    model = GPT(options.vocabulary, options.length, options.width, layers=2)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    windows = tokenfeed.open(options.store, split="train").windows(options.length)
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    loader = tokenfeed.Loader(windows, options.batch_size, **place)
    accelerator.register_for_checkpointing(loader)

    step = 0
    if newest := max(options.checkpoint.glob("step-*"), default=None):
        accelerator.load_state(newest)
        step = int(newest.name.removeprefix("step-"))

    trace = None
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)
        trace = (options.trace / f"rank-{loader.rank}.jsonl").open("a", buffering=1)

    batches = tokenfeed.torch.to_device(loader, accelerator.device)
    while step < options.steps:
        batch = next(batches)
        with accelerator.accumulate(model):
            loss = model(*batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if trace:
            trace.write(json.dumps({"step": step, "samples": batch.samples.tolist()}) + "\n")
        if accelerator.sync_gradients:  # the weights were updated: a checkpoint has no gradients in it
            step += 1
            if step % options.every == 0 or step == options.steps:
                accelerator.save_state(options.checkpoint / f"step-{step:09}")
                accelerator.print(f"step {step}: loss {loss.item():.4f}")

    model, optimizer = accelerator.free_memory(model, optimizer)  # before the processes part: see train_ddp.py
    accelerator.end_training()


if __name__ == "__main__":
    main()
