"""Measures verified reading: `python bench/verify.py [--quick] [--json PATH]`. Exit status 1 if a bar is missed.

`--quick` takes small data and few repetitions, and enforces nothing.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tokenfeed
from data import FULL, QUICK, Scale, make_sharded
from loops import ROWS
from measure import Report, interleave
from store import LENGTH, Samples, race, reader, repeat
from tokenfeed.format.layout import SHARD_SUMS

STEP_SECONDS = (0.01, 0.05)
MOST_WAIT = 30  # µs: what `next` may take when a batch is ready
MOST_MORE = 5  # µs: less than one run differs from the next by


def throughput(report: Report, scale: Scale) -> None:
    """Random windows out of the page cache, with their blocks checked and without."""
    path = make_sharded(scale)
    for backend in ("pread", "mmap"):
        checked, plain = (tokenfeed.open(path, backend=backend, verify=verify) for verify in (True, False))
        samples = Samples(plain, chunk_batches=512)
        contenders = {"checked": reader(checked.windows(LENGTH)), "plain": reader(plain.windows(LENGTH))}
        result = race(contenders, samples, repetitions=repeat(scale, 48))
        report.compare(f"warm, {backend}, verified: not verified", result["checked"], result["plain"])
        tokens = [rate * ROWS * LENGTH / 1e6 for rate in result["checked"].values]
        report.limit(f"warm, {backend}, verified: million tokens a second", tokens, "")


def waiting(report: Report, scale: Scale) -> None:
    """The time in `next` beside training steps that take a while, and leave the processor alone."""
    path = make_sharded(scale)

    def waits(verify: bool, seconds: float) -> Callable[[int], float]:
        def measure(repetition: int) -> float:
            loader = tokenfeed.Loader(tokenfeed.open(path, verify=verify).windows(LENGTH), ROWS, seed=repetition)
            next(loader)
            times = []
            for _ in range(round(2 / seconds)):
                time.sleep(seconds)
                began = time.perf_counter()
                next(loader)
                times.append(1e6 * (time.perf_counter() - began))
            loader.close()
            return statistics.median(times)

        return measure

    for seconds in STEP_SECONDS:
        contenders = {"verified": waits(True, seconds), "not": waits(False, seconds)}
        result = interleave(contenders, repetitions=repeat(scale, 9), unit="µs")
        what = f"wait beside a step of {1000 * seconds:g} ms"
        report.limit(f"{what}, verified", result["verified"].values, "µs", bar=MOST_WAIT)
        report.limit(f"{what}, not verified", result["not"].values, "µs")
        more = [one - other for one, other in zip(result["verified"].values, result["not"].values, strict=True)]
        report.limit(f"{what}, verified: more than not verified", more, "µs", bar=MOST_MORE)


def size(report: Report, scale: Scale) -> None:
    """What block checksums take."""
    sums = everything = 0
    for file in make_sharded(scale).glob("*/*.*"):
        sums += file.stat().st_size if file.name == SHARD_SUMS else 0
        everything += file.stat().st_size
    report.limit("block checksums, of all bytes", [100 * sums / everything], "%", bar=0.25)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, few repetitions, no bars enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    arguments = parser.parse_args()
    report = Report(f"verified reading, windows({LENGTH}), B = {ROWS}")
    for part in (throughput, waiting, size):
        part(report, QUICK if arguments.quick else FULL)
    report.show()
    if arguments.json is not None:
        report.write_json(arguments.json)
    return 1 if report.missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
