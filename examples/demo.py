"""What `make demo` runs: write a small store, look at it, verify it, read shuffled batches, show rates."""

import shutil
import time
from pathlib import Path

import numpy as np

import tokenfeed
from tokenfeed.cli import app

STORE = Path("demo-store")
NUM_DOCUMENTS = 20_000
LENGTH = 1024
BATCH_SIZE = 32
NUM_BATCHES = 2_000


def write() -> None:
    """20,000 documents of random lengths, as an article's tokens would be, with their addresses as payload."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(6.2, 1.0, NUM_DOCUMENTS)).astype(int)
    began = time.perf_counter()
    with tokenfeed.Writer(
        STORE,
        columns={"tokens": "uint16"},
        spans={"documents": "json"},
        shard_bytes=8 << 20,
        provenance={"made by": "examples/demo.py"},
    ) as writer:
        for number, length in enumerate(lengths):
            tokens = rng.integers(0, 50_257, length)
            writer.append({"tokens": tokens}, documents={"url": f"https://example.org/{number}"})
    seconds = time.perf_counter() - began
    print(f"wrote {lengths.sum():,} tokens in {NUM_DOCUMENTS:,} documents in {seconds:.1f} s to {STORE}/\n")


def read() -> None:
    """Every window once, in a random order; then one window with the documents it touches."""
    store = tokenfeed.open(STORE)
    windows = store.windows(LENGTH)
    rng = np.random.default_rng(1)
    windows.read([0])  # compiles the kernel, or loads it from the cache
    began = time.perf_counter()
    for _ in range(NUM_BATCHES):
        batch = windows.read(rng.integers(0, len(windows), BATCH_SIZE))
        inputs, targets = batch
    seconds = time.perf_counter() - began
    tokens = NUM_BATCHES * BATCH_SIZE * LENGTH
    print(f"\nread {NUM_BATCHES:,} shuffled batches of {inputs.shape} {inputs.dtype} (targets {targets.shape}):")
    print(f"  {NUM_BATCHES / seconds:,.0f} batches/s, {tokens / seconds / 1e6:,.0f} million tokens/s\n")

    sample = windows[len(windows) // 2]
    print(f"window {sample.index} touches {len(sample.spans['documents'])} documents:")
    for span in sample.spans["documents"]:
        print(f"  items [{span.start}, {span.stop}) are from {span.payload['url']}")
    document = store.documents()[12_345]
    print(f"document 12345 has {len(document.tokens)} tokens and the payload {document.payload}")


def main() -> None:
    shutil.rmtree(STORE, ignore_errors=True)
    write()
    app(["inspect", str(STORE)], standalone_mode=False)
    app(["verify", str(STORE)], standalone_mode=False)
    read()


if __name__ == "__main__":
    main()
