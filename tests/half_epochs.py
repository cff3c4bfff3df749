"""Half an epoch by the real Megatron-core or OLMo-core, where it is installed: `python half_epochs.py megatron out/`.

Leaves the token files, the index files, and in `seen.npy` and `rest.npy` the rows that the loader delivered, and those
that it would have delivered next. Imports nothing of tokenfeed; tests/data/adoption holds what this made.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

LENGTH = 16


def documents(count: int, seed: int) -> list[np.ndarray]:
    """Documents of 1 to 60 tokens; every token is one more than the last, so that each is told from all others."""
    sizes = np.random.default_rng(seed).integers(1, 61, count)
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def megatron(out: Path, num_samples: int | None, consumed: int) -> None:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = 60000, 0, 0, {"class": "none"}

    import torch

    builder = IndexedDatasetBuilder(str(out / "data.bin"), dtype=np.uint16)
    for number, tokens in enumerate(documents(40, 1)):
        cuts = [0, len(tokens) // 2, len(tokens)] if number % 3 == 0 and len(tokens) > 1 else [0, len(tokens)]
        for first, stop in pairwise(cuts):
            builder.add_item(torch.from_numpy(tokens[first:stop]))
        builder.end_document()
    builder.finalize(str(out / "data.idx"))
    data = IndexedDataset(str(out / "data"))
    options = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    config = GPTDatasetConfig(
        random_seed=7,
        sequence_length=LENGTH,
        path_to_cache=str(out),
        tokenizer=Tokenizer(),
        blend=None,
        split="1",
        **options,
    )
    chosen = np.arange(len(data.sequence_lengths) - 3, dtype=np.int32)  # the last sequences are another split's
    dataset = GPTDataset(data, str(out / "data"), chosen, num_samples, Split.train, config)
    rows = [np.append(dataset[i]["tokens"].numpy(), dataset[i]["labels"].numpy()[-1]) for i in range(len(dataset))]
    save(out, rows, consumed)


def olmo(out: Path, max_target: int | None, consumed: int) -> None:
    from olmo_core.data import DataCollator, NumpyDataLoaderBase, NumpyFSLDataset

    tokens = np.concatenate(documents(40, 2))
    paths = []
    for number, part in enumerate(np.split(tokens, [301, 700])):
        paths.append(out / f"part-{number}.npy")
        part.astype(np.uint16).tofile(paths[-1])
    dataset = NumpyFSLDataset(
        *paths,
        sequence_length=LENGTH,
        pad_token_id=0,
        eos_token_id=0,
        vocab_size=60000,
        dtype=np.uint16,
        max_target_sequence_length=max_target,
    )
    loader = NumpyDataLoaderBase.wrap_numpy_dataset(
        dataset, global_batch_size=LENGTH * 4, collator=DataCollator(pad_token_id=0), work_dir=out, seed=3
    )
    loader.reshuffle(epoch=1)
    rows = [row.numpy() for batch in loader for row in batch["input_ids"]]
    assert loader.tokens_processed == len(rows) * LENGTH
    save(out, rows, consumed)


def save(out: Path, rows: list[np.ndarray], consumed: int) -> None:
    np.save(out / "seen.npy", np.array(rows[:consumed], np.uint16))
    np.save(out / "rest.npy", np.array(rows[consumed:], np.uint16))


RUNS = {
    "megatron": lambda out: megatron(out, None, 32),
    "megatron-epochs": lambda out: megatron(out, 150, 80),
    "olmo": lambda out: olmo(out, None, 32),
    "olmo-chunks": lambda out: olmo(out, 2 * LENGTH, 32),
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](Path(sys.argv[2]))
