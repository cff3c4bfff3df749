"""Train on what litdata's `optimize` or MosaicML's MDSWriter wrote, in place. Kill it, and start it again.

    torchrun --nproc-per-node 2 examples/other_loaders/train.py DATA --checkpoint DIR

DATA is the folder with `index.json`. Nothing is copied: the length of rows is chosen here, and no token is left out.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist

import tokenfeed  # import
import tokenfeed.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dtype", help="of token ids, where the files do not say: a column of bytes of an MDS folder")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which samples each rank trains on")
    options = parser.parse_args()
    for folder in filter(None, (options.checkpoint, options.trace)):
        folder.mkdir(parents=True, exist_ok=True)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(options.vocabulary, 32), torch.nn.Linear(32, options.vocabulary))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    windows = tokenfeed.open(options.data, dtype=options.dtype).windows(options.length)  # tokenfeed
    batches = tokenfeed.torch.to_device(tokenfeed.Loader(windows, options.batch_size), "cpu")  # tokenfeed
    step = 0
    if newest := max(options.checkpoint.glob("step-*.pt"), default=None):
        saved = torch.load(newest)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        batches.load_state_dict(saved["data"])  # tokenfeed
    for batch in batches:
        if options.trace:
            with (options.trace / f"rank-{rank}.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "samples": batch.samples.tolist()}) + "\n")
        torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten()).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % options.every == 0 and rank == 0:
            checkpoint = {
                "step": step,
                "model": model.state_dict(),
                "data": batches.state_dict(),  # tokenfeed
            }
            path = options.checkpoint / f"step-{step:09}.pt"
            torch.save(checkpoint, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        if step >= options.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
