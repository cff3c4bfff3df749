"""Loads at full speed for long, and watches what must not grow: `python tests/simulation/long_run.py --seconds 3600`.

One loader runs all the time, over more shards than may be open at once. Between two looks another is opened, resumed
from its checkpoint, read from, and closed or simply dropped. Every look is a line of JSON: anonymous memory, batches,
descriptors, threads. The last line is the verdict; exit status 1 if anything grew.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from opening import open_store

ITEMS, SHARDS, LENGTH, ROWS, OPEN_FILES = 1 << 23, 96, 512, 16, 64
MOST_BYTES_AN_HOUR = 4 << 20
"""How much more memory an hour may take, by a line through all looks after the warm-up."""
NOISE_BYTES = 3 << 20
"""What allocators and the page tables move by, whatever happens."""


def look() -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    status = Path("/proc/self/status").read_text()  # what it allocated; mapped libraries count by who else has them
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    return {
        "bytes": kilobytes << 10,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def write_store(path: Path) -> None:
    shard_bytes = ITEMS * 2 // SHARDS
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, shard_bytes=shard_bytes, sync=False) as writer:
        for start in range(0, ITEMS, 1 << 14):
            writer.append({"tokens": (np.arange(start, start + (1 << 14)) % 65_521).astype(np.uint16)})


def check(batch: Any, view: Any) -> None:
    """A batch is what it says it is."""
    first = batch.indices[0] * LENGTH
    expected = (np.arange(first, first + LENGTH + 1) % 65_521).astype(np.uint16)
    if not np.array_equal(batch.tokens[0], expected):
        raise SystemExit(f"sample {batch.samples[0]} of {view} is wrong")


def restart(path: Path, state: Any) -> Any:
    """Open, resume, read a little; every other time nothing is closed by hand."""
    view = open_store(path, open_files=OPEN_FILES).windows(LENGTH)
    loader = tokenfeed.Loader(view, ROWS, prefetch=8)
    loader.load_state_dict(state)
    for _ in range(20):
        batch = next(loader)
        check(batch, view)
    if batch.samples[0] % 2:
        loader.close()
    return batch.state


def run(seconds: float, every: float) -> list[dict[str, Any]]:
    looks: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tokenfeed-long-") as folder:
        path = Path(folder, "store")
        write_store(path)
        view = open_store(path, open_files=OPEN_FILES).windows(LENGTH)
        loader = tokenfeed.Loader(view, ROWS)
        state = next(loader).state
        began = seen = time.monotonic()
        batches = 0
        while time.monotonic() - began < seconds:
            batch = next(loader)
            batches += 1
            if batches % 64 == 0:
                check(batch, view)
            if time.monotonic() - seen >= every:
                state = restart(path, state)
                seen = time.monotonic()
                del batch
                looks.append({"seconds": round(seen - began, 1), "batches": batches, **look()})
                print(json.dumps(looks[-1]), flush=True)
        loader.close()
    return looks


def judge(looks: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether all was flat after the first quarter, which is warm-up."""
    after = looks[len(looks) // 4 :]
    hours = np.array([each["seconds"] for each in after]) / 3600
    slope = float(np.polyfit(hours, [each["bytes"] for each in after], 1)[0]) if len(after) > 1 else float("inf")
    growth = slope * float(hours[-1] - hours[0])
    middle = len(after) // 2
    grown = [
        name
        for name in ("descriptors", "threads")
        if max(each[name] for each in after[middle:]) > max(each[name] for each in after[:middle])
    ]
    if growth > NOISE_BYTES + MOST_BYTES_AN_HOUR * float(hours[-1] - hours[0]):
        grown.append("bytes")
    return {
        "verdict": "flat" if not grown else f"grown: {', '.join(grown)}",
        "seconds": looks[-1]["seconds"],
        "batches": looks[-1]["batches"],
        "tokens": looks[-1]["batches"] * ROWS * LENGTH,
        "bytes_grown": round(growth),
        **{
            name: [min(e[name] for e in after), max(e[name] for e in after)]
            for name in ("bytes", "descriptors", "threads")
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("LONG_SECONDS", "3600")))
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two looks")
    parser.add_argument("--low-priority", action="store_true")
    options = parser.parse_args()
    if options.low_priority:
        os.nice(19)
    verdict = judge(run(options.seconds, options.every))
    print(json.dumps(verdict), flush=True)
    return 0 if verdict["verdict"] == "flat" else 1


if __name__ == "__main__":
    sys.exit(main())
