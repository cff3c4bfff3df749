"""What `make demo` runs: write a small store, look at it, verify it, load shuffled batches, show rates, resume."""

import json
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


def look() -> None:
    """One window with the documents it touches, and one document."""
    store = tokenfeed.open(STORE)
    sample = store.windows(LENGTH)[8000]
    print(f"\nwindow {sample.index} touches {len(sample.spans['documents'])} documents:")
    for span in sample.spans["documents"]:
        print(f"  items [{span.start}, {span.stop}) are from {span.payload['url']}")
    document = store.documents()[12_345]
    print(f"document 12345 has {len(document.tokens)} tokens and the payload {document.payload}")


def load() -> None:
    """Shuffled batches on four ranks, a checkpoint, and the rest on three."""
    windows = tokenfeed.open(STORE).windows(LENGTH)
    loader = tokenfeed.Loader(windows, BATCH_SIZE)
    next(loader)  # compiles the kernels, or loads them from the cache
    began = time.perf_counter()
    for _ in range(NUM_BATCHES):
        inputs, targets = next(loader)
    seconds = time.perf_counter() - began
    tokens = NUM_BATCHES * BATCH_SIZE * LENGTH
    print(f"\nloaded {NUM_BATCHES:,} shuffled batches of {inputs.shape} {inputs.dtype} (targets {targets.shape}):")
    print(f"  {NUM_BATCHES / seconds:,.0f} batches/s, {tokens / seconds / 1e6:,.0f} million tokens/s")

    seen = []
    state = None
    for world_size, steps in ((4, 50), (3, 200)):
        ranks = [tokenfeed.Loader(windows, BATCH_SIZE, rank=rank, world_size=world_size) for rank in range(world_size)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(steps):
            batches = [next(loader) for loader in ranks]
            seen += [index for batch in batches for index in batch.rows.indices[batch.epochs == 0]]
        state = batches[0].state
        print(f"  {steps} steps on {world_size} ranks, then the state is {json.dumps(state)}")
    print(
        f"  of {len(windows):,} samples, the first epoch delivered {len(seen):,}, of which {len(set(seen)):,} different"
    )


def main() -> None:
    shutil.rmtree(STORE, ignore_errors=True)
    write()
    app(["inspect", str(STORE)], standalone_mode=False)
    app(["verify", str(STORE)], standalone_mode=False)
    look()
    load()


if __name__ == "__main__":
    main()
