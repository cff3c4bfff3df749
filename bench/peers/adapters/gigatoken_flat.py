"""gigatoken by itself. It knows some patterns by name, and no others."""

from pathlib import Path
from typing import Any

import awkward
import gigatoken
import numpy as np
from encoding_speed import Rival

PACKAGES = ("gigatoken",)
SETTINGS = 'Tokenizer.from_tiktoken(pretokenizer="gpt4"), encode_batch(parallel=…)'
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    if folder.name != "gpt4":
        raise NotImplementedError("gigatoken takes no pattern but those it knows by name, and nanochat's is not one")
    tokenizer = gigatoken.Tokenizer.from_tiktoken(str(folder / "ranks.tiktoken"), "gpt4")

    def encode(texts: list[str], threads: int) -> Any:
        return np.asarray(awkward.flatten(tokenizer.encode_batch(texts, parallel=threads > 1)))

    return encode


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
