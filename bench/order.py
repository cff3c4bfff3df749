"""What the order does to training: `python bench/order.py --text FOLDER [--json PATH] [--quick]`. A GPU makes it quick.

Documents are written source by source, as most corpora come. A small GPT is trained for one epoch on their windows in
three orders: as they lie; shard by shard, shards and the windows within each shuffled, as loaders do that shuffle what
is at hand; and in tokenfeed's order, shuffled as a whole. Same windows, same model, same seeds.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch

import tokenfeed
from gpt import Trainer
from text import find_tokenizer
from tokenfeed.text.sources.files import TextFiles

LENGTH, ROWS, SHARDS = 512, 32, 32
MODEL = (6, 384, 6)
EVALUATE_EVERY = 10
Indices = npt.NDArray[np.int64]


def write_stores(text: Path, folder: Path) -> None:
    """Train and validation documents, each led by BOS; the train ones ordered by source."""
    tokenizer = find_tokenizer(text)
    for split in ("train", "val"):
        table = pq.read_table(list(TextFiles.find(text, split=split).paths))
        table = table.sort_by("source") if split == "train" else table
        with tokenfeed.Writer(folder / split, columns={"tokens": "uint16"}, sync=False) as writer:
            ids, offsets = tokenizer.encode_batch(table["text"].to_pylist(), prepend=tokenizer.bos_id)
            writer.append({"tokens": ids}, lengths=np.diff(offsets))


def as_it_lies(num_windows: int, seed: int) -> Indices:
    return np.arange(num_windows)


def shard_by_shard(num_windows: int, seed: int) -> Indices:
    rng = np.random.default_rng(seed)
    shards = np.array_split(np.arange(num_windows), SHARDS)
    return np.concatenate([rng.permutation(shards[number]) for number in rng.permutation(SHARDS)])


def as_a_whole(num_windows: int, seed: int) -> Indices:
    return tokenfeed.Permutation(num_windows, seed)(np.arange(num_windows))


ORDERS: dict[str, Callable[[int, int], Indices]] = {
    "as it lies": as_it_lies,
    "shard by shard": shard_by_shard,
    "as a whole": as_a_whole,
}


def tensors(view: Any, indices: Indices, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.from_numpy(view.read(indices).column("tokens").astype(np.int64)).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(folder: Path, indices: Indices, seed: int, device: str, rows: int = ROWS) -> dict[str, Any]:
    view, held_out = (tokenfeed.open(folder / split).windows(LENGTH) for split in ("train", "val"))
    some = as_a_whole(len(held_out), 0)[: 4 * rows].reshape(4, rows)
    validation = [tensors(held_out, each, device) for each in some]
    trainer = Trainer(*MODEL, LENGTH, device=device, seed=seed)
    losses, evaluations = [], []
    for step, each in enumerate(indices[: len(indices) // rows * rows].reshape(-1, rows)):
        losses.append(trainer.step(*tensors(view, each, device)))
        if (step + 1) % EVALUATE_EVERY == 0:
            evaluations.append(trainer.evaluate(validation))
    return {"train": torch.stack(losses).tolist(), "validation": evaluations}


def roughness(losses: list[float]) -> float:
    """How far a step's loss lies from the mean of the twenty around it, after the first fifth of the run."""
    late = np.asarray(losses[len(losses) // 5 :])
    smooth = np.convolve(late, np.ones(20) / 20, mode="same")
    return float(np.std((late - smooth)[20:-20]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="Parquet files with the columns text and source")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ORDERS}
    with tempfile.TemporaryDirectory() as folder:
        write_stores(options.text, Path(folder))
        num_windows = len(tokenfeed.open(Path(folder, "train")).windows(LENGTH))
        for seed in range(options.seeds):
            for name, order in ORDERS.items():
                indices = order(num_windows, seed)
                if options.quick:
                    results[name].append(train(Path(folder), indices[:48], seed, device, rows=4))
                else:
                    results[name].append(train(Path(folder), indices, seed, device))
    print(f"{num_windows:,} windows of {LENGTH} tokens, {SHARDS} shards, {options.seeds} seeds, {device}")
    for name, runs in results.items():
        last = [run["validation"][-1] for run in runs]
        worst = [max(np.diff(run["validation"][len(run["validation"]) // 5 :]), default=0.0) for run in runs]
        print(
            f"  {name:15} validation loss at the end {statistics.mean(last):.3f} ({min(last):.3f} to {max(last):.3f}), "
            f"largest rise between two evaluations {max(worst):.3f}, "
            f"roughness of the training loss {statistics.mean(roughness(run['train']) for run in runs):.3f}"
        )
    if options.json:
        setting = {
            "windows": num_windows,
            "length": LENGTH,
            "rows": ROWS,
            "shards": SHARDS,
            "model": MODEL,
            "device": device,
        }
        options.json.write_text(json.dumps({"setting": setting, "runs": results}))


if __name__ == "__main__":
    main()
