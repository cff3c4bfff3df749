"""nanochat's loop as `bench/text.py` writes it: tiktoken in batches of 128, Python lists, best fit with cropping."""

import sys
from pathlib import Path
from typing import Any

from tokens import Job

sys.path.append(str(Path(__file__).parent.parent.parent))
import tokenfeed
from text import plain_loop

PACKAGES = ("tiktoken", "torch", "pyarrow")
SETTINGS = (
    "nanochat's loop, written again for measuring (it is no package), 2 tokenizer threads; its checkpoint is not "
    "part of it"
)
OVERLAP = 0


class Feed:
    def __init__(self, folder: Path, job: Job) -> None:
        tokenizer = tokenfeed.Tokenizer.load(folder / "tokenizer.json", engine="tiktoken")
        self.loop = plain_loop(folder, tokenizer, job.rows, job.length)

    def __iter__(self) -> Any:
        return self.loop
