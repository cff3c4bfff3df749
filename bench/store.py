"""Measures the store against C loops and NumPy: `python bench/store.py [--quick] [--json PATH] [PART …]`.

Exit status 1 if a bar is missed. `--quick` takes small data and few repetitions, and enforces nothing.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from data import FULL, QUICK, Scale, make_one_file, make_sharded, make_sparse
from loops import ROWS, Loops, drop_from_cache, map_file
from measure import Neighbours, Report, Series, interleave

LENGTH = 2048
WINDOW = LENGTH + 1
UINT16_BYTES = 2
BATCHES = "batches/s"
COLD_READS = 16
LEAST_GAIN = 1.5  # of C from a second thread, below which the machine cannot show what threads gain
MOST_BUSY = 0.1  # share of the processors that others may take beside two threads


class Samples:
    """Random windows of a store in chunks of batches, and where each lies on disk. Every contender reads all of them.

    In one repetition contenders take different chunks: this machine's last cache level holds 260 MB, and who comes
    second would find there what the first has read.
    """

    def __init__(self, store: tokenfeed.Store, *, chunk_batches: int) -> None:
        parts = [shard.column_part("tokens") for shard in store.shards]
        self.paths = [part.path for part in parts]
        starts = np.concatenate(([0], np.cumsum([shard.num_items for shard in store.shards])))
        first_items = np.arange(len(store.windows(LENGTH)), dtype=np.int64) * LENGTH
        files = np.searchsorted(starts, first_items, side="right") - 1
        whole = np.flatnonzero(first_items + WINDOW <= starts[files + 1])  # the C loops cannot cross shards
        indices = np.random.default_rng(1).permutation(whole)
        chunk_batches = min(chunk_batches, indices.size // ROWS // 2)
        indices = indices[: indices.size // (chunk_batches * ROWS) * chunk_batches * ROWS]
        self.batches = indices.reshape(-1, chunk_batches, ROWS)
        self.files = files[indices].astype(np.int32).reshape(len(self.batches), -1)
        byte_starts = np.array([part.byte_start for part in parts])
        offsets = byte_starts[files[indices]] + (first_items[indices] - starts[files[indices]]) * UINT16_BYTES
        self.offsets = offsets.reshape(len(self.batches), -1)

    def chunk(self, repetition: int, contender: int, contenders: int) -> int:
        return (repetition + contender * len(self.batches) // contenders) % len(self.batches)


Read = Callable[[Samples, int], float]
"""Reads a chunk of samples and returns batches per second."""


def reader(view: Any, *, threads: int = 1) -> Read:
    """Our side: batches read into memory that stays, by some Python threads."""
    buffers = [np.zeros(ROWS * view.sample_bytes, np.uint8) for _ in range(threads)]

    def read(samples: Samples, chunk: int) -> float:
        batches = list(samples.batches[chunk])
        times: list[tuple[float, float]] = []
        barrier = threading.Barrier(threads)

        def work(thread: int) -> None:
            share, buffer = batches[thread::threads], buffers[thread]
            barrier.wait()
            begin = time.perf_counter()
            for indices in share:
                view.read(indices, allocate=lambda _: buffer)
            times.append((begin, time.perf_counter()))

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(times) == threads, "a reading thread failed"
        return len(batches) / (max(end for _, end in times) - min(begin for begin, _ in times))

    return read


def loop(run: Callable[..., float], *, threads: int = 1) -> Read:
    """The C side."""
    return lambda samples, chunk: run(samples.files[chunk], samples.offsets[chunk], threads=threads) / ROWS


def race(contenders: dict[str, Read], samples: Samples, *, repetitions: int) -> dict[str, Series]:
    """Contenders by turns over all samples, once everything is compiled, opened, cached and mapped."""
    for read in contenders.values():
        for chunk in range(len(samples.batches)):
            read(samples, chunk)

    def slice_of(number: int, read: Read) -> Callable[[int], float]:
        return lambda repetition: read(samples, samples.chunk(repetition, number, len(contenders)))

    slices = {name: slice_of(number, read) for number, (name, read) in enumerate(contenders.items())}
    return interleave(slices, repetitions=repetitions, unit=BATCHES)


def check_loops(view: Any, samples: Samples, loops: Loops) -> None:
    """Both sides must read the same bytes."""
    for batch, indices in enumerate(samples.batches[0]):
        rows = slice(batch * ROWS, (batch + 1) * ROWS)
        out = view.read(indices).tokens
        for run in (loops.pread, loops.mapped):
            run(samples.files[0][rows], samples.offsets[0][rows])
            assert np.array_equal(out, loops.rows[:ROWS].view(np.uint16)), f"C and the store disagree about {indices}"


def repeat(scale: Scale, times: int) -> int:
    return max(3, round(times * scale.repetitions))


def warm(report: Report, scale: Scale) -> None:
    """Positional reads out of the page cache, by one thread and by two."""
    store = tokenfeed.open(make_sharded(scale))
    samples = Samples(store, chunk_batches=512)
    loops = Loops(samples.paths, WINDOW * UINT16_BYTES)
    view = store.windows(LENGTH)
    check_loops(view, samples, loops)
    result = race({"ours": reader(view), "C": loop(loops.pread)}, samples, repetitions=repeat(scale, 64))
    report.compare("warm, pread: C pread loop", result["ours"], result["C"], bar=0.85)
    _race_threads(report, scale, "warm, pread", store, loops.pread, bar=0.9)
    loops.close()


def mapped(report: Report, scale: Scale) -> None:
    """The mapped backend out of the page cache, by one thread and by two."""
    store = tokenfeed.open(make_sharded(scale), backend="mmap")
    samples = Samples(store, chunk_batches=1024)
    loops = Loops(samples.paths, WINDOW * UINT16_BYTES)
    view = store.windows(LENGTH)
    check_loops(view, samples, loops)
    result = race({"ours": reader(view), "C": loop(loops.mapped)}, samples, repetitions=repeat(scale, 64))
    report.compare("warm, mmap: C mmap + memcpy loop", result["ours"], result["C"], bar=0.7)
    _race_threads(report, scale, "warm, mmap", store, loops.mapped)
    loops.close()
    _race_numpy(report, scale)


def _race_threads(
    report: Report,
    scale: Scale,
    what: str,
    store: tokenfeed.Store,
    run: Callable[..., float],
    *,
    bar: float | None = None,
) -> None:
    """By one thread and by two, in slices long enough (0.15 s) that starting the threads is lost in them."""
    view, samples = store.windows(LENGTH), Samples(store, chunk_batches=4096)
    contenders = {
        "ours 1": reader(view),
        "C 1": loop(run),
        "ours 2": reader(view, threads=2),
        "C 2": loop(run, threads=2),
    }
    result = race(contenders, samples, repetitions=repeat(scale, 24))
    ours, theirs = (result[f"{name} 2"].over(result[f"{name} 1"], "× one thread") for name in ("ours", "C"))
    void = (
        "" if theirs.median >= LEAST_GAIN else f"C itself gains only {theirs.median:.2f}: no second processor was free"
    )
    report.compare(f"{what}: gain from a second thread, C's own", ours, theirs, bar=bar, void=void)


def _race_numpy(report: Report, scale: Scale) -> None:
    """NumPy has one memmap and knows no shards, so both sides read a store of one file."""
    store = tokenfeed.open(make_one_file(scale), backend="mmap")
    samples = Samples(store, chunk_batches=1024)
    header = store.shards[0].column_part("tokens").byte_start
    tokens = map_file(samples.paths[0])[header:].view(np.uint16)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, WINDOW)[::LENGTH]

    def index(samples: Samples, chunk: int) -> float:
        batches = list(samples.batches[chunk])
        begin = time.perf_counter()
        for indices in batches:
            windows[indices]
        return len(batches) / (time.perf_counter() - begin)

    result = race({"ours": reader(store.windows(LENGTH)), "NumPy": index}, samples, repetitions=repeat(scale, 64))
    report.compare("warm, mmap, one file: NumPy indexing of a memmap", result["ours"], result["NumPy"], bar=1)


def cold(report: Report, scale: Scale) -> None:
    """Positional reads from the disk, 32 of them under way. Each slice reads what no other has just read."""
    store = tokenfeed.open(make_sharded(scale))
    samples = Samples(store, chunk_batches=128)
    loops = Loops(samples.paths, WINDOW * UINT16_BYTES)
    contenders = {"ours": reader(store.windows(LENGTH)), "C": loop(loops.pread, threads=COLD_READS)}
    cached: list[float] = []

    def after_drop(number: int, read: Read) -> Callable[[int], float]:
        def measure(repetition: int) -> float:
            cached.append(drop_from_cache(samples.paths))
            return read(samples, samples.chunk(repetition, number, len(contenders)))

        return measure

    slices = {name: after_drop(number, read) for number, (name, read) in enumerate(contenders.items())}
    interleave(slices, repetitions=2)  # opens the files
    result = interleave(slices, repetitions=repeat(scale, 32), unit=BATCHES)
    report.compare("cold, pread, 32 in flight: C pread loop, 16 threads", result["ours"], result["C"], bar=0.8)
    report.limit("pages still cached when a cold slice began", [100 * max(cached)], "%", bar=1)
    loops.close()


def spans(report: Report, scale: Scale) -> None:
    """Documents and their payload bytes beside the tokens."""
    store = tokenfeed.open(make_sharded(scale))
    samples = Samples(store, chunk_batches=512)
    contenders = {"with": reader(store.windows(LENGTH, spans=["documents"])), "without": reader(store.windows(LENGTH))}
    result = race(contenders, samples, repetitions=repeat(scale, 48))
    report.compare("warm, pread, documents with payloads: tokens alone", result["with"], result["without"], bar=0.35)
    index = tokens = 0
    for shard in store.shards:
        tokens += shard.num_items * UINT16_BYTES
        index += sum(part.file_bytes for part in shard.span_parts("documents")[:3])
    report.limit("span index, of token bytes", [100 * index / tokens], "%", bar=1.5)


def spinning(report: Report, scale: Scale) -> None:
    """A thread of pure Python, with and without one that reads all the time."""
    view = tokenfeed.open(make_sharded(scale)).windows(LENGTH)
    batches = np.random.default_rng(2).integers(0, len(view), (1024, ROWS))
    buffer = np.zeros(ROWS * view.sample_bytes, np.uint8)

    def read_on(stop: threading.Event) -> None:
        while True:
            for indices in batches:
                if stop.is_set():
                    return
                view.read(indices, allocate=lambda _: buffer)

    def spin(_: int) -> float:
        turns, begin = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begin) < 0.25:
            for _ in range(1000):
                turns += 1
        return turns / seconds

    def spin_beside(repetition: int) -> float:
        stop = threading.Event()
        thread = threading.Thread(target=read_on, args=(stop,))
        thread.start()
        try:
            return spin(repetition)
        finally:
            stop.set()
            thread.join()

    spin_beside(0)
    neighbours = Neighbours()
    result = interleave({"beside": spin_beside, "alone": spin}, repetitions=repeat(scale, 32), unit="turns/s")
    busy = neighbours.share()
    void = "" if busy <= MOST_BUSY else f"other processes took {busy:.0%} of the processors"
    what = "spinning Python thread beside a reader: alone"
    report.compare(what, result["beside"], result["alone"], bar=0.9, void=void)


def writing(report: Report, scale: Scale) -> None:
    """The same bytes appended by a Writer, checksums and all, and by `ndarray.tofile`; neither calls fsync."""
    chunk_bytes = 1 << 24
    rng = np.random.default_rng(3)
    chunks = [rng.integers(0, 50_000, chunk_bytes // UINT16_BYTES, np.uint16) for _ in range(8)]
    chunks = [chunks[i % len(chunks)] for i in range(scale.write_bytes // chunk_bytes)]
    folder = make_sharded(scale).parent / "written"

    def timed(write: Callable[[Path], None]) -> Callable[[int], float]:
        def measure(_: int) -> float:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                begin = time.perf_counter()
                write(folder)
                return len(chunks) * chunk_bytes / 1e6 / (time.perf_counter() - begin)
            finally:
                shutil.rmtree(folder)

        return measure

    def append(path: Path) -> None:
        with tokenfeed.Writer(path / "store", columns={"tokens": "uint16"}, sync=False) as writer:
            for chunk in chunks:
                writer.append({"tokens": chunk})

    def tofile(path: Path) -> None:
        with (path / "tokens.bin").open("wb") as file:
            for chunk in chunks:
                chunk.tofile(file)

    contenders = {"Writer": timed(append), "tofile": timed(tofile)}
    interleave(contenders, repetitions=1)
    result = interleave(contenders, repetitions=repeat(scale, 12), unit="MB/s")
    report.compare("writing: ndarray.tofile", result["Writer"], result["tofile"], bar=0.5)


_OPENING = """
import json, os, re, sys, time
from pathlib import Path

begin = time.perf_counter()
import numpy, numba
others = time.perf_counter()
import tokenfeed
imported = time.perf_counter()

def memory(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6

Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
anonymous, resident = memory("RssAnon"), memory("VmRSS")
opening = time.perf_counter()
store = tokenfeed.open(sys.argv[1])
opened = time.perf_counter()
anonymous, peak = memory("RssAnon") - anonymous, memory("VmHWM") - resident
view = store.windows(2048)
batch = view.read(numpy.random.default_rng().integers(0, len(view), 32))
read = time.perf_counter()
assert batch.tokens.shape == (32, 2049)
print(json.dumps({
    "import": imported - others, "open": opened - opening, "anonymous": anonymous, "peak": peak, "first": read - opened,
    "num_items": store.num_items, "shards": len(store.shards),
}))
"""


def opening(report: Report, scale: Scale) -> None:
    """Fresh processes that import, open a huge store, and read a batch of it."""
    path = make_sparse(scale)

    def fresh() -> dict[str, float]:
        command = [sys.executable, "-c", _OPENING, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if done.returncode != 0:
            raise RuntimeError(f"a fresh process failed:\n{done.stderr}")
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    fresh()
    runs = [fresh() for _ in range(repeat(scale, 9))]
    series = {name: [run[name] for run in runs] for name in runs[0]}
    what = f"opening {runs[0]['shards']:,} shards, {runs[0]['num_items']:.0e} items"
    report.limit(f"{what}: time", series["open"], "s", bar=1)
    report.limit(f"{what}: anonymous memory", series["anonymous"], "MB", bar=50)
    report.limit(f"{what}: memory at the worst moment", series["peak"], "MB")
    report.limit("its first batch in a fresh process, kernels cached", series["first"], "s", bar=0.4)
    report.limit("import tokenfeed, beyond numpy and numba", series["import"], "s", bar=0.5)


PARTS = {part.__name__: part for part in (warm, cold, mapped, spans, spinning, opening, writing)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(PARTS)} (all of them)")
    parser.add_argument("--quick", action="store_true", help="small data, few repetitions, no bars enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    scale = QUICK if arguments.quick else FULL
    report = Report(f"store, {scale.num_items * UINT16_BYTES / 1e9:.2g} GB of tokens, windows({LENGTH}), B = {ROWS}")
    begin = time.perf_counter()
    say = functools.partial(print, file=sys.stderr, flush=True)
    for name in arguments.parts or PARTS:
        say(f"{time.perf_counter() - begin:5.0f} s  {name}")
        PARTS[name](report, scale)
    say(f"{time.perf_counter() - begin:5.0f} s  done")
    report.show()
    if arguments.json is not None:
        report.write_json(arguments.json)
    return 1 if report.missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
