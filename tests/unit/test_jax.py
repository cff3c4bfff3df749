"""Batches as global JAX arrays, over several devices of one process."""

import os
import subprocess
import sys

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
