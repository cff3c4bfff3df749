"""Hands every form of a batch to a device: `python bench/hand_off.py [--device cuda] [--seconds 4] [--text FOLDER]`.

Beside it, by turns in one run: the same loader on the host, its batches looked at by NumPy. Says how many tokens a
second come, and how many cores the process keeps busy. On the device, masks and all else that a step would take are
asked for. What a step costs is not here (see `device.py`): nothing is trained.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tokenfeed
import tokenfeed.torch
from text import find_text, find_tokenizer

LENGTH, ROWS = 2048, 32
CORES_BAR = 1.0
"""A device loader keeps at most so many cores more busy than the loader on the host."""


def write_documents(folder: Path, million_tokens: int) -> None:
    """Documents of log-normal length, 800 tokens in the mean."""
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(folder, columns={"tokens": "uint16"}, spans={"documents": "bytes"}, sync=False) as writer:
        for _ in range(million_tokens):
            lengths = np.minimum(rng.lognormal(6.2, 1.0, 1250).astype(np.int64) + 1, 100_000)
            tokens = rng.integers(0, 50_257, int(lengths.sum()), dtype=np.uint16)
            writer.append({"tokens": tokens}, lengths=lengths, documents=[b""] * lengths.size)


def forms(folder: Path, text: Path) -> dict[str, tuple[Callable[[], Any], dict[str, Any]]]:
    """Loader, and options of `to_device`, of every form."""
    store = tokenfeed.open(folder / "a")
    others = tokenfeed.open(folder / "b")
    for each in (store, others):
        each.pack(LENGTH)
    tokenizer = find_tokenizer(text)

    def loader(view: Any) -> Callable[[], Any]:
        return lambda: tokenfeed.Loader(view, ROWS)

    mixture = tokenfeed.mix({"a": (store.packed(LENGTH), 0.7), "b": (others.packed(LENGTH), 0.3)})
    return {
        "windows": (loader(store.windows(LENGTH)), {}),
        "packed": (loader(store.packed(LENGTH)), {}),
        "packed, flat": (loader(store.packed(LENGTH)), {"flat": True}),
        "documents, padded": (loader(store.documents()), {}),
        "documents, flat": (loader(store.documents()), {"flat": True}),
        "mixture of packed": (loader(mixture), {}),
        "default stream": (lambda: tokenfeed.stream(text, tokenizer, batch_size=ROWS, length=LENGTH), {}),
    }


def measure(batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """(M tokens, busy cores) a second. Real tokens count, padding does not."""
    tokens = count = 0
    for _ in range(20):
        next(batches)
    began, busy = time.perf_counter(), sum(os.times()[:2])
    while time.perf_counter() - began < seconds:
        batch = next(batches)
        _ = batch.inputs, batch.targets, batch.loss_mask
        tokens += int(batch.lengths.sum())
        count += 1
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - began
    return tokens / elapsed / 1e6, (sum(os.times()[:2]) - busy) / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--million-tokens", type=int, default=100)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--only", help="one form")
    options = parser.parse_args()
    text = find_text(options.text, 50)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("a", "b"):
            write_documents(folder / name, options.million_tokens)
        print(f"{'':20}{'host':>24}{'on ' + options.device:>24}   M tokens/s, busy cores")
        for name, (make, settings) in forms(folder, text).items():
            if options.only not in (None, name):
                continue
            loader = make()
            host = measure(iter(loader), options.seconds)
            loader.close()
            device_loader = tokenfeed.torch.to_device(make(), options.device, **settings)
            device = measure(iter(device_loader), options.seconds)
            device_loader.close()
            verdict = "ok" if device[1] <= host[1] + CORES_BAR else "MISSED"
            print(f"{name:20}{host[0]:16,.1f}{host[1]:8.1f}{device[0]:16,.1f}{device[1]:8.1f}   {verdict}", flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
