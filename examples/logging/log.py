"""What a loader does, in TensorBoard: waiting, tokens/s, shares and epochs of every source, and the loss by source.

    python examples/logging/log.py --out DIR

For W&B, give `wandb.init(…)` to `log` in place of the writer; for MLflow, the module `mlflow`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import tokenfeed
import tokenfeed.torch
from tokenfeed.integrations.logging import log, tensorboard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for name in ("web", "code"):
        with tokenfeed.Writer(options.out / name, columns={"tokens": "uint16"}) as store:
            store.append({"tokens": rng.integers(0, 100, 20_000)})
    web, code = (tokenfeed.open(options.out / name).windows(64) for name in ("web", "code"))
    loader = tokenfeed.Loader(tokenfeed.mix({"web": (web, 0.7), "code": (code, 0.3)}), 10)
    model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100))
    losses, writer = tokenfeed.torch.LossBySource(), tensorboard(options.out / "events")
    batches = tokenfeed.torch.to_device(loader, "cpu")
    for step in range(1, options.steps + 1):
        batch = next(batches)
        logits = model(batch.inputs).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, batch.targets.flatten(), reduction="none").view(len(batch), -1)
        losses.add(loss, batch)
        if step % 10 == 0:
            print(log(batches, writer, step, losses=losses.take()))
    writer.close()


if __name__ == "__main__":
    main()
