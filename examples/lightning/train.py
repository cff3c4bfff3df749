"""Train with Lightning, on as many ranks as there are. Start it again, and it goes on where it was.

    python examples/lightning/train.py STORE --checkpoint DIR --devices 2

Lightning saves and restores the loader's state with its own checkpoints. It is the same on every rank, and fits any
number of them.
"""

import argparse
import json
from pathlib import Path

import lightning
import torch

import tokenfeed
from tokenfeed.integrations.lightning import DataModule  # import


class Module(lightning.LightningModule):
    def __init__(self, vocabulary: int, width: int, trace: Path | None) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Embedding(vocabulary, width), torch.nn.Linear(width, vocabulary))
        self.trace = trace

    def loss_of(self, batch: tokenfeed.torch.DeviceBatch) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.model(batch.inputs).flatten(0, 1), batch.targets.flatten())

    def training_step(self, batch: tokenfeed.torch.DeviceBatch, number: int) -> torch.Tensor:
        if self.trace:
            with (self.trace / f"rank-{self.global_rank}.jsonl").open("a") as file:
                file.write(json.dumps({"step": self.global_step, "samples": batch.samples.tolist()}) + "\n")
        return self.loss_of(batch)

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(2, device=self.device)

    def validation_step(self, batch: tokenfeed.torch.DeviceBatch, number: int) -> None:
        if len(batch):  # the last ones may be empty on some ranks
            self.sums += torch.stack([self.loss_of(batch) * len(batch), self.sums.new_tensor(len(batch))])

    def on_validation_epoch_end(self) -> None:
        total, count = self.trainer.strategy.reduce(self.sums, reduce_op="sum").tolist()
        if self.global_rank == 0 and not self.trainer.sanity_checking:
            print(f"validation: loss {total / count:.6f} over {count:g} windows", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--epoch", type=int, default=500, help="steps per epoch, after which there is validation")
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--length", type=int, default=256, help="tokens per window")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which samples each rank trains on")
    options = parser.parse_args()
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    module = Module(options.vocabulary, options.width, options.trace)
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        options.checkpoint, "{step:09}", every_n_train_steps=options.every, save_top_k=-1
    )
    trainer = lightning.Trainer(
        devices=options.devices, max_steps=options.steps, callbacks=[saving], logger=False, enable_progress_bar=False
    )
    train = tokenfeed.open(options.store, split="train").windows(options.length)  # tokenfeed
    val = tokenfeed.open(options.store, split="val").windows(options.length)  # tokenfeed
    data = DataModule(train, options.batch_size, val=val, epoch_steps=options.epoch)  # tokenfeed
    newest = max(options.checkpoint.glob("*.ckpt"), default=None)
    trainer.fit(module, data, ckpt_path=newest, weights_only=True)


if __name__ == "__main__":
    main()
