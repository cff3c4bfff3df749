"""Trains a GPT on whole documents, flat and padded, by turns: `python bench/varlen.py [--text FOLDER] [--json PATH]`.

Flat: as many documents as a budget of tokens holds, laid end to end, with attention that stays within documents; the
batches of a Loader, sent as they are trained on. Padded: as many documents as fill the same budget with their padding,
rows as long as the longest; they lie on the device already, so that nothing but padding tells the two apart. "Padded by
length" are the same, where 64 batches at a time were sorted by length: less padding, and less random. Tokens a second
are real ones. Without CUDA, or with --quick, a tiny model.
"""

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tokenfeed
import tokenfeed.torch
from gpt import Trainer
from text import find_text, find_tokenizer
from tokenfeed.text.sources.files import TextFiles

BAR = 1.3
FLAT, PADDED, SORTED = "flat", "padded", "padded by length"
SORTED_TOGETHER = 64
SIZES = {  # layers, width, heads, longest document, tokens a step, steps a round, rounds
    "124M": (12, 768, 12, 8192, 65536, 40, 3),
    "tiny": (1, 32, 2, 256, 1024, 2, 1),
}
MEGABYTES = {"124M": 50.0, "tiny": 0.5}

Batch = tuple[tuple[torch.Tensor, ...], int]
"""What the model takes, and how many targets count."""


def write_documents(folder: Path, text: Path, longest: int, limit: int) -> tokenfeed.Store:
    """The documents of a text, cut where they have more than `longest` inputs."""
    tokenizer = find_tokenizer(text)
    written = 0
    with tokenfeed.Writer(folder, columns={"tokens": "uint16"}, spans={"documents": None}, sync=False) as writer:
        for group in TextFiles.find(text, split="train").iter_row_groups():
            ids, offsets = tokenizer.encode_batch([each for each in group if each], prepend=tokenizer.bos_id)
            for start, stop in itertools.pairwise(offsets.tolist()):
                for first in range(start, stop, longest):
                    writer.append({"tokens": ids[first : min(first + longest + 1, stop)]}, documents=None)
            written += offsets[-1]
            if written > limit:
                break
    return tokenfeed.open(folder)


def flat(view: Any, budget: int, device: str) -> Iterator[Batch]:
    loader = tokenfeed.Loader(view, tokens=budget, balance=True)
    for batch in tokenfeed.torch.to_device(loader, device, flat=True):
        yield (batch.inputs, batch.targets, batch.position_ids, batch.cu_seqlens), batch.num_targets


def padded(view: Any, budget: int, device: str, count: int, *, by_length: bool) -> Iterator[Batch]:
    """`count` batches of random documents, again and again."""
    indices = tokenfeed.Permutation(len(view), seed=1)(np.arange(len(view)))
    lengths = view.lengths(indices) - 1
    indices, lengths = indices[lengths > 0], lengths[lengths > 0]
    groups: list[list[int]] = []
    if by_length:
        together = SORTED_TOGETHER * budget // int(lengths.mean())
        order = [np.argsort(part, kind="stable") + first for first, part in enumerate_parts(lengths, together)]
        indices, lengths = indices[np.concatenate(order)], lengths[np.concatenate(order)]
    group, longest = [], 0
    for index, length in zip(indices.tolist(), lengths.tolist(), strict=True):
        if group and max(longest, length) * (len(group) + 1) > budget:
            groups.append(group)
            group, longest = [], 0
        group, longest = [*group, index], max(longest, length)
    chosen = np.random.default_rng(0).permutation(len(groups))[:count]
    made: list[Batch] = []
    for number in chosen:
        batch = view.read(groups[number])
        targets = np.where(batch.loss_mask, batch.targets.astype(np.int64), -1)
        sides = torch.from_numpy(batch.inputs.astype(np.int32)).to(device), torch.from_numpy(targets).to(device)
        made.append((sides, batch.num_targets))
    yield from itertools.cycle(made)


def enumerate_parts(values: Any, size: int) -> Iterator[tuple[int, Any]]:
    for first in range(0, len(values), size):
        yield first, values[first : first + size]


def train(trainer: Trainer, batches: Iterator[Batch], steps: int) -> dict[str, float]:
    wait: Callable[[], object] = torch.cuda.synchronize if trainer.device == "cuda" else lambda: None
    wait()
    began, tokens, positions = time.perf_counter(), 0, 0
    for batch, count in itertools.islice(batches, steps):
        trainer.step(*batch)
        tokens += count
        positions += batch[0].numel()
    wait()
    seconds = time.perf_counter() - began
    return {"tokens_per_s": tokens / seconds, "real_share": tokens / positions, "step_s": seconds / steps}


def measure(text: Path, folder: Path, size: str, device: str) -> dict[str, Any]:
    layers, width, heads, longest, budget, steps, rounds = SIZES[size]
    view = write_documents(folder, text, longest, budget * steps * 40).documents()
    lengths = view.lengths(np.arange(len(view)))
    trainer = Trainer(layers, width, heads, longest, device=device, dynamic=True)
    contenders = {
        FLAT: flat(view, budget, device),
        PADDED: padded(view, budget, device, steps, by_length=False),
        SORTED: padded(view, budget, device, steps, by_length=True),
    }
    for batches in contenders.values():
        train(trainer, batches, steps)  # compiles; and every shape of padded batches is met once
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for turn in range(rounds):  # by turns, so that all see the same clocks and neighbours
        names = list(contenders)
        for name in names[turn % 3 :] + names[: turn % 3]:
            runs[name].append(train(trainer, contenders[name], steps))
    middle = {
        name: {key: float(np.median([run[key] for run in made])) for key in made[0]} for name, made in runs.items()
    }
    speed = {name: each["tokens_per_s"] for name, each in middle.items()}
    return {
        "model": size,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "documents": len(view),
        "lengths": {"mean": float(lengths.mean()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "tokens_a_step": budget,
        "contenders": {name: {**each, "runs": runs[name]} for name, each in middle.items()},
        "gain": speed[FLAT] / speed[PADDED],
        "gain_by_length": speed[FLAT] / speed[SORTED],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = "tiny" if options.quick or device == "cpu" else "124M"
    folder = Path(tempfile.mkdtemp())
    try:
        result = measure(find_text(options.text, MEGABYTES[size]), folder / "store", size, device)
    finally:
        shutil.rmtree(folder)
    print(f"{size}, {result['parameters'] / 1e6:.1f} M parameters, {result['tokens_a_step']:,} tokens a step, {device}")
    print(f"{result['documents']:,} documents of {result['lengths']}")
    for name, each in result["contenders"].items():
        speed, real = f"{each['tokens_per_s']:12,.0f} tokens/s", f"{each['real_share']:6.1%} real"
        print(f"  {name:18} {speed}  {real}  {each['step_s']:.4f} s a step")
    verdict = "" if size == "tiny" else "ok" if result["gain"] >= BAR else "MISSED"
    print(f"flat beside padded: {result['gain']:.2f} ×  (by length {result['gain_by_length']:.2f} ×)  {verdict}")
    if options.json:
        name = torch.cuda.get_device_name() if device == "cuda" else "processor"
        machine = {"device": name, "cores": os.cpu_count(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"machine": machine, "results": [result]}, indent=1))
    return verdict == "MISSED"


if __name__ == "__main__":
    sys.exit(main())
