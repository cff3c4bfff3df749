"""Tries every attack and prints what came of it: `python tests/attacks/run.py`, or `make attacks`."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tokenfeed
from attacks.classes import CLASSES
from fuzz.harness import Figures, fuzz


def attack(names: list[str], share: float, keep: Path | None) -> Iterator[tuple[str, Figures]]:
    """Figures of every class, each of which is tried in a process of its own."""
    for name in names:
        count = max(1, round(CLASSES[name].num_cases * share))
        yield name, fuzz([name], inputs=count, keep=keep, module="attacks.classes")[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--share", type=float, default=1.0, help="so much of the cases of each class")
    parser.add_argument("--keep", type=Path, default=Path("build/attacks"), help="a folder for cases that are findings")
    options = parser.parse_args()
    began, total = time.monotonic(), Figures()
    print(f"| {'class of attack':18} | cases | refused | read right | slowest, s | peak, MB | findings |")
    print(f"|{'-' * 20}|---:|---:|---:|---:|---:|---:|")
    for name, figures in attack(options.only, options.share, options.keep):
        refused = figures.errors.total()
        print(
            f"| {name:18} | {figures.inputs:,} | {refused:,} | {figures.read:,} | {figures.slowest[0]:.2f} | "
            f"{figures.peak_bytes / 1e6:,.0f} | {len(figures.findings)} |",
            flush=True,
        )
        for finding in figures.findings:
            print(f"\n{finding}", flush=True)
        total.add(vars(figures))
    print(
        f"\n{total.inputs:,} cases of {len(options.only)} classes in {time.monotonic() - began:,.0f} s: "
        f"{total.errors.total():,} refused, {total.read:,} read right, {len(total.findings)} findings (wrong data, "
        "crashes, errors of other types, hangs, 1 GiB of memory, files outside)"
    )
    print(
        f"on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {tokenfeed.__version__}"
    )
    return 1 if total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
