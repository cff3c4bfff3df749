"""Train with Hugging Face Accelerate. Start it again, on any number of processes, and it goes on.

    accelerate launch --num_processes 2 examples/accelerate/train.py STORE --checkpoint DIR       (GPUs)
    torchrun --nproc-per-node 2 examples/accelerate/train.py STORE --checkpoint DIR               (anything)

`prepare` gets the model and the optimizer, but not the batches, which are divided among processes already.
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator

import tokenfeed
from tokenfeed.integrations.accelerate import make_batches  # import


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
    sizes = options.vocabulary, options.width
    model = torch.nn.Sequential(torch.nn.Embedding(*sizes), torch.nn.Linear(*reversed(sizes)))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    windows = tokenfeed.open(options.store, split="train").windows(options.length)  # tokenfeed
    batches = make_batches(accelerator, windows, options.batch_size)  # tokenfeed

    step = 0
    if newest := max(options.checkpoint.glob("step-*[0-9]"), default=None):
        accelerator.load_state(newest)
        step = int(newest.name.removeprefix("step-"))

    trace = None
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)
        trace = (options.trace / f"rank-{accelerator.process_index}.jsonl").open("a", buffering=1)
    for batch in batches:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if trace:
            trace.write(json.dumps({"step": step, "samples": batch.samples.tolist()}) + "\n")
        if accelerator.sync_gradients:  # the weights were updated: a checkpoint has no gradients in it
            step += 1
            if step % options.every == 0 or step == options.steps:
                folder = options.checkpoint / f"step-{step:09}"
                accelerator.save_state(folder.with_suffix(".part"))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:  # a folder that was killed in the middle keeps the name .part
                    folder.with_suffix(".part").rename(folder)
                accelerator.print(f"step {step}: loss {loss.item():.4f}")
        if step >= options.steps:
            break

    model, optimizer = accelerator.free_memory(model, optimizer)  # before the processes part
    accelerator.end_training()


if __name__ == "__main__":
    main()
