"""Megatron's preprocessing is a script of its repository, `tools/preprocess_data.py`, and not in the package."""

from pathlib import Path
from typing import Any

import megatron.core

PACKAGES = ("megatron-core",)
SETTINGS = "tools/preprocess_data.py"
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def prepare(folder: str, out: str, workers: int) -> Any:
    package = Path(megatron.core.__file__).parent.parent
    if not list(package.rglob("preprocess_data.py")):
        raise FileNotFoundError(
            "the package megatron-core has no tools/preprocess_data.py; it is only in the repository"
        )
    raise NotImplementedError("megatron-core has preprocess_data.py now: call it here")
