#!/bin/sh
# litgpt's pretrain on a store: these two options are all that changes. `--resume auto` goes on where it was.
litgpt pretrain pythia-14m \
  --data tokenfeed.integrations.litgpt.Tokens \
  --data.path store \
  --tokenizer_dir checkpoints/EleutherAI/pythia-14m --out_dir out --resume auto
