"""Recorded from nanochat: a small corpus, its tokenizer, its tokens and its loss, in `tests/data/golden`."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary
from tokenfeed.text.tokenizer.vocabulary_files import read_ranks

GOLDEN = Path(__file__).parent / "data" / "golden"
RANKS = GOLDEN / "tokenizer" / "ranks.tiktoken"
SPECIAL_TOKENS = json.loads((GOLDEN / "tokenizer" / "special_tokens.json").read_text())


@cache
def golden_texts(*, train_only=False):
    """All documents in order; the last file is the validation split."""
    import pyarrow.parquet

    paths = sorted((GOLDEN / "data").glob("*.parquet"))
    tables = [pyarrow.parquet.read_table(path, columns=["text"]) for path in paths[: -1 if train_only else None]]
    return [text for table in tables for text in table["text"].to_pylist()]


@cache
def golden_tokens():
    """(ids, offsets) of these documents, without BOS."""
    with np.load(GOLDEN / "tokens.npz") as arrays:
        return arrays["ids"], arrays["offsets"]


@cache
def golden_vocabulary(pattern="nanochat"):
    """nanochat's vocabulary of 4,096 tokens; with another pattern than its own, one to test engines with."""
    return Vocabulary(read_ranks(RANKS), PATTERNS[pattern], SPECIAL_TOKENS, "<|bos|>")


@cache
def golden_tokenizer(engine=None, pattern="nanochat"):
    return Tokenizer(golden_vocabulary(pattern), engine=engine)


def golden_rows(path):
    """(batches, B, T + 1) of a run."""
    with np.load(path) as run:
        return run["rows"] if "rows" in run else np.concatenate([run["inputs"], run["targets"][..., -1:]], -1)


@cache
def golden_numbers():
    """(file, row group, row) to the number of a document."""
    with np.load(GOLDEN / "tokens.npz") as arrays:
        return {tuple(place): number for number, place in enumerate(arrays["loc"].tolist())}


def golden_options(name):
    """What `tokenfeed.stream` must be told to do what a run of that name did.

    `bestfit_small_w2_r1` is best fit with the small buffer, rank 1 of 2.
    """
    kind, *details = name.split("_")
    by_letter = {detail[0]: int(detail[1:]) for detail in details if detail[1:].isdigit()}
    small = "small" in details
    return {
        "split": "val" if "val" in details else "train",
        "val": "last",
        "packing": {"concat": "concat", "concatpop": "concat_pop"}.get(kind, "best_fit"),
        "overflow": "crop_oldest" if kind == "cropfirst" else "crop",
        "sharding": "per_file",
        "buffer_size": 64 if small else 1000,
        "refill_size": 32 if small else 128,
        "rank": by_letter["r"],
        "world_size": by_letter["w"],
    }
