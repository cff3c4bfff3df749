"""tokenfeed's prepare."""

import time
from pathlib import Path
from typing import Any

from text_size import text_bytes

import tokenfeed

PACKAGES = ("tokenfeed",)
SETTINGS = "prepare(workers=2), the default engine, checksums and documents with it"
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def prepare(folder: str, out: str, workers: int) -> Any:
    parts, store = Path(folder) / "parts", Path(out) / "store"
    began = time.perf_counter()
    tokenfeed.prepare(parts, store, tokenizer=f"{folder}/tokenizer.json", workers=workers)
    seconds = time.perf_counter() - began
    return {
        "megabytes_per_second": text_bytes(parts) / 1e6 / seconds,
        "tokens": tokenfeed.open(store).num_items,
    }
