"""Measures the page, the stats file and mixtures: `python bench/page.py [--quick] [--json PATH]`; 1 if a bar is missed.

* a page of a store of 10,000 shards, reloaded in the Chromium that is installed, until everything is drawn
* a snapshot of a loader's counters, appended to its stats file: the processor time it takes from the loop
* a table of turns of 1,000 sources over the longest period, which a mixture makes when it starts
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import tokenfeed
from measure import Report
from tokenfeed import observe
from tokenfeed.format.manifest import Manifest
from tokenfeed.kernels.mixture import build_table
from tokenfeed.ui import Server, open_subject

NUM_SHARDS = 10_000
MOST_SECONDS = 1.0  # until a page is drawn
MOST_SNAPSHOT = 500  # µs of processor time, once a second: 0.05% of a core
MOST_TABLE = 1.0


def make_store(path: Path) -> Path:
    """A store whose shards are all the same folder, under different names."""
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, sync=False) as writer:
        for number in range(100):
            writer.append({"tokens": np.arange(7 * number)}, documents=number)
    manifest = Manifest.from_json((path / "manifest.json").read_bytes(), "manifest.json")
    (entry,) = manifest.shards
    names = [f"copy-{number:05}" for number in range(NUM_SHARDS)]
    for name in names:
        (path / name).symlink_to(entry.name)
    shards = tuple(replace(entry, name=name) for name in names)
    (path / "manifest.json").write_text(replace(manifest, shards=shards).to_json())
    return path


@contextmanager
def served(store: Path) -> Iterator[Server]:
    server = Server(open_subject(str(store)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)


def pages(report: Report, folder: Path, repetitions: int) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("no page was loaded: chromium is not installed", file=sys.stderr)
        return
    times = []
    with sync_playwright() as playwright, served(make_store(folder / "many")) as server:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(server.address)
        for _ in range(repetitions):
            began = time.perf_counter()
            page.reload()
            page.wait_for_selector("article:has-text('Shards') tbody tr")
            page.wait_for_selector(".bar")
            times.append(time.perf_counter() - began)
        browser.close()
    report.limit(f"page of {NUM_SHARDS:,} shards, until drawn", times, "s", bar=MOST_SECONDS)


def snapshots(report: Report, folder: Path, repetitions: int) -> None:
    with tokenfeed.Writer(folder / "store", columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.arange(100_000) % 1000})
    times = []
    with tokenfeed.Loader(tokenfeed.open(folder / "store").windows(64), 4, rank=0, world_size=1) as loader:
        next(loader)
        with observe.publish(loader, folder / "stats.jsonl", every=3600) as publisher:
            for _ in range(10 * repetitions):
                began = time.thread_time()
                publisher._write(ended=False)
                times.append(1e6 * (time.thread_time() - began))
    report.limit("a snapshot in the stats file", times, "µs", bar=MOST_SNAPSHOT)


def tables(report: Report, folder: Path, repetitions: int) -> None:
    rng = np.random.default_rng(0)
    counts = 1 + rng.multinomial((1 << 20) - 1000, rng.dirichlet(np.full(1000, 0.3)))
    table = np.empty(1 << 20, np.int32)
    build_table(counts, counts, np.zeros_like(counts), table)  # compiles it
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        build_table(counts, counts, np.zeros_like(counts), table)
        times.append(time.perf_counter() - began)
    report.limit("turns of 1,000 sources, 2**20 of them", times, "s", bar=MOST_TABLE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, no bars enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    arguments = parser.parse_args()
    report = Report("page, stats file, start of a mixture")
    with tempfile.TemporaryDirectory() as folder:
        for part in (pages, snapshots, tables):
            part(report, Path(folder), 3 if arguments.quick else 15)
    report.show()
    if arguments.json is not None:
        report.write_json(arguments.json)
    return 1 if report.missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
