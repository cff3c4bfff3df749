"""Measures balanced steps: `python bench/balance.py [--quick] [--json PATH]`. Exit status 1 if a bar is missed.

Lengths of documents are log-normal, with a median of 1,200 tokens, a mean of about 3,100, and at most 128 k; 64 ranks.
The largest load of a rank is compared with the mean of all, step by step: for samples dealt in turn, and balanced.
`--quick` takes few steps, and enforces nothing.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tokenfeed
from measure import Report
from tokenfeed.plan.dealing import Cost, Step, StepRule, TokenCounts

WORLD_SIZE, LONGEST = 64, 131_072
COSTS = {"L": Cost(1), "L + L²/(6·4096)": Cost(1, 1 / (6 * 4096))}
Ints = npt.NDArray[np.int64]


def draw(count: int, seed: int) -> Ints:
    lengths = np.random.default_rng(seed).lognormal(np.log(1200), 1.4, count)
    return np.clip(lengths, 1, LONGEST).astype(np.int64)


def spread(cost: Cost, tokens: Ints, bins: Ints) -> float:
    """Largest load over the mean."""
    loads = np.bincount(bins, cost(tokens), minlength=WORLD_SIZE)
    return float(loads.max() / loads.mean())


def assignments(report: Report, steps: int) -> None:
    """Largest/mean, in turn and balanced, of steps of some size."""
    for name, cost in COSTS.items():
        for count in (1024, 4096, 16_384):
            by_tokens = StepRule.of(None, LONGEST, balance=cost)
            by_rows = StepRule.of(count // WORLD_SIZE, None, balance=cost)
            in_turn, tokens_in_turn, rows, balanced, even, least = [], [], [], [], [], []
            for seed in range(steps):
                tokens = draw(count, seed)
                step = Step(0, tokens)
                in_turn.append(spread(cost, tokens, np.arange(count) % WORLD_SIZE))
                tokens_in_turn.append(spread(cost, tokens, StepRule.of(None, LONGEST).deal(step, WORLD_SIZE, str)))
                rows.append(spread(cost, tokens, by_rows.deal(step, WORLD_SIZE, str)))
                balanced.append(spread(cost, tokens, by_tokens.deal(step, WORLD_SIZE, str)))
                costs = cost(tokens)
                least.append(max(1.0, float(costs.max() * WORLD_SIZE / costs.sum())))
                even.append(least[-1] == 1)
            what = f"cost {name}, {count:,} samples"
            report.limit(f"{what}: largest/mean, dealt in turn", in_turn, "×")
            report.limit(f"{what}: tokens=, each to the rank with the fewest so far", tokens_in_turn, "×")
            report.limit(f"{what}: batch_size=, balanced", rows, "×")
            report.limit(f"{what}: tokens=, balanced", balanced, "×")
            report.limit(f"{what}: share of steps in which no sample exceeds the mean", [np.mean(even)], "")
            worst = [each for each, is_even in zip(balanced, even, strict=True) if is_even]
            over = [each / lower for each, lower in zip(balanced, least, strict=True)]
            report.limit(f"{what}: worst of all, balanced, over what one sample makes it", [max(over)], "×", bar=1.02)
            if worst:
                report.limit(f"{what}: worst of these, balanced", [max(worst)], "×", bar=1.02)


def caps(report: Report, steps: int) -> None:
    """How far the largest rank is above its budget, where the cap of all ranks together holds."""
    for name, balance in (("in turn", None), ("balanced", True)):
        rule = StepRule.of(None, LONGEST, balance=balance)
        over = []
        for seed in range(steps):
            tokens = draw(8192, seed)
            tokens = tokens[: np.searchsorted(np.cumsum(tokens), WORLD_SIZE * LONGEST, side="right")]
            loads = np.bincount(rule.deal(Step(0, tokens), WORLD_SIZE, str), tokens, minlength=WORLD_SIZE)
            over.append(loads.max() / LONGEST)
        report.limit(f"tokens=128 k, {name}: largest rank over its budget, worst step", [max(over)], "×")


def times(report: Report, repetitions: int) -> None:
    """Processor time: dealing the samples of a step, and looking up lengths."""
    for name, cost in COSTS.items():
        rule = StepRule.of(None, LONGEST, balance=cost)
        rows = StepRule.of(16, None, balance=cost)
        for told, each in (("tokens=", rule), ("batch_size=16", rows)):
            values = [
                _milliseconds(lambda each=each, n=n: each.deal(Step(0, draw(1024, n)), WORLD_SIZE, str))
                for n in range(repetitions)
            ]
            report.limit(f"dealing 1,024 samples, {told}, cost {name}", values, "ms", bar=1)
    with tempfile.TemporaryDirectory() as folder:
        with tokenfeed.Writer(
            f"{folder}/store", columns={"tokens": "uint16"}, spans={"documents": None}, sync=False
        ) as writer:
            lengths = draw(200_000, 0) // 64 + 2
            writer.append({"tokens": np.zeros(lengths.sum(), np.uint16)}, lengths=lengths)
        counts = TokenCounts(tokenfeed.Plan.of(tokenfeed.open(f"{folder}/store").documents()))
        values = [_milliseconds(lambda n=n: counts(np.arange(n * 1024, n * 1024 + 1024))) for n in range(repetitions)]
        report.limit("looking up 1,024 lengths, alone", values, "ms")
        values = [
            _milliseconds(lambda n=n: counts(np.arange(n * 16384, n * 16384 + 16384))) for n in range(repetitions)
        ]
        report.limit("looking up 16,384 lengths, as a loader does", values, "ms")


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return 1000 * (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    steps = 5 if options.quick else 100
    report = Report("balanced steps")
    assignments(report, steps)
    caps(report, steps)
    times(report, steps)
    report.show()
    if options.json:
        report.write_json(options.json)
    if report.missed and not options.quick:
        sys.exit(f"missed: {', '.join(report.missed)}")


if __name__ == "__main__":
    main()
