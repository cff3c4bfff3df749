"""Measures the streaming road: `python bench/stream.py [--quick] [--text FOLDER] [--threads 1,2,16] [--json PATH]`.

`--text` is a folder of Parquet files with a column `text`; unless given, Python sources of this machine are taken.
`--quick` takes little text and few repetitions, and enforces nothing. Exit status 1 if a bar is missed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tokenfeed
from measure import Report, interleave
from text import find_text, find_tokenizer, plain_loop
from tokenfeed.text.sources.files import TextFiles

ROWS = 32
LENGTH = 2048
ENGINES = ("tokenfeed", "tiktoken")


def throughput(report: Report, folder: Path, repetitions: int, threads: int) -> None:
    """Tokens a second over all of the text: the feed, the tokenizer alone, and nanochat's loop written plainly."""
    for engine in ENGINES:
        tokenizer = find_tokenizer(folder, engine)
        texts = [
            [text for text in group if text is not None]
            for group in TextFiles.find(folder, split="train").iter_row_groups()
        ]
        chunks = [group[first : first + 128] for group in texts for first in range(0, len(group), 128)]
        num_tokens = sum(len(tokenizer.encode_batch(chunk)[0]) for chunk in chunks)

        def encode(_: int, tokenizer=tokenizer, chunks=chunks, num_tokens=num_tokens) -> float:
            began = time.perf_counter()
            for chunk in chunks:
                tokenizer.encode_batch(chunk, threads=threads, prepend=tokenizer.bos_id)
            return num_tokens / (time.perf_counter() - began) / 1e6

        steps = max(10, num_tokens // (ROWS * LENGTH))

        def deliver(_: int, batches: Iterator[Any], steps=steps) -> float:
            began = time.perf_counter()
            for _ in range(steps):
                next(batches)
            return steps * ROWS * LENGTH / (time.perf_counter() - began) / 1e6

        options = {"batch_size": ROWS, "length": LENGTH, "threads": threads, "rank": 0, "world_size": 1}
        feeds = {"feed": tokenfeed.stream(folder, tokenizer, **options)}
        if engine == ENGINES[0]:
            feeds["crop"] = tokenfeed.stream(folder, tokenizer, overflow="crop", **options)
        contenders: dict[str, Callable[[int], float]] = {"encode": encode}
        contenders |= {name: partial(deliver, batches=feed) for name, feed in feeds.items()}
        if engine == ENGINES[0]:
            loop = plain_loop(folder, tokenizer, ROWS, LENGTH, threads=threads)
            contenders["plain"] = partial(deliver, batches=loop)
        for contender in contenders.values():
            contender(0)
        result = interleave(contenders, repetitions=repetitions, unit="M tokens/s")
        report.compare(f"feed, {engine}, threads {threads}: encoding alone", result["feed"], result["encode"], bar=0.9)
        if "plain" in result:
            report.compare(
                f"feed, {engine}, threads {threads}: nanochat's loop", result["feed"], result["plain"], bar=25
            )
            report.compare(f"nanochat's own batches, threads {threads}: its loop", result["crop"], result["plain"])
        for feed in feeds.values():
            feed.close()


def waste(report: Report, folder: Path, batches: int) -> None:
    """What becomes of the tokens at T = 2,048."""
    tokenizer = find_tokenizer(folder)
    for overflow in ("split", "crop"):
        feed = tokenfeed.stream(
            folder, tokenizer, batch_size=ROWS, length=LENGTH, overflow=overflow, rank=0, world_size=1
        )
        for _ in range(batches):
            next(feed)
        counts = feed.counts()
        positions = counts.rows * (LENGTH + 1)
        is_ours = overflow == "split"
        report.limit(
            f"tokens lost, {overflow}", [100 * counts.lost / (positions + counts.lost)], "%", bar=0 if is_ours else None
        )
        report.limit(f"repeated BOS, {overflow}", [100 * counts.repeated / positions], "%", bar=1 if is_ours else None)
        feed.close()


_SETTING = """
import json, psutil, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
sys.path.insert(0, {bench!r})
import tokenfeed
from text import find_tokenizer
from tokenfeed.text.sources.files import TextFiles
folder, batches = Path({folder!r}), {batches}
tokenizer = find_tokenizer(folder, {engine!r})
tokenizer.encode("warm", prepend=tokenizer.bos_id)
resident = lambda: psutil.Process().memory_info().rss / 1e6
before, seen = resident(), []
"""
_FEED = """
began = time.perf_counter()
feed = tokenfeed.stream(folder, tokenizer, batch_size={rows}, length={length}, buffer_size=1000, rank=0, world_size=1)
for number in range(batches):
    inputs, targets = next(feed)
    if number == 0:
        first = time.perf_counter() - began
    if number + 1 in (100, batches):
        seen.append(resident() - before)
print(json.dumps([first, *seen]))
"""
_ENGINE = """
# As the feed calls the engine: from two threads, 128 documents at a time; nothing is kept.
pool, done, marks = ThreadPoolExecutor(2), 0, [100, batches]
while marks:
    for group in TextFiles.find(folder, split="train").iter_row_groups():
        chunks = [[text for text in group[at:at + 128] if text is not None] for at in range(0, len(group), 128)]
        done += sum(pool.map(lambda chunk: len(tokenizer.encode_batch(chunk, threads=1)[0]), chunks))
        while marks and done >= marks[0] * {rows} * {length}:
            marks.pop(0)
            seen.append(resident() - before)
print(json.dumps(seen))
"""


def in_a_process(what: str, folder: Path, engine: str, batches: int) -> list[float]:
    bench = str(Path(__file__).parent)
    code = (_SETTING + what).format(
        bench=bench, folder=str(folder), engine=engine, rows=ROWS, length=LENGTH, batches=batches
    )
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def memory(report: Report, folder: Path, batches: int) -> None:
    """Resident memory, the engine's own and the feed's, and the first batch; each in a fresh process."""
    for engine in ENGINES:
        runs = [in_a_process(_FEED, folder, engine, batches) for _ in range(3)]
        report.limit(f"first batch, {engine}", [run[0] for run in runs], "s", bar=0.5 if engine == ENGINES[0] else None)
        _, early, late = sorted(runs, key=lambda run: run[2])[1]
        engine_early, engine_late = in_a_process(_ENGINE, folder, engine, batches)
        report.limit(f"RSS over the first 100 batches, {engine}", [early], "MB")
        report.limit(f"RSS over {batches} batches, {engine}", [late], "MB")
        report.limit(f"the same, of the engine alone, {engine}", [engine_late], "MB")
        report.limit(f"beyond the engine's own, {engine}", [late - engine_late], "MB", bar=64)
        grown = (late - early) - (engine_late - engine_early)
        report.limit(f"growth of that after the first 100, {engine}", [grown], "MB", bar=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = Report("the streaming road")
    folder = find_text(arguments.text, 4 if arguments.quick else 50)
    for threads in map(int, arguments.threads.split(",")):
        throughput(report, folder, 3 if arguments.quick else 7, threads)
    waste(report, folder, 20 if arguments.quick else 400)
    memory(report, folder, 120 if arguments.quick else 1000)
    report.show()
    if arguments.json:
        report.write_json(arguments.json)
    if report.missed and not arguments.quick:
        sys.exit(f"missed: {', '.join(report.missed)}")


if __name__ == "__main__":
    main()
