"""Programs that are killed −9 in the middle: what they trained on, and what they train on when they start again."""

import json
import time

import torchrun

__all__ = ["kill_once", "read_trace", "run"]

run = torchrun.run


def kill_once(ready, world_size, script, *arguments, output, seconds=200):
    """Start ranks, and kill all of them −9 as soon as `ready()` is true."""
    deadline = time.monotonic() + seconds
    with torchrun.Torchrun(world_size, script, *arguments, output=output) as launched:
        while not ready():
            assert launched.poll() is None, launched.output()[-5000:]
            assert time.monotonic() < deadline, launched.output()[-5000:]
            time.sleep(0.003)


def read_trace(folder, world_size):
    """{step: [what each rank trained on]}: the last of several notes on a step counts, and half a line does not."""
    ranks = []
    for rank in range(world_size):
        steps = {}
        for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                note = json.loads(line)
                steps.setdefault(note["step"], []).append(note["samples"])
        ranks.append(steps)
    return {step: [rank.get(step) for rank in ranks] for step in sorted(ranks[0])}
