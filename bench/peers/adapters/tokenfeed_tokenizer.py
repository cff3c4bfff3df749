"""tokenfeed's Tokenizer with its default engine."""

from typing import Any

from encoding_speed import Rival

import tokenfeed

PACKAGES = ("tokenfeed",)
SETTINGS = "Tokenizer.load, encode_batch(threads=…), the default engine"
OVERLAP = 0
_rival = Rival()
measure = _rival.measure


class Feed:
    """Nothing to iterate over."""


def load(folder: str) -> Any:
    tokenizer = tokenfeed.Tokenizer.load(f"{folder}/tokenizer.json")
    return _rival.load(folder, lambda texts, threads: tokenizer.encode_batch(texts, threads=threads)[0])
