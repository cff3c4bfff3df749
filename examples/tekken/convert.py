"""A tokenizer of Mistral's tekken file: `python examples/tekken/convert.py tekken.json tokenizer.json`.

A tekken file holds ranks, as those of tiktoken, and a pattern. Its special tokens have the first ids; the ranks follow.
"""

import json
import sys
import tempfile
from pathlib import Path

import tokenfeed

FIRST = {0: "<unk>", 1: "<s>", 2: "</s>"}  # older files name no special tokens


def read_tekken(path: str) -> tokenfeed.Tokenizer:
    fields = json.loads(Path(path).read_text())
    config = fields["config"]
    num_special = config["default_num_special_tokens"]
    num_ranks = config["default_vocab_size"] - num_special  # a file may list more than are used
    names = FIRST | {token["rank"]: token["token_str"] for token in fields.get("special_tokens") or []}
    special = {names.get(rank, f"<SPECIAL_{rank}>"): rank for rank in range(num_special)}
    tokens = [token for token in fields["vocab"] if token["rank"] < num_ranks]
    lines = [f"{token['token_bytes']} {num_special + token['rank']}\n" for token in tokens]
    with tempfile.TemporaryDirectory() as folder:
        ranks = Path(folder, "ranks")
        ranks.write_text("".join(lines))
        options = {"special_tokens": special, "bos": "<s>", "eos": "</s>"}
        return tokenfeed.Tokenizer.from_ranks(ranks, pattern=config["pattern"], **options)


if __name__ == "__main__":
    read_tekken(sys.argv[1]).save(sys.argv[2])
