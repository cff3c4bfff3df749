"""Adapters: torch's own loaders and checkpoints over ours, resumed exactly."""

import gc

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import tokenfeed
import tokenfeed.torch
import torchrun
from tokenfeed.errors import ArgumentError

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def impatient():
    """torch waits 5 s for every worker that failed, when its iterator is collected."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
        yield
        gc.collect()


@pytest.fixture
def make(store_path):
    def make_loader(**options):
        return tokenfeed.Loader(tokenfeed.open(store_path).windows(64, columns=["frame"]), 4, **options)

    return make_loader


@pytest.fixture
def expected(make):
    loader = make()
    return [next(loader).samples.tolist() for _ in range(20)]


def test_stateful_data_loader_resumes_exactly(make, expected):
    def load():
        return StatefulDataLoader(tokenfeed.torch.as_dataset(make()), batch_size=None)

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


class Own(IterableDataset):
    """What a user writes around a loader, or around a function that makes one."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        loader = self.loader() if callable(self.loader) else self.loader
        return (batch.samples for batch in loader)


def spawned(dataset, num_workers):
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context="spawn")


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("wrap", [tokenfeed.torch.as_dataset, Own])
def test_workers_are_refused(make, wrap, num_workers):
    """Each would deliver everything, and the parent's state would say 0 samples."""
    batches = DataLoader(wrap(make()), batch_size=None, num_workers=num_workers)
    with pytest.raises(ArgumentError, match=rf"(?s)num_workers is {num_workers}.*Use num_workers=0"):
        next(iter(batches))


@pytest.mark.slow
def test_spawned_workers_are_refused(make):
    with pytest.raises(ArgumentError, match="num_workers is 1"):
        next(iter(spawned(tokenfeed.torch.as_dataset(make()), 1)))


@pytest.mark.slow
def test_loaders_made_in_workers_must_say_their_share(make):
    with pytest.raises(ArgumentError, match=r"(?s)num_workers is 2.*rank= and world_size="):
        next(iter(DataLoader(Own(make), batch_size=None, num_workers=2)))
    alone = DataLoader(Own(lambda: make(epochs=1)), batch_size=None, num_workers=1)
    everything = sorted(sample for samples in alone for sample in samples.tolist())
    assert everything == list(range(len(everything)))

    def share():
        worker = get_worker_info()
        return make(epochs=1, rank=worker.id, world_size=worker.num_workers)

    shares = DataLoader(Own(share), batch_size=None, num_workers=2)
    assert sorted(sample for samples in shares for sample in samples.tolist()) == everything


@pytest.mark.parametrize("options", [{}, {"epochs": 1}])
def test_a_loader_is_no_dataset_of_samples(make, options):
    """What a Trainer of transformers makes of its train_dataset: a sampler, and items by their number."""
    loader = make(**options)
    with pytest.raises(
        (ArgumentError, TypeError), match=r"as_dataset\(loader\), batch_size=None\).*tokenfeed.integrations"
    ):
        next(iter(DataLoader(loader, batch_size=8)))


def test_what_is_no_loader_is_refused(store_path, make):
    view = tokenfeed.open(store_path).windows(64)
    for take in (
        lambda loader: tokenfeed.torch.to_device(loader, "cpu"),
        tokenfeed.torch.as_dataset,
        tokenfeed.torch.as_node,
    ):
        with pytest.raises(ArgumentError, match=r"takes a Loader or a stream, not Windows; make one: Loader\(view"):
            take(view)
        with pytest.raises(ArgumentError, match=r"not DeviceLoader; give it `.loader` of this"):
            take(tokenfeed.torch.to_device(make(), "cpu"))


def test_each_says_what_it_is(make):
    loader = make(epochs=1)
    assert repr(tokenfeed.torch.as_dataset(loader)) == f"as_dataset({loader})"
    assert repr(tokenfeed.torch.as_node(loader)) == f"as_node({loader})"
    placed = tokenfeed.torch.to_device(loader, "cpu")
    assert repr(placed) == f"to_device({loader}, 'cpu')"
    batch = next(placed)
    assert repr(batch) == f"DeviceBatch({batch.host}, on cpu)"
    assert f"4 of {len(loader.plan.sources) and loader.plan.count(1):,} samples delivered" in repr(loader)


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
    local = make(shuffle=tokenfeed.plan.Local(block=16, tile=4))
    for number, (saved, other) in enumerate([(local, make()), (make(), local)]):
        dcp.save({"loader": saved}, checkpoint_id=tmp_path / str(number))
        with pytest.raises(tokenfeed.errors.PlanMismatchError, match="order"):
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
