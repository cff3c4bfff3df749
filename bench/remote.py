"""Measures reading from object storage: `python bench/remote.py [--quick] [--json PATH]`.

Exit status 1 if a bar is missed. A real S3 server (SeaweedFS) on loopback, in another process, answers every request
20 ms late. `--quick` takes few repetitions, and enforces nothing.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import tokenfeed
from data import QUICK, make_small_shards
from measure import Report, interleave

LENGTH = 2048
ROWS = 32
LATENCY = 0.02
STEP_SECONDS = 0.2


@contextlib.contextmanager
def slow_server() -> Iterator[Path]:
    """A server with the store in `s3://bucket/store`; the environment says where. Gives an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        store = make_small_shards(QUICK)
        command = [sys.executable, str(Path(__file__).with_name("slow_server.py")), str(store), str(LATENCY)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            os.environ |= json.loads(server.stdout.readline())
            yield Path(folder)
        finally:
            server.stdin.close()
            server.wait()


def throughput(report: Report, repetitions: int) -> None:
    """Samples a second, beside the same number read one range after another."""

    def loaded(repetition: int) -> float:
        view = tokenfeed.open("s3://bucket/store").windows(LENGTH)
        with contextlib.closing(tokenfeed.Loader(view, ROWS, seed=repetition)) as loader:
            next(loader)
            began = time.perf_counter()
            for _ in range(20):
                next(loader)
            return 20 * ROWS / (time.perf_counter() - began)

    def in_turn(repetition: int) -> float:
        view = tokenfeed.open("s3://bucket/store").windows(LENGTH)
        indices = np.random.default_rng(repetition).integers(0, len(view), 40)
        view.read(indices[:1])
        began = time.perf_counter()
        for index in indices[1:]:
            view.read([index])
        return (indices.size - 1) / (time.perf_counter() - began)

    loaded(0)
    result = interleave({"loaded": loaded, "in turn": in_turn}, repetitions=repetitions, unit="samples/s")
    report.compare("loader: one range after another", result["loaded"], result["in turn"], bar=10)


def waiting(report: Report, steps: int) -> None:
    """The time in `next` beside training steps of 200 ms, after the first."""
    view = tokenfeed.open("s3://bucket/store").windows(LENGTH)
    with contextlib.closing(tokenfeed.Loader(view, ROWS)) as loader:
        next(loader)
        times = []
        for _ in range(steps):
            time.sleep(STEP_SECONDS)
            began = time.perf_counter()
            next(loader)
            times.append(1000 * (time.perf_counter() - began))
    report.limit("the longest wait beside training steps of 200 ms", [max(times)], "ms", bar=1)


def second_epoch(report: Report, folder: Path) -> None:
    """Requests in the second epoch, through the cache on disk; and its speed beside a local copy."""

    def epoch(view: object) -> float:
        with contextlib.closing(tokenfeed.Loader(view, ROWS, epochs=1)) as loader:
            began = time.perf_counter()
            samples = sum(len(batch) for batch in loader)
            return samples / (time.perf_counter() - began)

    def opened() -> object:
        remote = tokenfeed.Remote(cache=folder / "cache", memory_bytes=1 << 20)
        return tokenfeed.open("s3://bucket/store", remote=remote).windows(LENGTH)

    view = opened()
    epoch(view)
    view.reader.close()
    local = tokenfeed.open(make_small_shards(QUICK)).windows(LENGTH)
    views = {}

    def cached(repetition: int) -> float:
        views[repetition] = opened()
        return epoch(views[repetition])

    result = interleave({"cached": cached, "local": lambda _: epoch(local)}, repetitions=5, unit="samples/s")
    requests = [view.reader.stats().requests for view in views.values()]
    report.limit("requests in the second epoch, through the cache on disk", [max(requests)], "", bar=0)
    report.compare("the second epoch, through the cache on disk: a local copy", result["cached"], result["local"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = Report("reading from object storage, 20 ms away")
    with slow_server() as folder:
        throughput(report, 2 if options.quick else 9)
        waiting(report, 5 if options.quick else 50)
        second_epoch(report, folder)
    report.show()
    if options.json:
        report.write_json(options.json)
    if report.missed and not options.quick:
        sys.exit(f"missed: {', '.join(report.missed)}")


if __name__ == "__main__":
    main()
