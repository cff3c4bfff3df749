"""Adapters: torch's own loaders and checkpoints over ours, resumed exactly."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import tokenfeed
import tokenfeed.torch
import torchrun
from tokenfeed.errors import ArgumentError

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


@pytest.fixture
def make(store_path):
    def make_loader(**options):
        return tokenfeed.Loader(tokenfeed.open(store_path).windows(64, columns=["frame"]), 4, **options)

    return make_loader


@pytest.fixture
def expected(make):
    loader = make()
    return [next(loader).samples.tolist() for _ in range(20)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stateful_data_loader_resumes_exactly(make, expected, num_workers):
    def load():
        return StatefulDataLoader(tokenfeed.torch.as_dataset(make()), batch_size=None, num_workers=num_workers)

    batches = iter(load())
    for samples in expected[:7]:
        batch = next(batches)
        assert batch["samples"].tolist() == samples
    assert batch["inputs"].shape == batch["targets"].shape == (4, 64)
    assert batch["frame"].shape == (4, 65, 2, 3)
    first = load()
    running = iter(first)
    for _ in range(7):
        next(running)
    state = first.state_dict()
    resumed = load()
    resumed.load_state_dict(state)
    assert [batch["samples"].tolist() for batch, _ in zip(resumed, range(13), strict=False)] == expected[7:]


def test_several_workers_are_refused(make):
    batches = DataLoader(tokenfeed.torch.as_dataset(make()), batch_size=None, num_workers=2)
    with pytest.raises(ArgumentError, match="num_workers is 2"):
        next(iter(batches))


def test_a_plain_data_loader(make, expected):
    batches = DataLoader(tokenfeed.torch.as_dataset(make(epochs=1)), batch_size=None)
    assert [batch["samples"].tolist() for batch in batches][:20] == expected


def test_torchdata_node(make, expected):
    from torchdata.nodes import Loader

    node_loader = Loader(tokenfeed.torch.as_node(make()))
    batches = iter(node_loader)
    assert [next(batches)["samples"].tolist() for _ in range(7)] == expected[:7]
    state = node_loader.state_dict()
    resumed = Loader(tokenfeed.torch.as_node(make()))
    resumed.load_state_dict(state)
    assert [batch["samples"].tolist() for batch, _ in zip(resumed, range(13), strict=False)] == expected[7:]


@pytest.mark.filterwarnings("ignore")
def test_distributed_checkpoint(make, expected, tmp_path):
    loader = make()
    assert isinstance(loader, Stateful)
    for _ in range(7):
        next(loader)
    dcp.save({"loader": loader, "weights": torch.arange(3)}, checkpoint_id=tmp_path / "checkpoint")
    resumed = make()
    weights = torch.zeros(3, dtype=torch.int64)
    dcp.load({"loader": resumed, "weights": weights}, checkpoint_id=tmp_path / "checkpoint")
    assert next(resumed).samples.tolist() == expected[7]
    assert weights.tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_of_another_order_is_refused(make, tmp_path):
    local = make(shuffle=tokenfeed.Locality(block=16, tile=4))
    for number, (saved, other) in enumerate([(local, make()), (make(), local)]):
        dcp.save({"loader": saved}, checkpoint_id=tmp_path / str(number))
        with pytest.raises(tokenfeed.errors.PlanMismatchError, match="locality"):
            dcp.load({"loader": other}, checkpoint_id=tmp_path / str(number))


MESH = """
import sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import tokenfeed, tokenfeed.torch

dist.init_process_group("gloo")
view = tokenfeed.open(sys.argv[1]).windows(64)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
loader = tokenfeed.Loader(view, 2, **tokenfeed.torch.data_parallel(mesh))
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
mesh["replicate", "shard"]._flatten("dp")
both = tokenfeed.torch.data_parallel(mesh, "dp")
print(f"rank {dist.get_rank()}:", next(loader).samples.tolist(), both["rank"], both["world_size"], flush=True)
dist.destroy_process_group()
"""


def test_rank_of_a_device_mesh(store_path, tmp_path):
    """Four processes. Of a tensor-parallel pair, both get the same batches; two dimensions can be taken as one."""
    (tmp_path / "mesh.py").write_text(MESH)
    output = torchrun.run(4, tmp_path / "mesh.py", store_path, output=tmp_path / "output")
    assert sorted(line for line in output.splitlines() if line.startswith("rank ")) == [
        "rank 0: [0, 2] 0 4",
        "rank 1: [0, 2] 1 4",
        "rank 2: [1, 3] 2 4",
        "rank 3: [1, 3] 3 4",
    ]
