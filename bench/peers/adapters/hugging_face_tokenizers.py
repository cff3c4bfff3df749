"""Hugging Face tokenizers with the same merges."""

import os
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from encoding_speed import Rival
from tokenizers import Tokenizer

PACKAGES = ("tokenizers",)
SETTINGS = (
    "BPE with the same merges, Split by the same pattern, encode_batch_fast; one thread by TOKENIZERS_PARALLELISM"
)
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    tokenizer = Tokenizer.from_file(str(folder / "hugging-face.json"))

    def encode(texts: list[str], threads: int) -> Any:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return np.fromiter(chain.from_iterable(encoding.ids for encoding in found), np.uint32)

    return encode


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
