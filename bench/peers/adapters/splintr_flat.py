"""splintr by itself."""

import json
import re
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


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    pattern = json.loads((folder / "vocabulary.json").read_text())["pattern"]
    tokenizer = Tokenizer(str(folder / "ranks.tiktoken"), re.sub(r"([?*+]|\{\d+,\d+\})\+", r"\1", pattern))
    return lambda texts, threads: np.frombuffer(tokenizer.encode_batch_flat(texts)[0], np.uint32)


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
