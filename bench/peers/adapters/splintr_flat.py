"""splintr by itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from encoding_speed import Rival
from splintr import Tokenizer

PACKAGES = ("splintr-rs",)
SETTINGS = (
    "Tokenizer(ranks, pattern), encode_batch_flat; its regular expressions know no possessive quantifiers, so they are "
    "greedy here; has no number of threads, so both columns are its own choice"
)
OVERLAP = 0
_rival = Rival()
measure = _rival.measure


class Feed:
    """Nothing to iterate over."""


def load(folder: str) -> Any:
    pattern = (
        json.loads((Path(folder) / "vocabulary.json").read_text())["pattern"].replace("?+", "?").replace("++", "+")
    )
    tokenizer = Tokenizer(f"{folder}/ranks.tiktoken", pattern)
    return _rival.load(folder, lambda texts, threads: np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32))
