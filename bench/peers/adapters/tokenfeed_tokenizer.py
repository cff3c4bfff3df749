"""tokenfeed's Tokenizer with its own engine."""

from pathlib import Path
from typing import Any

from encoding_speed import Rival

import tokenfeed

PACKAGES = ("tokenfeed",)
SETTINGS = "Tokenizer.load, encode_batch(threads=…), its own engine"
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    tokenizer = tokenfeed.Tokenizer.load(folder / "tokenizer.json", engine="tokenfeed")
    return lambda texts, threads: tokenizer.encode_batch(texts, threads=threads)[0]


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
