"""Train on data of MosaicML Streaming: copied into a store once, then read from there. Kill it, and start it again.

    python examples/mosaicml/train.py MDS --store STORE --checkpoint DIR

Each sample of the MDS folder has token ids as bytes, in a column `tokens`. Copying takes one pass.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import tokenfeed  # import
import tokenfeed.torch


def copy(data: Path, store: Path) -> None:
    from streaming import StreamingDataset

    with tokenfeed.Writer(store, columns={"tokens": "uint16"}) as writer:  # tokenfeed
        for sample in StreamingDataset(local=str(data), shuffle=False, batch_size=1):
            writer.append({"tokens": np.frombuffer(sample["tokens"], np.uint16)})  # tokenfeed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which samples are trained on")
    options = parser.parse_args()
    for folder in filter(None, (options.checkpoint, options.trace)):
        folder.mkdir(parents=True, exist_ok=True)
    if not options.store.exists():
        copy(options.data, options.store)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(options.vocabulary, 32), torch.nn.Linear(32, options.vocabulary))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = tokenfeed.Loader(tokenfeed.open(options.store).windows(options.length), options.batch_size)  # tokenfeed
    step = 0
    if newest := max(options.checkpoint.glob("step-*.pt"), default=None):
        saved = torch.load(newest)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])  # tokenfeed
    for batch in tokenfeed.torch.to_device(loader, "cpu"):
        if options.trace:
            with (options.trace / "rank-0.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "samples": batch.samples.tolist()}) + "\n")
        torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % options.every == 0:
            checkpoint = {
                "step": step,
                "model": model.state_dict(),
                "data": loader.state_dict(),  # tokenfeed
            }
            path = options.checkpoint / f"step-{step:09}.pt"
            torch.save(checkpoint, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        if step >= options.steps:
            break


if __name__ == "__main__":
    main()
