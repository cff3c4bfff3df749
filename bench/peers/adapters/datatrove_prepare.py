"""datatrove: ParquetReader and DocumentTokenizer by a LocalPipelineExecutor."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer
from text_size import text_bytes

PACKAGES = ("datatrove", "tokenizers")
SETTINGS = (
    "LocalPipelineExecutor(tasks=4, workers=2) of ParquetReader and DocumentTokenizer, the vocabulary as a "
    "Hugging Face tokenizer"
)
OVERLAP = 0


class Feed:
    """Nothing to iterate over."""


def prepare(folder: str, out: str, workers: int) -> Any:
    parts = Path(folder) / "parts"
    began = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(str(parts)),
            DocumentTokenizer(
                f"{out}/tokens",
                local_working_dir=f"{out}/work",
                tokenizer_name_or_path=f"{folder}/hugging-face.json",
                eos_token="<|bos|>",
                shuffle_documents=False,
            ),
        ],
        tasks=4,
        workers=workers,
        logging_dir=f"{out}/logs",
    ).run()
    seconds = time.perf_counter() - began
    tokens = sum(path.stat().st_size for path in Path(out).rglob("*.ds")) // np.dtype(np.uint16).itemsize
    return {"megabytes_per_second": text_bytes(parts) / 1e6 / seconds, "tokens": tokens}
