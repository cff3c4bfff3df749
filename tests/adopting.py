"""Runs of Megatron-core and OLMo-core in a folder, as `half_epochs.py` leaves them, adopted and checked."""

from pathlib import Path

import numpy as np

import tokenfeed
from tokenfeed.runs.adoption import adopt_megatron, adopt_olmo

RECORDED = Path(__file__).parent / "data" / "adoption"
RUNS = ["megatron", "megatron-epochs", "olmo", "olmo-chunks"]


def adopt(kind, folder, consumed=None):
    """The run in a folder, as far as it was recorded."""
    consumed = len(np.load(folder / "seen.npy")) if consumed is None else consumed
    if kind.startswith("megatron"):
        return adopt_megatron(folder / "data.idx", folder, consumed=consumed)
    files, (indices,) = sorted(folder.glob("part-*.npy")), folder.glob("global_indices*")
    chunks = 32 if kind == "olmo-chunks" else None
    options = {"length": 16, "dtype": "uint16", "max_target_length": chunks}
    return adopt_olmo(files, indices, consumed=consumed, **options)


def check(kind, folder):
    """No token that the real loader had left is lost, and none comes twice; on any ranks, in its order or in ours."""
    adopted, seen, rest = adopt(kind, folder), np.load(folder / "seen.npy"), np.load(folder / "rest.npy")
    np.testing.assert_array_equal(adopted.seen[:].tokens, seen)
    in_order = np.concatenate(
        [batch.tokens for batch in tokenfeed.Loader(adopted.unseen, 3, shuffle=False, epochs=1, rank=0, world_size=1)]
    )
    np.testing.assert_array_equal(in_order[: len(rest)], rest)
    loaders = [tokenfeed.Loader(adopted.unseen, 2, seed=4, epochs=1, rank=rank, world_size=3) for rank in range(3)]
    ours = [row.tolist() for loader in loaders for batch in loader for row in batch.tokens]
    assert sorted(ours) == sorted(in_order.tolist())
    every = adopted.view[:].tokens.tolist()
    assert sorted(seen.tolist() + ours) == sorted(every)
    return adopted, rest
