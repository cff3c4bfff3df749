"""Measures what a plan costs: `python bench/plan.py [--quick] [--json PATH]`. Exit status 1 if a bar is missed.

k → (source, epoch, sample) for a batch of 32 rows of one rank, beside a plan over one source without changes, by turns;
opening a plan that was changed often; taking a state, and its size.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from measure import Report, interleave
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.shares import Shares, Stage
from tokenfeed.store.spec import WindowsSpec

SIZE, ROWS, RANKS, CALLS = 1_000_000, 32, 8, 200


def source(name: str, size: int = SIZE, data: str = "0" * 16) -> PlanSource:
    return PlanSource(name, size, data, WindowsSpec(length=2048))


def mixture(count: int, rng: np.random.Generator) -> Plan:
    names = [f"source {number}" for number in range(count)]
    weights = dict(zip(names, rng.random(count).tolist(), strict=True))
    return Plan([source(name) for name in names], Shares([Stage(weights)], names), seed=1)


def change(plan: Plan, count: int, rng: np.random.Generator) -> Plan:
    """The plan with new weights for all sources, so often, every 1,000 samples."""
    names = [each.name for each in plan.sources]
    weights = [dict(zip(names, rng.random(len(names)).tolist(), strict=True)) for _ in range(count)]
    amendments = [{"at": 1000 * number, "stages": [[each, None]]} for number, each in enumerate(weights, 1)]
    return Plan.from_json({**plan.to_json(), "amendments": amendments})


def grow(count: int) -> Plan:
    """A plan whose only source grew so often within its first epoch."""
    plan = Plan([source("data")], seed=1)
    rows = [source("data", 1000, f"{number:016}") for number in range(count)]
    amendments = [{"at": 1000 * number, "grown": [each.to_json()]} for number, each in enumerate(rows, 1)]
    return Plan.from_json({**plan.to_json(), "amendments": amendments})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, no bars enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    options = parser.parse_args()
    rng, report = np.random.default_rng(0), Report("plans")
    plain = Plan([source("data")], seed=1)
    many = mixture(100, rng)
    plans = {
        "100 sources": (many, 20.0),
        "one growth": (grow(1), 10.0),
        "ten growths": (grow(10), 100.0),
        "three sources, 100 changes": (change(mixture(3, rng), 100, rng), 20.0),
    }
    samples = np.arange(500_000, 500_000 + ROWS * RANKS, RANKS)

    def look_up(plan: Plan) -> Callable[[int], float]:
        def measure(_: int) -> float:
            began = time.thread_time()
            for _ in range(CALLS):
                plan.locate(samples)
            return (time.thread_time() - began) / CALLS * 1e6

        return measure

    sides = {"plain": look_up(plain), **{name: look_up(plan) for name, (plan, _) in plans.items()}}
    times = {name: each.values for name, each in interleave(sides, repetitions=3 if options.quick else 30).items()}
    report.limit("32 rows of a plain plan", times["plain"], "µs", bar=10.0)
    for name, (_, bar) in plans.items():
        more = [own - base for own, base in zip(times[name], times["plain"], strict=True)]
        report.limit(f"32 rows more than plain: {name}", more, "µs", bar=bar)
    value = change(many, 1000, rng).to_json()
    opened = []
    for _ in range(3 if options.quick else 7):
        began = time.thread_time()
        Plan.from_json(value).locate(samples)
        opened.append(time.thread_time() - began)
    report.limit("1,000 changes of 100 sources, opened and first looked at", opened, "s", bar=0.5)
    report.limit("bytes of a state without changes", [len(json.dumps(many.state(10**12)))], "", bar=300)
    report.show()
    if options.json is not None:
        report.write_json(options.json)
    return 1 if report.missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
