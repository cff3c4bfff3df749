"""`examples/torch/train_elastic.py` under torchrun's elastic agent: machines are killed −9, and come back."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from servers import free_port

SCRIPT = Path(__file__).parents[2] / "examples" / "torch/train_elastic.py"
STEPS, ROWS = 100, 12
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def store(tmp_path):
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.random.default_rng(0).integers(0, 500, 8 * 700 + 1)})
    return tmp_path / "store"


class Machine:
    """One agent of torchrun with one worker, in a group of processes of its own."""

    def __init__(self, port, store, folder, output):
        conf = "join_timeout=120,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:3", "--nproc-per-node", "1"]
        launcher += ["--max-restarts", "100", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        launcher += ["--local-addr", "127.0.0.1", "--rdzv-id", "test", "--rdzv-conf", conf, "--monitor-interval", "0.2"]
        options = [store, "--checkpoint", folder, "--steps", STEPS, "--length", 8, "--vocabulary", 500, "--pause", 0.2]
        words = [*launcher, SCRIPT, *options]
        # Agents of one host would else wait for each other's store when they meet again.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.process = subprocess.Popen(
            list(map(str, words)), stdout=output, stderr=output, start_new_session=True, env=environment
        )

    def kill(self):
        """Agent and worker at once, as a machine that is gone. The worker is in a session of its own."""
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        for pid in (self.process.pid, *map(int, children.stdout.split())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_worker(self):
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        for pid in map(int, children.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def committed(folder):
    path = folder / "steps.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {each["step"]: each["ranks"] for each in map(json.loads, lines)}


def wait_for(folder, machines, *, ranks, after, seconds=150):
    """The last step, once one after `after` was committed by that many ranks."""
    deadline = time.monotonic() + seconds
    while True:
        steps = committed(folder)
        if any(step > after and len(each) == ranks for step, each in steps.items()):
            return max(steps)
        assert time.monotonic() < deadline, f"no step after {after} on {ranks} ranks; {len(steps)} in all"
        assert machines[0].process.poll() is None, "the first machine has ended"
        time.sleep(0.2)


def test_machines_that_come_and_go(store, tmp_path):
    folder, port = tmp_path / "run", free_port()
    with (tmp_path / "output.txt").open("wb") as output:
        machines = [Machine(port, store, folder, output)]  # it holds the rendezvous, and stays
        try:
            step = wait_for(folder, machines, ranks=1, after=1)
            machines.append(Machine(port, store, folder, output))
            step = wait_for(folder, machines, ranks=2, after=step + 1)
            machines[1].kill_worker()
            step = wait_for(folder, machines, ranks=2, after=step + 2)
            machines[1].kill()
            step = wait_for(folder, machines, ranks=1, after=step + 1)
            machines.append(Machine(port, store, folder, output))
            machines[0].process.wait(150)
        finally:
            for machine in machines:
                machine.kill()
    told = (tmp_path / "output.txt").read_text()[-3000:]
    steps = committed(folder)
    assert sorted(steps) == list(range(STEPS)), told
    assert {len(ranks) for ranks in steps.values()} >= {1, 2}, told
    undisturbed = tokenfeed.Loader(tokenfeed.open(store).windows(8), ROWS, rank=0, world_size=1)
    for step in range(STEPS):
        batch = next(undisturbed)
        expected = dict(zip(batch.samples.tolist(), batch.inputs[:, 0].tolist(), strict=True))
        got = [pair for rank in steps[step] for pair in zip(rank["samples"], rank["first"], strict=True)]
        assert len(got) == ROWS
        assert dict(got) == expected
    undisturbed.close()
    run = tokenfeed.Run(folder / "run.jsonl")
    assert run.samples(STEPS - 1) == list(range(ROWS * (STEPS - 1), ROWS * STEPS))
