"""Trains GPTs on a GPU from several loaders by turns: `python bench/device.py [--text FOLDER] [--json PATH] [SIZE …]`.

Needs CUDA. The ceiling is training on batches that lie on the device already. Against it, in one run: tokenfeed's two
roads, windows of a memmap as nanoGPT takes them, and nanochat's loop over text. The GPU's own clock says how long it
stood still for want of data, the profiler how long it was busy and what crossed the bus.

`--demand TOKENS_PER_S` takes the largest of a row of small GPTs that trains so fast on the device, and feeds it text
only: `--demand 4e6 --threads 2` asks whether two threads of a stream keep up with it.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tokenfeed
import tokenfeed.torch
from gpt import Trainer
from text import find_text, find_tokenizer, plain_loop

LENGTH = 2048
CEILING_BAR = 0.99
WAIT_BAR = 0.005
BUS_BAR = 2.1
CEILING, TEXT_CEILING = "on the device", "on the device, text"
OURS = ("tokenfeed, indexed", "tokenfeed, streamed")
SIZES = {  # layers, width, heads, rows, steps a round, rounds
    "30M": (6, 384, 6, 32, 150, 3),
    "124M": (12, 768, 12, 16, 120, 3),
    "0.5B": (24, 1280, 20, 16, 75, 3),
}

DEMANDING = [(layers, 256, 4, 32, 200, 5) for layers in (4, 3, 2, 1)]
"""Small GPTs for `--demand`, each faster than the one before, with the vocabulary of the text's tokenizer."""
NANOCHAT = "nanochat's loop, {} threads"
CORES = os.cpu_count() or 1
READ_TEXT = (TEXT_CEILING, OURS[1], NANOCHAT.format(4), NANOCHAT.format(CORES))
Batches = Iterator[Any]


def write_tokens(folder: Path) -> None:
    """1 GiB of random tokens, as a store and as one bare file."""
    rng = np.random.default_rng(0)
    with (
        tokenfeed.Writer(folder / "store", columns={"tokens": "uint16"}, sync=False, shard_bytes=1 << 28) as writer,
        (folder / "tokens.bin").open("wb") as bare,
    ):
        for _ in range(32):
            tokens = rng.integers(0, 50_257, 1 << 24, dtype=np.uint16)
            writer.append({"tokens": tokens})
            tokens.tofile(bare)


def on_device(rows: int) -> Batches:
    """Batches that are there already: the ceiling of what is trained on random tokens."""
    made = [torch.randint(0, 50_257, (rows, LENGTH + 1), device="cuda") for _ in range(8)]
    yield from cycle([(batch[:, :-1].to(torch.int32).contiguous(), batch[:, 1:].contiguous()) for batch in made])


def text_on_device(text: Path, rows: int) -> Batches:
    """The ceiling of what is trained on text, whose frequent tokens make a step a little slower."""
    with tokenfeed.stream(text, find_tokenizer(text), batch_size=rows, length=LENGTH) as feed:
        batches = tokenfeed.torch.to_device(feed, "cuda")
        made = [tuple(side.clone() for side in next(batches)) for _ in range(8)]
    yield from cycle(made)


def memmap(path: Path, rows: int) -> Batches:
    """Random windows of a memmap, stacked, pinned and copied, as nanoGPT's train.py does it."""
    rng = np.random.default_rng(0)
    while True:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = rng.integers(0, len(data) - LENGTH - 1, rows)
        sides = [
            torch.stack([torch.from_numpy(data[i + side : i + side + LENGTH].astype(np.int64)) for i in starts])
            for side in (0, 1)
        ]
        yield tuple(side.pin_memory().to("cuda", non_blocking=True) for side in sides)


def nanochat(text: Path, rows: int, threads: int) -> Batches:
    """Its loop; what it makes is copied as it does it there, from memory that is not pinned."""
    for inputs, targets in plain_loop(text, find_tokenizer(text, "tiktoken"), rows, LENGTH, threads=threads):
        yield inputs.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)


def contenders(folder: Path, text: Path, rows: int, threads: int, stack: ExitStack) -> dict[str, Callable[[], Batches]]:
    def ours(loader: Any) -> Batches:
        stack.callback(loader.close)
        return tokenfeed.torch.to_device(loader, "cuda")

    def stream() -> Batches:
        tokenizer = find_tokenizer(text)
        return ours(tokenfeed.stream(text, tokenizer, batch_size=rows, length=LENGTH, threads=threads))

    return {
        CEILING: lambda: on_device(rows),
        TEXT_CEILING: lambda: text_on_device(text, rows),
        OURS[0]: lambda: ours(tokenfeed.Loader(tokenfeed.open(folder / "store").windows(LENGTH), rows)),
        OURS[1]: stream,
        "memmap": lambda: memmap(folder / "tokens.bin", rows),
        NANOCHAT.format(4): lambda: nanochat(text, rows, 4),
        NANOCHAT.format(CORES): lambda: nanochat(text, rows, CORES),
    }


def profile(trainer: Trainer, batches: Batches, rows: int, steps: int = 20) -> dict[str, float]:
    """How much of the time a kernel ran, and bytes that went to the device per token trained on."""
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            trainer.run(batches, steps)
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    kernels = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel")
    busy, reached = 0.0, kernels[0][0]
    for begin, end in kernels:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    copied = sum(event["args"]["bytes"] for event in events if event.get("name", "").startswith("Memcpy HtoD"))
    return {
        "busy_share": busy / (reached - kernels[0][0]),
        "bus_bytes_per_token": copied / (steps * rows * LENGTH),
    }


class SmActivity:
    """What `nvidia-smi dmon` reads of the multiprocessors' counters once a second; None where it cannot."""

    def __enter__(self) -> "SmActivity":
        command = ["nvidia-smi", "dmon", "--gpm-metrics", "2", "-d", "1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        output = self._process.communicate()[0]
        self.lines = [line.split() for line in output.splitlines() if line.split() and not line.startswith("#")]

    def mean(self) -> float | None:
        values = [float(line[-1]) for line in self.lines if line[-1].isdigit()][1:]  # the first covers what came before
        return float(np.mean(values)) if values else None


def find_demanding(text: Path, demand: float) -> tuple[Trainer, tuple[int, ...]]:
    """The largest small GPT that takes so many tokens a second from the device; the smallest one if none does."""
    for size in DEMANDING:
        layers, width, heads, rows, *_ = size
        trainer = Trainer(layers, width, heads, LENGTH, vocabulary=find_tokenizer(text).vocab_size)
        batches = text_on_device(text, rows)
        trainer.run(batches, 20)
        rate = rows * LENGTH / trainer.run(batches, 100)["step_s"]
        print(f"{layers} layers of width {width}: {rate / 1e6:.2f} M tokens/s on the device", flush=True)
        if rate >= demand:
            break
    return trainer, size


def measure(
    folder: Path, text: Path, model: str, trainer: Trainer, size: tuple[int, ...], threads: int, only: tuple[str, ...]
) -> dict[str, Any]:
    """The loaders named by `only`, or all."""
    *_, rows, steps, rounds = size
    with ExitStack() as stack:
        made = contenders(folder, text, rows, threads, stack)
        loaders = {name: make() for name, make in made.items() if name in (only or made)}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
        for batches in loaders.values():
            trainer.run(batches, 10)
        for turn in range(rounds):  # by turns, so that all see the same clocks and neighbours
            names = list(loaders)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                runs[name].append(trainer.run(loaders[name], steps))
        activities = {}
        for name, batches in loaders.items():  # apart: reading the counters makes the host late now and then
            with SmActivity() as activity:
                trainer.run(batches, steps)
            activities[name] = activity.mean()
        profiles = {name: profile(trainer, batches, rows) for name, batches in loaders.items()}
    middle = {
        name: {key: float(np.median([run[key] for run in made])) for key in made[0]} for name, made in runs.items()
    }
    ceilings = {name: middle[TEXT_CEILING if name in READ_TEXT else CEILING] for name in middle}
    return {
        "model": model,
        "threads": threads,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "rows": rows,
        "length": LENGTH,
        "steps": steps * rounds,
        "loaders": {
            name: {
                "tokens_per_s": rows * LENGTH / each["step_s"],
                "of_ceiling": ceilings[name]["step_s"] / each["step_s"],
                "wait_share": max(0.0, each["wait_share"] - ceilings[name]["wait_share"]),
                "host_next_us": each["host_next_us"],
                "sm_activity": activities[name],
                **profiles[name],
                "runs": runs[name],
            }
            for name, each in middle.items()
        },
    }


def show(result: dict[str, Any]) -> None:
    print(
        f"\n{result['model']} ({result['parameters'] / 1e6:.1f} M parameters), B = {result['rows']}, T = {LENGTH}, "
        f"{result['threads']} threads of the stream"
    )
    for name, figures in result["loaders"].items():
        verdict = ""
        if name in OURS:
            held = figures["of_ceiling"] >= CEILING_BAR and figures["wait_share"] <= WAIT_BAR
            held = held and figures["bus_bytes_per_token"] <= BUS_BAR + (name in READ_TEXT)  # a byte of the loss mask
            verdict = "ok" if held else "MISSED"
        print(
            f"  {name:28} {figures['tokens_per_s'] / 1e6:6.3f} M tokens/s  {figures['of_ceiling']:.4f} of the ceiling  "
            f"waits {figures['wait_share']:7.3%}  busy {figures['busy_share']:.3f}  SM {figures['sm_activity']}  "
            f"{figures['bus_bytes_per_token']:5.2f} bytes a token  "
            f"{figures['host_next_us']:,.0f} µs in next  {verdict}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--demand", type=float, metavar="TOKENS_PER_S")
    parser.add_argument("--threads", type=int, default=max(1, CORES - 2), help="threads of the stream")
    parser.add_argument("sizes", nargs="*", default=list(SIZES))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    text = find_text(options.text, 50)
    folder = Path(tempfile.mkdtemp())
    results = []
    machine = {"gpu": torch.cuda.get_device_name(), "cores": os.cpu_count(), "torch": torch.__version__}
    try:
        if options.demand is None:
            write_tokens(folder)
        for name in options.sizes if options.demand is None else [f"{options.demand / 1e6:g} M tokens/s"]:
            if options.demand is None:
                size, only = SIZES[name], ()
                trainer = Trainer(*size[:3], LENGTH)
            else:
                trainer, size = find_demanding(text, options.demand)
                only = (TEXT_CEILING, OURS[1], NANOCHAT.format(CORES))
            results.append(measure(folder, text, name, trainer, size, options.threads, only))
            show(results[-1])
            del trainer
            gc.collect()
            torch.cuda.empty_cache()
            if options.json:  # after each, so that a run that is cut off leaves what it has
                options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
