"""A stream of text on several ranks, with one checkpoint of all of them. Resume on any number of ranks.

    torchrun --nproc-per-node 2 examples/torch/stream_checkpoint.py TEXT TOKENIZER --checkpoint DIR --steps 5
    torchrun --nproc-per-node 1 examples/torch/stream_checkpoint.py TEXT TOKENIZER --checkpoint DIR --steps 10

On the streaming road, a state is that of one rank: where its lanes are in the files, and which documents wait there.
So a checkpoint gathers the states of all ranks. As long as their number divides `--lanes`, the rows of every step are
those of a run that was never interrupted, token for token.
"""

import argparse
import zlib
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import tokenfeed
from tokenfeed.integrations.checkpoint import AllRanks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a folder of Parquet or JSONL files")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=10, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=5, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=4, help="rows per step, over all ranks")
    parser.add_argument("--length", type=int, default=64, help="tokens per row")
    parser.add_argument("--lanes", type=int, default=4)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    feed = tokenfeed.stream(
        options.text,
        options.tokenizer,
        batch_size=options.batch_size // dist.get_world_size(),
        length=options.length,
        lanes=options.lanes,
    )
    step = 0
    state = {"feed": AllRanks(feed)}
    if newest := max(options.checkpoint.glob("step-*/.metadata"), default=None):  # written last: that one is complete
        dcp.load(state, checkpoint_id=newest.parent)
        step = int(newest.parent.name.removeprefix("step-"))

    saving, group = None, dist.new_group()  # its own: the checkpoint is written while training uses the other one
    while step < options.steps:
        batch = next(feed)
        step += 1
        for row, tokens in zip(batch.samples, batch.tokens, strict=True):
            print(f"row {row}: checksum {zlib.crc32(tokens.tobytes()):08x}", flush=True)
        if step % options.every == 0 or step == options.steps:
            if saving:
                saving.result()  # one at a time
            folder = options.checkpoint / f"step-{step:09}"
            saving = dcp.async_save(state, checkpoint_id=folder, process_group=group)  # the state is taken here
    if saving:
        saving.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
