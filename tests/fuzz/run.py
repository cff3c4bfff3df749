"""Tries damaged inputs of every kind and prints what came of them: `python tests/fuzz/run.py --seconds 600`."""

import argparse
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tokenfeed
from fuzz.harness import Figures, fuzz
from fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--inputs", type=int, help="so many of each target instead")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--only", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="a folder for inputs that are findings")
    options = parser.parse_args()
    seconds = 1e9 if options.inputs else options.seconds / len(options.only)
    began, found = time.monotonic(), {}
    for name in options.only:
        told = fuzz([name], first=options.first, inputs=options.inputs, seconds=seconds, keep=options.keep)
        found |= told
        print_row(name, told[name])
    total = Figures()
    for figures in found.values():
        total.add({**vars(figures), "errors": {}})
    print(
        f"\n{total.inputs:,} inputs in {time.monotonic() - began:,.0f} s: {total.read:,} read, "
        f"{total.inputs - total.read - len(total.findings):,} refused, {len(total.findings)} findings; slowest "
        f"{total.slowest[0]:.2f} s, largest process {total.peak_bytes / 1e6:,.0f} MB"
    )
    print(
        f"on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {tokenfeed.__version__}"
    )
    for finding in total.findings:
        print(f"\n{finding}")
    return 1 if total.findings else 0


def print_row(name: str, figures: Figures) -> None:
    errors = ", ".join(f"{kind} {count:,}" for kind, count in figures.errors.most_common())
    print(
        f"{name:16} {figures.inputs:9,} inputs {figures.read:9,} read  slowest {figures.slowest[0]:5.2f} s "
        f"(input {figures.slowest[1]})  "
        f"peak {figures.peak_bytes / 1e6:5,.0f} MB  {len(figures.findings)} findings  {errors}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
