"""Batches as global JAX arrays, over several devices of one process, and over two processes."""

import os
import subprocess
import sys

import pytest

from servers import free_port

CODE = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import tokenfeed, tokenfeed.jax

view = tokenfeed.open(sys.argv[1]).windows(64, columns=["frame"])
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
make = lambda: tokenfeed.Loader(view, 8, **tokenfeed.jax.data_parallel())
expected, loader = make(), make()
for arrays, _ in zip(tokenfeed.jax.to_arrays(loader, sharding), range(5)):
    inputs, targets = arrays
    batch = next(expected)
    assert inputs.shape == (8, 64) and inputs.dtype == np.int32 and inputs.sharding == sharding
    assert len(inputs.addressable_shards) == 4
    np.testing.assert_array_equal(inputs, batch.inputs)
    np.testing.assert_array_equal(targets, batch.targets)
    np.testing.assert_array_equal(arrays.column("frame"), batch.column("frame"))
    assert arrays.state == batch.state
    assert arrays.state == loader.state_dict()
total = jax.jit(lambda x: x.sum())(inputs)
assert int(total) == int(batch.inputs.astype(np.int64).sum())
wide = next(tokenfeed.jax.to_arrays(make(), sharding, dtypes={"inputs": np.uint16}))
assert wide.inputs.dtype == np.uint16
"""


def test_global_arrays(store_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(store_path)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr


TWO = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
import sys
import jax, numpy as np
path, address, process = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, 2, process)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import tokenfeed, tokenfeed.jax
from tokenfeed.errors import ArgumentError

view = tokenfeed.open(path).windows(64)
devices = np.array(jax.devices())  # two of process 0, two of process 1
assert [device.process_index for device in devices] == [0, 0, 1, 1]

def load(sharding, **options):
    place = tokenfeed.jax.data_parallel(sharding)
    loader = tokenfeed.Loader(view, 4, **place, **options)
    return place, loader, tokenfeed.jax.to_arrays(loader, sharding)

def check(array, expected):
    \"""Every piece that is here is that of the whole.\"""
    assert array.shape == expected.shape
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])

def rows(*samples):
    _, _, indices = tokenfeed.Plan.of(view, seed=0).locate(np.array(samples))
    return view.read(indices)

# Rows are divided among processes: row j of rank r is k = K + 2j + r, and row 4r + j.
sharding = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
place, loader, batches = load(sharding)
assert place == tokenfeed.jax.data_parallel() == {"rank": process, "world_size": 2}
for start in (0, 8, 16):
    batch = next(batches)
    expected = rows(*range(start, start + 8, 2), *range(start + 1, start + 8, 2))
    check(batch.inputs, expected.inputs)
    check(batch.targets, expected.targets)
    assert batch.state["samples"] == loader.state_dict()["samples"] == start + 8
assert int(jax.jit(lambda x: x.sum())(batch.inputs)) == int(expected.inputs.astype(np.int64).sum())

# Processes in another order along the axis: ranks follow the axis, not the processes.
place, _, batches = load(NamedSharding(Mesh(devices[::-1], ("data",)), PartitionSpec("data")))
assert place == {"rank": 1 - process, "world_size": 2}
check(next(batches).inputs, rows(0, 2, 4, 6, 1, 3, 5, 7).inputs)

# The data axis lies within processes, the model axis across: both read the same rows.
mesh = Mesh(devices.reshape(2, 2).T, ("data", "model"))
place, _, batches = load(NamedSharding(mesh, PartitionSpec("data")))
assert place == {"rank": 0, "world_size": 1}
check(next(batches).inputs, rows(0, 1, 2, 3).inputs)

# A sequence across processes: whole rows are read, a part is kept.
place, _, batches = load(NamedSharding(mesh, PartitionSpec("data", "model")))
check(next(batches).inputs, rows(0, 1, 2, 3).inputs)

# A finite loader: equal shapes on every process, every sample once.
place, _, batches = load(sharding, epochs=1)
batches = list(batches)
assert len(batches) == -(-len(view) // 8)
assert len(view) % 8
count = jax.jit(lambda mask: mask.any(axis=1).sum())
assert {batch.inputs.shape for batch in batches} == {(8, 64)}
assert sum(int(count(batch.loss_mask)) for batch in batches) == len(view)

# A loader that was made for another place.
try:
    tokenfeed.jax.to_arrays(tokenfeed.Loader(view, 4, rank=0, world_size=1), sharding)
except ArgumentError as error:
    assert f"rank {process} of 2" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.slow
def test_two_processes(store_path):
    command = [sys.executable, "-c", TWO, str(store_path), f"localhost:{free_port()}"]
    first, second = (
        subprocess.Popen([*command, process], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for process in "01"
    )
    try:
        outputs = [process.communicate(timeout=100)[0] for process in (first, second)]
    finally:
        first.kill()
        second.kill()
    assert (first.returncode, second.returncode) == (0, 0), "\n".join(outputs)
