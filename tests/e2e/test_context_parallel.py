"""Slices of a context-parallel group of two processes, against what torch makes of the same rows."""

import numpy as np
import pytest

import tokenfeed
import torchrun

SCRIPT = """
import sys

import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

import tokenfeed.torch

torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "cp"))
view = tokenfeed.open(sys.argv[1]).windows(16)
loaders = [tokenfeed.Loader(view, 3, **tokenfeed.torch.data_parallel(mesh, "dp")) for _ in range(2)]
whole = next(tokenfeed.torch.to_device(loaders[0], "cpu"))
ours = next(tokenfeed.torch.to_device(loaders[1], "cpu", cp=mesh["cp"]))
buffers = [whole.inputs, whole.targets, whole.position_ids]
with context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(buffers)):
    same = [torch.equal(*pair) for pair in zip(buffers, (ours.inputs, ours.targets, ours.position_ids), strict=True)]
print("same", same, tuple(ours.inputs.shape), flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_slices_are_what_context_parallel_makes_of_buffers(tmp_path):
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
        for _ in range(30):
            writer.append({"tokens": rng.integers(0, 1000, rng.integers(2, 20))})
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = torchrun.run(2, tmp_path / "script.py", tmp_path / "store", output=tmp_path / "output")
    assert str(printed).count("same [True, True, True] (3, 8)") == 2, printed
