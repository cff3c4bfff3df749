"""A training loop that is killed −9 at random moments: its run file reads, and it resumes at exactly the next batch.

KILL_ROUNDS says how often; a long run sets it to 50.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

import tokenfeed
from tiers import pick
from tokenfeed.kernels.checksum import checksum
from tokenfeed.observe.snapshots import read_snapshots

ROUNDS = int(os.environ.get("KILL_ROUNDS", pick(2, 4)))
LENGTH = 50

CODE = f"""
import json, os, sys, tokenfeed
from pathlib import Path
from tokenfeed.kernels.checksum import checksum
from tokenfeed.observe import publish
store, folder = Path(sys.argv[1]), Path(sys.argv[2])
loader = tokenfeed.Loader(tokenfeed.open(store).windows({LENGTH}), 8, seed=5, prefetch=8, run=folder / "run.jsonl")
if (folder / "checkpoint.json").exists():
    loader.load_state_dict(json.loads((folder / "checkpoint.json").read_text()))
publish(loader, folder / "run.stats.jsonl", every=0.01, max_bytes=4096)
while True:
    trained = []
    for _ in range(5):
        batch = next(loader)
        trained.append([int(batch.samples[0]), checksum(batch.tokens.tobytes())])
    # What was trained on between two checkpoints is kept with the second one, as the weights would be.
    with open(folder / "new", "w") as file:
        json.dump(batch.state, file)
    with open(folder / "trained", "a") as file:
        file.write(json.dumps(trained) + "\\n")
    os.replace(folder / "new", folder / "checkpoint.json")
    print(batch.samples[0], flush=True)
"""


def test_kill_minus_nine_of_a_trainer(store_path, tmp_path):
    """It resumes at exactly the next batch, and leaves no process, shared memory, temporary file or lock."""
    rng = np.random.default_rng(0)
    kept = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    stored = {path: path.stat().st_mtime_ns for path in store_path.rglob("*")}
    for number in range(ROUNDS):
        arguments = [sys.executable, "-c", CODE, store_path, tmp_path]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)})
        if number % 4 != 3:  # every fourth is killed while it starts
            assert process.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.2)))
        helpers = psutil.Process(process.pid).children(recursive=True)
        shared = [line for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines() if "/dev/shm/" in line]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert (helpers, shared, list(temporary.iterdir())) == ([], [], [])  # so that nothing is left behind
        assert {path: path.stat().st_mtime_ns for path in store_path.rglob("*")} == stored
        assert not [path for path in tmp_path.rglob("*") if path.stem.endswith("lock")]
        if not (tmp_path / "checkpoint.json").exists():
            (tmp_path / "trained").unlink(missing_ok=True)
            continue
        # The run file reads, whatever it was in the middle of; and its last start is at or before the checkpoint.
        delivered = json.loads((tmp_path / "checkpoint.json").read_text())["samples"]
        starts = tokenfeed.Run(tmp_path / "run.jsonl").starts
        assert starts[0].samples == 0
        assert all(start.step == start.samples // 8 for start in starts)
        assert max(start.samples for start in starts) <= delivered
        assert read_snapshots(tmp_path / "run.stats.jsonl")
        kept = keep_what_was_checkpointed(tmp_path / "trained", delivered)
        assert [first for first, _ in kept] == list(range(0, delivered, 8))
    assert len(kept) > ROUNDS
    loader = tokenfeed.Loader(tokenfeed.open(store_path).windows(LENGTH), 8, seed=5, prefetch=0)
    assert [content for _, content in kept] == [checksum(next(loader).tokens.tobytes()) for _ in kept]
    run = tokenfeed.Run(tmp_path / "run.jsonl")
    assert len(run.starts) >= ROUNDS // 2
    assert run.place(8 * len(kept)).step == len(kept)


def keep_what_was_checkpointed(path, delivered):
    """Drop what was trained behind the checkpoint, as loading the weights does."""
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            kept += [[first, content] for first, content in json.loads(line) if first < delivered]
    path.write_text("".join(json.dumps([one]) + "\n" for one in kept))
    return kept
