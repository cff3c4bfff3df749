"""Pretrain a Llama with the Trainer of transformers. Start it again, on any number of processes, and it goes on.

torchrun --nproc-per-node 2 examples/transformers/train.py STORE --checkpoint DIR
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import tokenfeed
from tokenfeed.integrations.transformers import Trainer, find_checkpoint  # import


class Tracing(Trainer):
    """Notes which rows it trains on."""

    trace: Path | None = None

    def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any) -> torch.Tensor:
        if self.trace:
            with (self.trace / f"rank-{self.args.process_index}.jsonl").open("a") as file:
                rows = inputs["input_ids"].tolist()
                file.write(json.dumps({"step": self.state.global_step, "samples": rows}) + "\n")
        return super().training_step(model, inputs, *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=8, help="windows per process and step")
    parser.add_argument("--length", type=int, default=255, help="inputs per window; a row has one token more")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which rows each process trains on")
    options = parser.parse_args()
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    shape = {"hidden_size": options.width, "intermediate_size": 4 * options.width, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=options.vocabulary, num_hidden_layers=2, **shape)
    arguments = TrainingArguments(
        str(options.checkpoint),
        max_steps=options.steps,
        save_steps=options.every,
        per_device_train_batch_size=options.batch_size,
        report_to=[],
        disable_tqdm=True,
    )
    windows = tokenfeed.open(options.store, split="train").windows(options.length)  # tokenfeed
    trainer = Tracing(model=LlamaForCausalLM(config), args=arguments, train_dataset=windows)  # tokenfeed
    trainer.trace = options.trace
    trainer.train(resume_from_checkpoint=find_checkpoint(options.checkpoint))


if __name__ == "__main__":
    main()
