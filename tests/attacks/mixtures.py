"""Mixtures: weights and stages that no one means, and damaged plan files."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from fuzz.harness import Case
from fuzz.mutator import INTEGERS, mutate_json
from fuzz.store_targets import LENGTH, check, write_store

Attempt = Callable[[Case], None]
WEIGHTS: list[Any] = [
    *(0, 0.0, -0.0, 1, 0.5, 1e-308, 5e-324, 1e308, 1.7e308, math.inf, -math.inf, math.nan, -1, 1e-20, 2**63, 10**400),
    *(True, None, "1", [1], 1 / 3, 0.1, 0.7, 1e6, 123456789, np.float32(0.1), np.int64(3)),
]


def weights(folder: Path) -> Attempt:
    """Any weights of up to 60 sources in up to 5 stages: refused, or every source is within two of its share."""
    write_store(folder / "store")
    view = tokenfeed.open(folder / "store").windows(LENGTH)

    def attempt(case: Case) -> None:
        rng = case.rng
        names = [f"s{number}" for number in range(rng.choice((1, 2, 3, 9, 60)))]
        harmless = rng.random() < 0.5

        def draw() -> Any:
            return rng.uniform(0.001, 9) if harmless else rng.choice(WEIGHTS)

        case.note("names", len(names))
        if rng.random() < 0.5:
            mixture = tokenfeed.mix({name: (view, draw()) for name in names}, by=rng.choice(("samples", "tokens")))
        else:
            stages = [
                tokenfeed.Stage(
                    dict.fromkeys(names, 0.0)
                    | {name: draw() for name in rng.sample(names, rng.randint(1, len(names)))},
                    samples=rng.choice((1, 7, 1000, *(() if harmless else INTEGERS)))
                    if number
                    else rng.choice((1, 50)),
                )
                for number in range(rng.choice((1, 4)))
            ]
            last = tokenfeed.Stage({name: draw() for name in names})
            mixture = tokenfeed.mix(dict.fromkeys(names, view), stages=[*stages, last])
        plan = tokenfeed.Plan.of(mixture, seed=1)
        samples = np.unique(rng.choices((*range(200), 1000, 10**6, 10**12, 2**40, 2**61), k=60))
        samples = samples[samples < (plan.end or 2**62)]
        for trace in plan.trace(samples):
            check(0 <= trace.index < len(view), "index")
            check(trace.sample in plan.find(trace.index, source=trace.source, epochs=[trace.epoch]), "inverse")
        for prefix in (1, 10, 1000, 10**6):
            for entry in mixture.budget(prefix):
                check(abs(entry.samples - entry.target) <= 2, entry, prefix)

    return attempt


def plan_files(folder: Path) -> Attempt:
    """What `Plan.save` wrote of mixtures, damaged: numbers and names of any size."""
    write_store(folder / "store")
    view = tokenfeed.open(folder / "store").windows(LENGTH)
    mixture = tokenfeed.mix({"a": (view, 0.7), "b": (view, 0.3)})
    staged = tokenfeed.mix(
        {"a": view, "b": view, "c": view},
        stages=[
            tokenfeed.Stage({"a": 1, "b": 1, "c": 0}, samples=100),
            tokenfeed.Stage({"a": 0, "b": 1, "c": 3}, samples=50),
            tokenfeed.Stage({"a": 0.2, "b": 0, "c": 0.8}),
        ],
    )
    plans = [tokenfeed.Plan.of(each, seed=3).to_json() for each in (mixture, staged)]

    def vast(case: Case, value: Any) -> Any:
        """Sources that add up to more than 64 bits."""
        copy = json.loads(json.dumps(value))
        for source in copy["sources"]:
            source["samples"] = case.rng.choice((2**60, 2**61, 2**62 - 1, 2**62, 2**63 - 1))
        return copy

    def attempt(case: Case) -> None:
        path = folder / "plan.json"
        value = case.rng.choice(plans)
        changed = json.dumps(vast(case, value)).encode() if case.number % 5 == 0 else mutate_json(case.rng, value)
        case.write(path, changed)
        plan = tokenfeed.Plan.load(path)
        str(plan), hash(plan)
        for trace in plan.trace([0, 1, 99, 100, 149, 10**6]):
            source = next(each for each in plan.sources if each.name == trace.source)
            check(0 <= trace.index < source.num_samples, "index", trace)
            found = plan.find(trace.index, source=trace.source, epochs=[trace.epoch])
            check(trace.sample in found, "inverse", trace, found)

    return attempt
