"""fastokens by itself."""

import json
from pathlib import Path
from typing import Any

import fastokens
import numpy as np
from encoding_speed import Rival

PACKAGES = ("fastokens",)
SETTINGS = (
    "Tokenizer.from_tiktoken(pattern=…), encode_batch_flat; takes all cores whatever it is told, so both columns "
    "are its own choice"
)
OVERLAP = 0
_rival = Rival()
measure = _rival.measure


class Feed:
    """Nothing to iterate over."""


def load(folder: str) -> Any:
    pattern = json.loads((Path(folder) / "vocabulary.json").read_text())["pattern"]
    tokenizer = fastokens.Tokenizer.from_tiktoken(f"{folder}/ranks.tiktoken", pattern=pattern)
    return _rival.load(folder, lambda texts, threads: np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32))
