"""Measures the page and the stats file: `python bench/page.py [--quick] [--json PATH]`; 1 if a bar is missed.

* pages of a run over 10,000 shards, 10⁹ tokens and 10⁶ documents, in the Chromium that is installed, until drawn: the
  data, a step, a document
* 64 ranks published from 64 processes: until the page is drawn, and the processor time of server and ranks
* a snapshot of a loader's counters, appended to its stats file: the processor time it takes from the loop
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, sync_playwright

import tokenfeed
from measure import Report
from tokenfeed import observe
from tokenfeed.format.manifest import Manifest
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.ui import Server, open_subject

NUM_SHARDS = 10_000
SHARD_DOCUMENTS = 100
DOCUMENT_TOKENS = 1000
NUM_RANKS = 64
MOST_SECONDS = 1.0  # until a page is drawn
MOST_SNAPSHOT = 500  # µs of processor time, once a second: 0.05% of a core


def make_store(folder: Path) -> Path:
    """A store whose shards are all the same folder, under different names, and a run over it."""
    path = folder / "many"
    tokenizer = Tokenizer.train(["some words and others, again and again " * 40], vocab_size=300)
    tokenizer.save(folder / "tokenizer")
    words = tokenizer.encode("some words and others, again and again " * 400)[:DOCUMENT_TOKENS]
    spans: dict[str, Any] = {"documents": "json"}
    with tokenfeed.Writer(
        path, columns={"tokens": "uint16"}, spans=spans, tokenizer=tokenizer.digest, sync=False
    ) as writer:
        for number in range(SHARD_DOCUMENTS):
            writer.append({"tokens": words}, documents={"url": f"https://example.org/{number}", "score": number / 7})
    manifest = Manifest.from_json((path / "manifest.json").read_bytes(), "manifest.json")
    (entry,) = manifest.shards
    names = [f"copy-{number:05}" for number in range(NUM_SHARDS)]
    for name in names:
        (path / name).symlink_to(entry.name)
    shards = tuple(replace(entry, name=name) for name in names)
    (path / "manifest.json").write_text(replace(manifest, shards=shards).to_json())
    run = folder / "run.jsonl"
    with tokenfeed.Loader(tokenfeed.open(path).windows(1024), 32, rank=0, world_size=8, run=run, prefetch=0) as loader:
        for _ in range(3):
            next(loader)
    return run


@contextmanager
def served(run: Path) -> Iterator[Server]:
    server = Server(open_subject(str(run), tokenizer=str(run.with_name("tokenizer"))))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)


@contextmanager
def chromium() -> Iterator[Browser | None]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("no page was loaded: chromium is not installed", file=sys.stderr)
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


PAGES = {
    "first paint of the data": ("#/data?page=500000", "article:has-text('Documents') tbody tr >> nth=0"),
    "a step": ("#/trace?step=2", "article:has-text('was run') tbody tr >> nth=0"),
    "a document, and when it is seen": ("#/trace?step=2&document=654321", "#panel .seen li >> nth=0"),
}


def pages(report: Report, folder: Path, repetitions: int) -> None:
    with chromium() as browser, served(make_store(folder)) as server:
        if browser is None:
            return
        page = browser.new_page()
        page.goto(server.address)
        page.wait_for_selector("html[data-ready]")
        for name, (address, drawn) in PAGES.items():
            times = []
            for _ in range(1 + repetitions):
                page.evaluate("address => history.replaceState(null, '', address)", address)
                began = time.perf_counter()
                page.reload()
                page.wait_for_selector(drawn)
                times.append(time.perf_counter() - began)
            report.limit(f"page of {NUM_SHARDS:,} shards, 10⁹ tokens: {name}", times[1:], "s", bar=MOST_SECONDS)


def ranks(report: Report, folder: Path, repetitions: int) -> None:
    """Processes are forked, so that they start at once; none but the server's has a page to answer."""
    with tokenfeed.Writer(folder / "tiny", columns={"tokens": "uint16"}, sync=False) as writer:
        writer.append({"tokens": np.arange(100_000) % 1000})
    fork = multiprocessing.get_context("fork")
    stats, results, ends = folder / "ranks.stats.jsonl", fork.Queue(), fork.Event()
    processes = [
        fork.Process(target=_be_rank, args=(folder / "tiny", stats, rank, results, ends)) for rank in range(NUM_RANKS)
    ]
    address = fork.Queue()
    server = fork.Process(target=_be_server, args=(stats, address, results, ends))
    for process in (*processes, server):
        process.start()
    times = []
    with chromium() as browser:
        if browser is not None:
            page = browser.new_page()
            page.goto(address.get())
            page.wait_for_selector(f"text={NUM_RANKS} of {NUM_RANKS} ranks run", timeout=120_000)
            for _ in range(repetitions):
                began = time.perf_counter()
                page.reload()
                page.wait_for_selector(".strips li >> nth=15")
                times.append(time.perf_counter() - began)
            page.wait_for_timeout(5000)
    ends.set()
    told = [results.get(timeout=60) for _ in (*processes, server)]
    for process in (*processes, server):
        process.join()
    if times:
        report.limit(f"page of {NUM_RANKS} ranks, until drawn", times, "s", bar=MOST_SECONDS)
    report.limit(
        f"cores that serve the page of {NUM_RANKS} ranks", [share for kind, share in told if kind == "server"], ""
    )
    report.limit("cores of a rank that publishes and waits", [share for kind, share in told if kind == "rank"], "")


def _be_rank(store: Path, stats: Path, rank: int, results: Any, ends: Any) -> None:
    view = tokenfeed.open(store).windows(64)
    with (
        tokenfeed.Loader(view, 4, rank=rank, world_size=NUM_RANKS, prefetch=1) as loader,
        observe.publish(loader, stats),
    ):
        next(loader)
        began, used = time.perf_counter(), time.process_time()
        while not ends.wait(0.2):
            next(loader)
        results.put(("rank", (time.process_time() - used) / (time.perf_counter() - began)))


def _be_server(stats: Path, address: Any, results: Any, ends: Any) -> None:
    server = Server(open_subject(str(stats)))
    threading.Thread(target=server.run, daemon=True).start()
    address.put(server.address)
    began, used = time.perf_counter(), time.process_time()
    ends.wait()
    results.put(("server", (time.process_time() - used) / (time.perf_counter() - began)))


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, no bars enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    arguments = parser.parse_args()
    report = Report("page, stats file")
    with tempfile.TemporaryDirectory() as folder:
        for part in (ranks, pages, snapshots):
            part(report, Path(folder), 3 if arguments.quick else 15)
    report.show()
    if arguments.json is not None:
        report.write_json(arguments.json)
    return 1 if report.missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
