"""tokenfeed's prepare."""

import time
from pathlib import Path
from typing import Any

import tokenfeed

PACKAGES = ("tokenfeed", "fastokens")
SETTINGS = "prepare(workers=2), the default engine, checksums and documents with it"
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def prepare(folder: str, out: str, workers: int) -> Any:
    began = time.perf_counter()
    report = tokenfeed.prepare(
        f"{folder}/parts/*.parquet", Path(out) / "store", tokenizer=f"{folder}/tokenizer.json", workers=workers
    )
    seconds = time.perf_counter() - began
    return {
        "megabytes_per_second": report.num_bytes / 1e6 / seconds,
        "tokens": tokenfeed.open(Path(out) / "store").num_items,
    }
