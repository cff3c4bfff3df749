"""Files of litdata, MosaicML Streaming and Hugging Face datasets: read in place, beside the loader of each package.

Each package writes the same samples of 2,049 tokens, and reads them in a random order of its own, in this process: as
batches of 32 × 2,049 int64 tensors. tokenfeed does the same from the same files. Both take turns; the median counts.
The first batch, and the start of an epoch, are not measured.

    python bench/in_place.py [--quick]     needs torch; packages that are not installed are left out
"""

import shutil
import statistics
import sys
import tempfile
import time
import types
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import tokenfeed

BATCH, LENGTH = 32, 2049


def sample(number):
    return np.random.default_rng(number).integers(0, 50_000, LENGTH).astype(np.uint16)


def tensor(number):
    return torch.from_numpy(sample(number))


def write_litdata(folder, count):
    from litdata import TokensLoader, optimize

    loader = TokensLoader(block_size=LENGTH)
    how = {"item_loader": loader, "chunk_bytes": "16MB", "num_workers": 1, "verbose": False}
    optimize(fn=tensor, inputs=list(range(count)), output_dir=str(folder), **how)


def read_litdata(folder):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    data = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=LENGTH), shuffle=True, drop_last=True)
    while True:
        yield from (batch.long() for batch in StreamingDataLoader(data, batch_size=BATCH, num_workers=0))


def write_mds(folder, count):
    sys.modules.setdefault("streaming.vision", types.ModuleType("streaming.vision"))  # imports torchvision
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{LENGTH}"}, size_limit=16 << 20) as writer:
        for number in range(count):
            writer.write({"tokens": sample(number)})


def read_mds(folder):
    from streaming import StreamingDataset

    data = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
    while True:
        loader = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=0, drop_last=True)
        yield from (batch["tokens"].long() for batch in loader)


def write_arrow(folder, count):
    import datasets

    features = datasets.Features({"input_ids": datasets.List(datasets.Value("uint16"))})
    rows = {"input_ids": [sample(number) for number in range(count)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder))


def read_arrow(folder):
    import datasets

    data = datasets.load_from_disk(str(folder)).with_format("torch")
    while True:
        loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=0, drop_last=True)
        yield from (batch["input_ids"].long() for batch in loader)


def read_here(folder):
    with tokenfeed.Loader(tokenfeed.open(folder).windows(LENGTH, extra=0), BATCH) as loader:
        for batch in loader:
            yield torch.from_numpy(batch.column("tokens").astype(np.int64))


PACKAGES = {
    "litdata": ("litdata", write_litdata, read_litdata),
    "MDS (MosaicML Streaming)": ("streaming", write_mds, read_mds),
    "Arrow (datasets)": ("datasets", write_arrow, read_arrow),
}


def rate(batches, count):
    began = time.perf_counter()
    for batch in islice(batches, count):
        assert batch.shape == (BATCH, LENGTH)
    return count / (time.perf_counter() - began)


def main(quick):
    torch.set_num_threads(1)  # more of them wait for each other where cores are few
    samples, turns, steps = (4096, 3, 30) if quick else (32768, 5, 150)  # within one epoch
    root = Path(tempfile.mkdtemp(prefix="tokenfeed-bench-"))
    print("| files | own loader, batches/s | in place, batches/s | ratio |\n|---|---|---|---|")
    try:
        for title, (package, write, read) in PACKAGES.items():
            if find_spec(package) is None:
                print(f"| {title} | not installed | | |")
                continue
            folder = root / package
            write(folder, samples)
            theirs, ours = read(folder), read_here(folder)
            expected = {sample(number).tobytes() for number in range(samples)}
            for batches in (theirs, ours):
                assert {row.numpy().astype(np.uint16).tobytes() for row in next(batches)} <= expected
            measured = {name: [] for name in ("theirs", "ours")}
            for _ in range(turns):
                measured["theirs"].append(rate(theirs, steps))
                measured["ours"].append(rate(ours, steps * 4))
            own, here = (statistics.median(measured[name]) for name in ("theirs", "ours"))
            print(f"| {title} | {own:,.0f} | {here:,.0f} | {here / own:.1f} |", flush=True)
            ours.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main("--quick" in sys.argv)
