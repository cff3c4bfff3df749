"""How supply grows: `python bench/scaling.py [--text FOLDER] [--demand TOKENS_PER_S] [--json PATH] [--quick]`.

Tokens a second of one loader with 1, 2, 4, … reading threads, of one stream with as many tokenising threads, and of as
many real processes, each a rank with its own loader. Headroom is supply over what a trainer takes.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from text import find_text, find_tokenizer

LENGTH, ROWS = 2048, 32


def rate(feed: Any, seconds: float) -> float:
    """Tokens a second, after a second to get going."""
    end = time.perf_counter() + 1.0
    while time.perf_counter() < end:
        next(feed)
    began, batches = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(feed)
        batches += 1
    return batches * ROWS * LENGTH / (time.perf_counter() - began)


def of_loader(store: Path, threads: int, seconds: float, **ranks: int) -> float:
    with tokenfeed.Loader(tokenfeed.open(store).windows(LENGTH), ROWS, threads=threads, **ranks) as loader:
        return rate(loader, seconds)


def of_stream(text: Path, threads: int, seconds: float) -> float:
    tokenizer = find_tokenizer(text)
    with tokenfeed.stream(text, tokenizer, batch_size=ROWS, length=LENGTH, threads=threads) as feed:
        return rate(feed, seconds)


def _rank(store: Path, rank: int, world_size: int, seconds: float, ready: Barrier, rates: Any) -> None:
    ready.wait()
    rates.put(of_loader(store, 1, seconds, rank=rank, world_size=world_size))


def of_processes(store: Path, processes: int, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.Queue()
    ranks = [
        context.Process(target=_rank, args=(store, rank, processes, seconds, ready, rates)) for rank in range(processes)
    ]
    for process in ranks:
        process.start()
    total = sum(rates.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join()
    return float(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--demand", type=float, default=1.64e6, help="of a 30M GPT on an H200 unless given")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    text = find_text(options.text, 4 if options.quick else 50)
    seconds = 0.3 if options.quick else 3.0
    counts = [count for count in (1, 2, 4, 8, 16) if count <= (2 if options.quick else max(2, os.cpu_count() or 1))]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with tokenfeed.Writer(store, columns={"tokens": "uint16"}, sync=False) as writer:
            for _ in range(1 if options.quick else 32):
                writer.append({"tokens": np.random.default_rng(0).integers(0, 50_257, 1 << 24, dtype=np.uint16)})
        sides: dict[str, Callable[[int], float]] = {
            "loader, threads": lambda count: of_loader(store, count, seconds),
            "stream, threads": lambda count: of_stream(text, count, seconds),
            "loader, processes of one thread": lambda count: of_processes(store, count, seconds),
        }
        results = {name: {count: measure(count) for count in counts} for name, measure in sides.items()}
    print(f"{os.cpu_count()} cores; windows of {LENGTH}, B = {ROWS}; demand {options.demand / 1e6:.2f} M tokens/s")
    for name, rates in results.items():
        cells = (f"{count}: {each / 1e6:,.1f} M/s ({each / options.demand:,.1f} ×)" for count, each in rates.items())
        print(f"  {name:32}", ", ".join(cells), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"cores": os.cpu_count(), "demand": options.demand, "rates": results}, indent=1)
        )


if __name__ == "__main__":
    main()
