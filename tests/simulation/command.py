"""Plays many histories and prints what came of it: `python tests/simulation/run.py --histories 5000 --seed 0`."""

import argparse
import os
import platform
import sys
import time

import tokenfeed
from simulation.figures import Figures, Violation
from simulation.history import History, draw_history
from simulation.player import play
from simulation.shrinking import shrink
from simulation.worlds import empty_vast_stores

__all__ = ["find_violation", "main", "play_many"]


def find_violation(history: History) -> str:
    """What is wrong with a history; nothing where all is as it must be."""
    try:
        play(history)
    except Violation as violation:
        return str(violation)
    return ""


def play_many(seed: int, numbers: range, seconds: float = float("inf")) -> tuple[Figures, list[tuple[int, History]]]:
    """Figures, and (number, history) of those that fail."""
    figures, failed = Figures(), []
    began = time.monotonic()
    for number in numbers:
        if time.monotonic() - began > seconds:
            break
        history = draw_history(seed, number)
        try:
            figures.add(play(history))
        except Violation as violation:
            figures.histories += 1
            failed.append((number, history))
            print(f"history {number} of seed {seed}: {violation}", file=sys.stderr, flush=True)
        if number % 100 == 99:
            empty_vast_stores()
    return figures, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()
    began = time.monotonic()
    numbers = range(options.first, options.first + options.histories)
    figures, failed = play_many(options.seed, numbers, options.seconds)
    rows = {name.replace("_", " "): f"{value:,}" for name, value in vars(figures).items()}
    rows |= {"violations": len(failed), "seed": options.seed, "seconds": round(time.monotonic() - began)}
    rows["on"] = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {tokenfeed.__version__}"
    )
    for name, value in rows.items():
        print(f"{name:20} {value}")
    for number, history in failed[:3]:
        told = find_violation(history)[:12]
        smallest = shrink(history, lambda each, told=told: find_violation(each)[:12] == told)
        print(f"\n# history {number}, as small as it gets: {find_violation(smallest)}\n{smallest.to_code()}")
    return 1 if failed else 0
