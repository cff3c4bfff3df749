"""Trainers and loggers whose packages are not among those of development: `make trainers` installs them.

`.ci/nightly` does so. Without a package, its test says so and is skipped; where NO_SKIPS is set, that fails.
"""

import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import tokenfeed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

EXAMPLES = Path(__file__).parents[3] / "examples"
LENGTH, VOCABULARY = 15, 100


def need(package):
    """The module, or a skip that says what was not tested."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        pytest.skip(f"NOT TESTED, {package} cannot be imported: {error}. `make trainers` installs it")


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 60), ("val", 20)):
        options = {"columns": {"tokens": "uint16"}, "spans": {"documents": "json"}, "split": split, "sync": False}
        with tokenfeed.Writer(tmp_path / "store", mode="append", **options) as writer:
            for number in range(count):
                writer.append({"tokens": rng.integers(0, VOCABULARY, rng.integers(5, 40))}, documents=number)
    return tmp_path / "store"


NAMES = {"data/wait_share", "data/share/web", "data/epochs/code", "tokenfeed/wait_seconds"}


def log(to, folder):
    """Run the example, as its page says."""
    words = [sys.executable, EXAMPLES / "logging/log.py", folder, to]
    subprocess.run(words, check=True, capture_output=True)


def test_wandb(tmp_path, monkeypatch):
    """Offline; read back from what the run wrote."""
    wandb = need("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(sys, "argv", ["log.py", str(tmp_path), "wandb"])
    runpy.run_path(str(EXAMPLES / "logging/log.py"))
    with wandb.run as run:
        run.log({"loss": 1.0}, step=21)  # W&B writes a step when the next one begins
        summary = dict(run.summary)
    assert summary["data/samples"] == 200.0
    assert summary.keys() >= NAMES
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_tensorboard(tmp_path):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= NAMES
    assert [(each.step, each.value) for each in events.Scalars("data/samples")] == [(10, 100.0), (20, 200.0)]
    assert [round(each.value, 4) for each in events.Scalars("data/share/web")] == [0.7, 0.7]


def test_prometheus(tmp_path):
    """What the client would answer when it is asked at the end."""
    need("prometheus_client")
    script = (EXAMPLES / "logging/log.py").read_text()
    script += 'from urllib.request import urlopen; print(urlopen("http://127.0.0.1:9464/metrics").read().decode())'
    done = subprocess.run([sys.executable, "-c", script, tmp_path, "prometheus"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'tokenfeed{name="data/samples"} 200.0\n' in done.stdout
    assert all(f'tokenfeed{{name="{name}"}}' in done.stdout for name in NAMES)


def test_orbax(store, tmp_path):
    """Weights and the place in the data, by one manager, in the background; on another number of processes."""
    ocp = need("orbax.checkpoint")
    example = runpy.run_path(str(EXAMPLES / "orbax/checkpoint.py"))
    windows = tokenfeed.open(store, split="train").windows(LENGTH)
    loader = tokenfeed.Loader(windows, 4, rank=0, world_size=2)
    weights = {"w": np.arange(6.0)}
    with ocp.CheckpointManager(tmp_path / "run", options=ocp.CheckpointManagerOptions(max_to_keep=3)) as manager:
        for step, _ in zip(range(1, 4), loader, strict=False):
            example["save"](manager, step, weights, loader)
            weights = {"w": weights["w"] + 1}
        manager.wait_until_finished()
        fewer = tokenfeed.Loader(windows, 3, rank=0, world_size=1)
        found = example["restore"](manager, weights, fewer)
        assert found["w"].tolist() == [2, 3, 4, 5, 6, 7]
        assert next(fewer).samples.tolist() == [24, 25, 26]
        example["restore"](manager, weights, fewer, 1)
        assert next(fewer).samples.tolist() == [8, 9, 10]


def test_torchtitan(store):
    """The class that torchtitan builds from a Config; the validator sees every window once."""
    need("torchtitan.components.dataloader")
    import torch

    from tokenfeed.integrations.torchtitan import TokenfeedDataLoader

    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "torchtitan/config_registry.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.TokenfeedDataLoader is TokenfeedDataLoader

    def build(split, rank, ranks, **options):
        config = TokenfeedDataLoader.Config(dataset_path=str(store), split=split, **options)
        place = {"dp_rank": rank, "dp_world_size": ranks, "seq_len": LENGTH, "local_batch_size": 2}
        return config.build(**place, tokenizer=None)

    loader = build("train", 0, 2)
    rows = [({name: each.clone() for name, each in given.items()}, labels) for given, labels in islice(loader, 3)]
    state = json.loads(json.dumps(loader.state_dict()))
    given, labels = rows[0]
    assert given["input"].dtype == given["positions"].dtype == labels.dtype == torch.int64
    assert (given["input"][:, 1:] == labels[:, :-1]).all()
    assert (given["positions"] == 0).sum() > len(labels), "documents begin in the middle of rows"
    expected = next(iter(loader))[0]["input"].tolist()
    resumed = build("train", 0, 2)
    resumed.load_state_dict({})
    resumed.load_state_dict(state)
    assert next(iter(resumed))[0]["input"].tolist() == expected
    three = [build("train", rank, 3) for rank in range(3)]
    for each in three:
        each.load_state_dict(state)
    seen = sorted(row for each in three for row in next(iter(each))[0]["input"].tolist())
    order = next(tokenfeed.Loader(tokenfeed.open(store, split="train").windows(LENGTH), 18, rank=0, world_size=1))
    assert seen == sorted(order.inputs[12:18].tolist())

    batches = [list(build("val", rank, 3, infinite=False)) for rank in range(3)]
    assert len({len(each) for each in batches}) == 1, "collectives would wait for ever"
    real = sum(int((labels != -100).any(1).sum()) for each in batches for _, labels in each)
    assert real == len(tokenfeed.open(store, split="val").windows(LENGTH))


def test_litgpt(store, tmp_path, monkeypatch):
    """The real `litgpt pretrain`, killed −9 after a checkpoint, and resumed."""
    need("litgpt.pretrain")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    program = tmp_path / "program.py"
    program.write_text(LITGPT)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "litgpt"), prepend=os.pathsep)

    def run(name, *words, status=0):
        out = tmp_path / name
        done = subprocess.run(
            [sys.executable, program, store, out, *words], capture_output=True, text=True, env=os.environ, timeout=290
        )
        assert done.returncode == status, done.stderr[-3000:]
        return [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]

    expected = run("whole")
    assert len(expected) == 8
    killed = run("killed", "--die-after", "5", status=-9)
    assert killed == expected[:5]
    resumed = run("killed", "--resume")
    assert resumed == expected[:5] + expected[4:], "the checkpoint after 4 steps goes on with the fifth"


LITGPT = """
import json, os, signal, sys
from pathlib import Path
import torch
from litgpt import pretrain
from litgpt.args import EvalArgs, LogArgs, TrainArgs
from litgpt.config import Config
from litgpt.model import GPT
from data import Tokens

store, out, *words = sys.argv[1:]
sys.argv = ["pretrain.py", "tiny"]  # litgpt reads these again when it saves
die_after = int(words[1]) if words[:1] == ["--die-after"] else None
note = Path(out + ".jsonl")
count = 0
forward = GPT.forward

def noting(self, tokens, *arguments, **more):
    global count
    if self.training and tokens.device.type == "cpu":  # not where litgpt counts operations
        if count == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        with note.open("a") as file:
            file.write(json.dumps(tokens.tolist()) + "\\n")
        count += 1
    return forward(self, tokens, *arguments, **more)

GPT.forward = noting
config = Config(name="tiny", block_size=15, n_layer=1, n_head=2, n_embd=16, vocab_size=100, padded_vocab_size=128)
pretrain.setup(
    model_name="tiny",
    model_config=config,
    out_dir=Path(out),
    precision="32-true",
    resume="auto" if "--resume" in words else False,
    data=Tokens(store),
    train=TrainArgs(
        save_interval=2, log_interval=1, global_batch_size=2, micro_batch_size=2, max_tokens=2 * 15 * 8,
        max_norm=1.0, min_lr=1e-5, lr_warmup_steps=0, tie_embeddings=False,
    ),
    eval=EvalArgs(interval=1000, max_iters=2, initial_validation=False, final_validation=False),
    log=LogArgs(),
    optimizer="AdamW",
    devices=1,
    logger_name="csv",
    seed=42,
)
"""
