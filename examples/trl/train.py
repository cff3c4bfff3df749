"""Fine-tune with the SFTTrainer of TRL on packed rows of a store. Start it again, and it goes on.

    torchrun --nproc-per-node 2 examples/trl/train.py MODEL STORE --checkpoint DIR

Rows are tokenised, packed and masked before: `tokenfeed prepare`, then `tokenfeed pack STORE --length 2047`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import trl
from transformers import AutoModelForCausalLM, AutoTokenizer

import tokenfeed
from tokenfeed.integrations.trl import SFTTrainer, find_checkpoint  # import


class Tracing(SFTTrainer):
    """Notes which rows it trains on."""

    trace: Path | None = None

    def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any) -> Any:
        if self.trace:
            with (self.trace / f"rank-{self.args.process_index}.jsonl").open("a") as file:
                rows = inputs["input_ids"].tolist()
                file.write(json.dumps({"step": self.state.global_step, "samples": rows}) + "\n")
        return super().training_step(model, inputs, *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model and its tokenizer")
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=2047, help="inputs per row; a row has one token more")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which rows each process trains on")
    options = parser.parse_args()
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)

    arguments = trl.SFTConfig(
        str(options.checkpoint),
        max_steps=options.steps,
        save_steps=options.every,
        per_device_train_batch_size=options.batch_size,
        report_to=[],
        lr_scheduler_type="constant",  # does not depend on how many steps there will be
        bf16=False,
    )
    trainer = Tracing(
        model=AutoModelForCausalLM.from_pretrained(options.model),
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(options.model),
        train_dataset=tokenfeed.open(options.store).packed(options.length),  # tokenfeed
        separate_documents=True,  # tokenfeed
    )
    trainer.trace = options.trace
    trainer.train(resume_from_checkpoint=find_checkpoint(options.checkpoint))
    print(f"loss {trainer.state.log_history[-1]['train_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
