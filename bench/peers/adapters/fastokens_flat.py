"""fastokens by itself."""

import json
from pathlib import Path
from typing import Any

import fastokens
import numpy as np
from encoding_speed import Rival

PACKAGES = ("fastokens",)
SETTINGS = (
    "Tokenizer.from_tiktoken(pattern=…), encode_batch_flat; one thread: a text a call, since batches take all cores"
)
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    pattern = json.loads((folder / "vocabulary.json").read_text())["pattern"]
    tokenizer = fastokens.Tokenizer.from_tiktoken(str(folder / "ranks.tiktoken"), pattern=pattern)

    def encode(texts: list[str], threads: int) -> Any:
        if threads > 1:
            return np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32)
        return np.concatenate([np.frombuffer(tokenizer.encode_batch_flat([text])[0], np.uint32) for text in texts])

    return encode


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
