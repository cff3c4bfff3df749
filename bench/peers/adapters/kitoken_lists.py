"""kitoken by itself."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from encoding_speed import Rival
from kitoken import Kitoken

PACKAGES = ("kitoken",)
SETTINGS = "from_tokenizers_file, a text a call on one thread, its lists joined; it has no number of threads"
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    tokenizer = Kitoken.from_tokenizers_file(str(folder / "hugging-face.json"))
    return lambda texts, threads: np.fromiter(chain.from_iterable(tokenizer.encode(text) for text in texts), np.uint32)


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
