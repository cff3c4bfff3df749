"""Damage of single bits, and everything that can be read of a store."""

from pathlib import Path

import numpy as np

import tokenfeed
from plain import frames_of, spans_of

COLUMNS = {"tokens": "uint16", "frame": ("uint8", (2, 3))}
SPANS = {"documents": "json", "concepts": "bytes", "sentences": None}
PACKED = 20


def write_store(path, shards, *, payload_bytes=12, splits=(None,), seal=True, seed=0):
    """A store of one shard for each list of lengths, with two columns and tables of each kind."""
    rng = np.random.default_rng(seed)
    for number, lengths in enumerate(shards):
        with tokenfeed.Writer(
            path,
            mode="append",
            columns=COLUMNS,
            spans=SPANS,
            split=splits[number % len(splits)],
            name=f"part{number}",
            provenance={"of": "é"},
            sync=False,
            seal=seal,
        ) as writer:
            for length in lengths:
                tokens = rng.integers(0, 2**16, length).astype(np.uint16)
                half = length // 2
                payloads = {"documents": {"n": int(length)}, "concepts": rng.bytes(int(rng.integers(0, payload_bytes)))}
                writer.append({"tokens": tokens[:half], "frame": frames_of(tokens[:half])}, **payloads)
                writer.extend({"tokens": tokens[half:], "frame": frames_of(tokens[half:])}, sentences=None)


def read_everything(store):
    """All windows, and all documents with all their spans and payloads: everything there is to deliver."""
    taken = []
    windows = store.windows(32, columns=["frame"], spans=list(SPANS))
    batch = windows.read(np.arange(len(windows)))
    taken += [batch.tokens.tobytes(), batch.column("frame").tobytes()]
    taken += [[spans_of(row) for row in batch.spans[table]] for table in SPANS]
    for table in SPANS:
        documents = store.documents(table, columns=["frame"])
        batch = documents.read(np.arange(len(documents)))
        taken += [batch.tokens.tobytes(), batch.column("frame").tobytes(), batch.lengths.tolist(), batch.payloads]
        taken += [[spans_of(row) for row in batch.spans[other]] for other in SPANS]
    return [*taken, store.tokenizer, dict(store.provenance), store.splits]


def flip(file: Path, bit: int) -> None:
    """Flip one bit where it lies; once more puts it right."""
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def files_of(path: Path) -> list[Path]:
    """Every file in a folder, those of packing plans among them, that has a bit to flip."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size > 0)
