"""Writes tests/data/mds with the real mosaicml-streaming: `python tests/write_mds.py FOLDER`.

Streaming imports torchvision for its image datasets; a stand-in for that part is enough to write tokens.
"""

import sys
import types
from pathlib import Path

import numpy as np

SIZES = np.random.default_rng(0).integers(1, 60, 20)


def documents():
    """20 documents of 1 to 59 tokens, and one of 300, whose shape takes two bytes."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, 50_000, int(length)) for length in [*SIZES, 300]]


KINDS = {
    "varying": ({"tokens": "ndarray:uint16"}, lambda _, ids: {"tokens": ids.astype(np.uint16)}),
    "fixed": ({"tokens": "ndarray:uint16:16"}, lambda n, _: {"tokens": np.arange(n, n + 16, dtype=np.uint16)}),
    "bytes": ({"tokens": "bytes"}, lambda _, ids: {"tokens": ids.astype(np.uint16).tobytes()}),
    "any": ({"tokens": "ndarray"}, lambda _, ids: {"tokens": ids.astype(np.uint32)}),
    "columns": (
        {"id": "int", "attention": "ndarray:uint8", "input_ids": "ndarray:int32", "url": "str"},
        lambda n, ids: {
            "id": n,
            "attention": np.ones(n + 1, np.uint8),
            "input_ids": ids.astype(np.int32),
            "url": "u" * (n % 5),
        },
    ),
    "text": ({"text": "str"}, lambda n, _: {"text": f"document {n}"}),
    "square": ({"tokens": "ndarray:uint16"}, lambda n, _: {"tokens": np.full((2, 3), n, np.uint16)}),
    "zstd": ({"tokens": "ndarray:uint16"}, lambda _, ids: {"tokens": ids.astype(np.uint16)}),
}


def write(folder):
    sys.modules.setdefault("streaming.vision", types.ModuleType("streaming.vision"))
    from streaming import MDSWriter

    for kind, (columns, make) in KINDS.items():
        compression = "zstd" if kind == "zstd" else None
        out = str(Path(folder) / kind)
        with MDSWriter(out=out, columns=columns, compression=compression, size_limit=1500) as writer:
            for number, ids in enumerate(documents()):
                writer.write(make(number, ids))


if __name__ == "__main__":
    write(sys.argv[1])
