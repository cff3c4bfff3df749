"""Measures runs that changed often: `python bench/amend.py [--quick] [--json PATH]`. Exit status 1 if a bar is missed.

A mixture of four sources whose weights changed 10,000 times and one of whose sources grew 100 times, beside the same
mixture unchanged; and how long the training thread waits where a running loader is amended, beside the first batch of a
new loader in the same process: from opening its stores on, and over views that are open. Times of plans are of the
processor. `--quick` takes fewer changes and repetitions, and enforces nothing.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from measure import Report, interleave
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.shares import Shares, Stage
from tokenfeed.store.spec import WindowsSpec

SIZES = {"web": 1_000_000, "code": 400_000, "math": 200_000, "books": 100_000}
WEIGHTS = (0.4, 0.3, 0.2, 0.1)
GAP, ROWS, RANKS = 500, 32, 8
TIMES = 200


def make_plans(num_changes: int) -> tuple[Plan, Plan]:
    """(plain, amended): the second grows once in every hundred changes."""
    names = list(SIZES)
    sources = [PlanSource(name, size, "0" * 16, WindowsSpec(length=2048)) for name, size in SIZES.items()]
    plain = Plan(sources, Shares([Stage(dict(zip(names, WEIGHTS, strict=True)))], names))
    rng, weights = np.random.default_rng(0), np.array(WEIGHTS)
    amendments: list[dict[str, Any]] = []
    for number in range(1, num_changes + 1):
        weights = weights * np.exp(rng.normal(0, 0.05, 4))
        told = dict(zip(names, (weights / weights.sum()).tolist(), strict=True))
        amendments.append({"at": number * GAP, "stages": [[told, None]]})
        if number % 100 == 50:
            rows = replace(sources[0], num_samples=SIZES["web"] // 100, data=f"{number:016}")
            amendments.append({"at": number * GAP + GAP // 2, "grown": [rows.to_json()]})
    return plain, Plan.from_json({**plain.to_json(), "amendments": amendments})


def look_up(report: Report, plain: Plan, amended: Plan, num_samples: int, repetitions: int) -> None:
    """k → sample: a batch of one rank, in order or anywhere, and samples of all of the run."""
    rng = np.random.default_rng(1)
    step = ROWS * RANKS
    half = num_samples // 2
    asked = {
        "the batches of one rank, in order": [
            np.arange(half + i * step, half + (i + 1) * step, RANKS) for i in range(64)
        ],
        "a batch anywhere": [np.arange(k, k + step, RANKS) for k in rng.integers(0, num_samples - step, 64).tolist()],
        "32 samples anywhere": [rng.integers(0, num_samples, 32) for _ in range(64)],
        "1,024 samples anywhere": [rng.integers(0, num_samples, 1024) for _ in range(16)],
    }

    def measure(plan: Plan, samples: Sequence[Any]) -> Callable[[int], float]:
        def once(_: int) -> float:
            began = time.thread_time()
            for number in range(TIMES):
                plan.locate(samples[number % len(samples)])
            return (time.thread_time() - began) / TIMES * 1e6

        return once

    for what, samples in asked.items():
        contenders = {"amended": measure(amended, samples), "plain": measure(plain, samples)}
        for contender in contenders.values():
            contender(0)
        result = interleave(contenders, repetitions=repetitions, unit="µs")
        report.limit(
            f"k → sample, {what}: as many times that of a plain plan",
            result["amended"].over(result["plain"]).values,
            "×",
            bar=None if len(samples[0]) > ROWS else 2,  # 20 MB of tables, looked at all over: the memory decides
        )
        report.compare(f"k → sample, {what}: µs", result["amended"], result["plain"])


def resume(report: Report, amended: Plan, num_samples: int, repetitions: int) -> None:
    """From the JSON of the plan to the state accepted and the first samples found."""
    text, state = json.dumps(amended.to_json()), amended.state(num_samples)

    def once() -> float:
        began = time.thread_time()
        plan = Plan.from_json(json.loads(text))
        plan.locate(np.arange(plan.accept(state)[1], num_samples + ROWS))
        return time.thread_time() - began

    report.limit(
        "a plan with all changes: read, made, resumed, first look", [once() for _ in range(repetitions)], "s", bar=0.5
    )
    report.limit("bytes of its state", [len(json.dumps(state))], "", bar=300)
    samples = np.linspace(1, num_samples, 5000).astype(np.int64).tolist()
    furthest = max(float(np.abs(amended.shares.counts(k) - amended.shares.targets(k)).max()) for k in samples)
    report.limit("furthest that a source is from its share at 5,000 points", [furthest], "samples", bar=1)


def waits(report: Report, repetitions: int) -> None:
    """The wait of the training thread for the batch after a change, beside that for the first of a new loader."""
    with tempfile.TemporaryDirectory(prefix="tokenfeed-amend-") as folder:
        path = Path(folder, "web")

        def write(path: Path, count: int) -> Any:
            options: dict[str, Any] = {"columns": {"tokens": "uint16"}, "spans": {"documents": "json"}, "sync": False}
            with tokenfeed.Writer(path, **options) as writer:
                for number in range(count):
                    writer.append({"tokens": np.full(4096, number % 60_000)}, documents={"id": number})
            return tokenfeed.open(path)

        views = [write(path, 2000).windows(1024), write(Path(folder, "more"), 20).windows(1024)]
        other = tokenfeed.open(path).windows(1024)

        def subject() -> Any:
            return tokenfeed.mix({"web": (views[0], 0.7), "code": (other, 0.3)})

        def timed(change: Callable[[Any], object]) -> Callable[[int], float]:
            def once(_: int) -> float:
                loader = tokenfeed.Loader(subject(), ROWS, rank=0, world_size=2)
                for _ in range(8):
                    next(loader)
                began = time.perf_counter()
                change(loader)
                next(loader)
                waited = time.perf_counter() - began
                loader.close()
                return waited * 1e3

            return once

        def first(opened: bool) -> Callable[[int], float]:
            def once(_: int) -> float:
                mixture = subject()
                began = time.perf_counter()
                if not opened:
                    view = tokenfeed.open(path).windows(1024)
                    mixture = tokenfeed.mix({"web": (view, 0.7), "code": (tokenfeed.open(path).windows(1024), 0.3)})
                loader = tokenfeed.Loader(mixture, ROWS, rank=0, world_size=2)
                next(loader)
                waited = time.perf_counter() - began
                loader.close()
                return waited * 1e3

            return once

        contenders = {
            "first": first(False),
            "first over open views": first(True),
            "amend(weights)": timed(lambda loader: loader.amend(weights={"web": 0.6, "code": 0.4})),
            "amend(mask)": timed(lambda loader: loader.amend(mask={"web": [7]})),
            "amend(grow)": timed(lambda loader: loader.amend(grow={"web": views[1]})),
            "resize": timed(lambda loader: loader.resize(rank=0, world_size=1)),
        }
        for contender in contenders.values():
            contender(0)
        result = interleave(contenders, repetitions=repetitions, unit="ms")
        for name in list(contenders)[2:]:
            ratio = result[name].over(result["first"])
            report.limit(f"the wait after {name}: as many times a first batch", ratio.values, "×", bar=1)
            ratio = result[name].over(result["first over open views"])
            report.limit(f"the wait after {name}: as many times a first batch over open views", ratio.values, "×")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = Report("runs that change")
    repetitions, num_changes = (3, 1000) if options.quick else (15, 10_000)
    plain, amended = make_plans(num_changes)
    look_up(report, plain, amended, num_changes * GAP, repetitions)
    resume(report, amended, num_changes * GAP, repetitions)
    waits(report, repetitions * 2)
    report.show()
    if options.json is not None:
        report.write_json(options.json)
    return 1 if report.missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
