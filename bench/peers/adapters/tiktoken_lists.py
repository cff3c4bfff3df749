"""tiktoken: the reference for exactness."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from encoding_speed import Rival
from vocabulary import load_encoding

PACKAGES = ("tiktoken",)
SETTINGS = "encode_ordinary_batch(num_threads=…), its lists joined to one array"
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def make(folder: Path) -> Any:
    encoding, _ = load_encoding(folder)

    def encode(texts: list[str], threads: int) -> Any:
        lists = encoding.encode_ordinary_batch(texts, num_threads=threads)
        return np.fromiter(chain.from_iterable(lists), np.uint32)

    return encode


_rival = Rival(make)
load, measure = _rival.load, _rival.measure
