"""Feeds a small GPT on a GPU: `python bench/device.py [--json PATH]`. Needs CUDA.

Compares training on batches that a loader reads, shuffles and copies with training on batches that lie on the device
already. The GPU's own clock says how long it stood still for want of data; the profiler counts what crossed the bus.
"""

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import tokenfeed
import tokenfeed.torch

LENGTH = 2048
VOCABULARY = 50_304
STEPS = 150
WARM_UP = 20
ROUNDS = 3
WAIT_BAR = 0.005
BUS_BAR = 2.1
SIZES = {"30M": (6, 384, 6, 32), "124M": (12, 768, 12, 16)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend, self.feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.attend(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.feed(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(inputs) + self.places.weight
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def write_store(folder: Path) -> None:
    """1 GiB of random tokens."""
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(folder, columns={"tokens": "uint16"}, sync=False, shard_bytes=1 << 28) as writer:
        for _ in range(32):
            writer.append({"tokens": rng.integers(0, 50_257, 1 << 24, dtype=np.uint16)})


class Trainer:
    def __init__(self, layers: int, width: int, heads: int) -> None:
        torch.manual_seed(0)
        self.model = Gpt(layers, width, heads).cuda()
        self._forward = torch.compile(self.model)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = self._forward(inputs, targets)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def run(self, batches: Iterator[Any], steps: int) -> dict[str, float]:
        """Seconds a step, and what share of it the GPU waited for the next batch."""
        marks = []
        torch.cuda.synchronize()
        began = time.perf_counter()
        in_next = 0.0
        for _ in range(steps):
            asked, came = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            asked.record()
            before = time.perf_counter()
            inputs, targets = next(batches)
            in_next += time.perf_counter() - before
            came.record()
            marks.append((asked, came))
            self.step(inputs, targets)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        waited = sum(asked.elapsed_time(came) for asked, came in marks) / 1000
        return {"step_s": seconds / steps, "wait_share": waited / seconds, "host_next_us": in_next / steps * 1e6}


def on_device(rows: int) -> Iterator[Any]:
    """Batches that are there already: the ceiling."""
    made = [torch.randint(0, 50_257, (rows, LENGTH + 1), device="cuda") for _ in range(8)]
    pairs = [(batch[:, :-1].to(torch.int32).contiguous(), batch[:, 1:].contiguous()) for batch in made]
    while True:
        yield from pairs


def bus_bytes_per_token(batches: Iterator[Any], rows: int) -> float:
    """Bytes that the profiler sees going to the device, per token trained on."""
    steps = 20
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            for _ in range(steps):
                next(batches)
            torch.cuda.synchronize()
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    copied = sum(event["args"]["bytes"] for event in events if event.get("name", "").startswith("Memcpy HtoD"))
    return copied / (steps * rows * LENGTH)


def measure(folder: Path, size: str) -> dict[str, Any]:
    layers, width, heads, rows = SIZES[size]
    trainer = Trainer(layers, width, heads)
    view = tokenfeed.open(folder).windows(LENGTH)
    began = time.perf_counter()
    loader = tokenfeed.Loader(view, rows)
    feed = tokenfeed.torch.to_device(loader, "cuda")
    next(feed)
    first_batch = time.perf_counter() - began
    contenders = {"on_device": on_device(rows), "tokenfeed": feed}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for batches in contenders.values():
        trainer.run(batches, WARM_UP)
    for _ in range(ROUNDS):  # one after the other, so that both see the same clocks and neighbours
        for name, batches in contenders.items():
            figures[name].append(trainer.run(batches, STEPS))
    middle = {
        name: {key: float(np.median([each[key] for each in runs])) for key in runs[0]} for name, runs in figures.items()
    }
    ours, ceiling = middle["tokenfeed"], middle["on_device"]
    result = {
        "model": size,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "rows": rows,
        "length": LENGTH,
        "tokens_per_s": rows * LENGTH / ours["step_s"],
        "of_ceiling": ceiling["step_s"] / ours["step_s"],
        "wait_share": ours["wait_share"] - ceiling["wait_share"],
        "wait_share_raw": ours["wait_share"],
        "host_next_us": ours["host_next_us"],
        "bus_bytes_per_token": bus_bytes_per_token(feed, rows),
        "first_batch_s": first_batch,
        "runs": figures,
    }
    loader.close()
    del trainer, feed, contenders, batches
    gc.collect()
    torch.cuda.empty_cache()
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("sizes", nargs="*", default=list(SIZES))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    folder = Path(tempfile.mkdtemp())
    try:
        write_store(folder / "store")
        results = [measure(folder / "store", size) for size in options.sizes]
    finally:
        shutil.rmtree(folder)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "numpy": np.__version__}
    for result in results:
        ok = result["wait_share"] <= WAIT_BAR and result["bus_bytes_per_token"] <= BUS_BAR
        print(
            f"{result['model']}: {result['tokens_per_s'] / 1e6:.2f} M tokens/s, "
            f"{result['of_ceiling']:.4f} of the ceiling, "
            f"GPU waits {result['wait_share']:.3%} of the time (bar {WAIT_BAR:.1%}), "
            f"{result['bus_bytes_per_token']:.3f} bytes over the bus per token (bar {BUS_BAR}), "
            f"{result['host_next_us']:.0f} µs in next: {'ok' if ok else 'MISSED'}"
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
