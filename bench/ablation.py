"""What each way of reading is worth: `python bench/ablation.py [--quick] [--json PATH]`.

The same samples, 4,096 tokens with the 160-byte payloads of the spans they touch, read in eight ways, one toggle each:
positional reads (or seek, then read), index arithmetic compiled (or Python), and the payloads of neighbouring spans
by one read (or one read each). Last, tokenfeed itself, which also checks everything and knows many shards.
"""

import argparse
import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
from numba import njit, types

import tokenfeed
from data import QUICK, make_once
from measure import Report, Series, interleave

LENGTH, ROWS = 4096, 32
ITEMS, MEAN_SPAN, PAYLOAD_BYTES = 1 << 26, 100, 160
HEADER = 128  # of every .npy file in a store
ANCHOR = 4096  # items between two anchors

_pread = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))
_lseek = types.ExternalFunction("lseek", types.int64(types.int32, types.int64, types.int32))
_read = types.ExternalFunction("read", types.intp(types.int32, types.uintp, types.uintp))


def make_store() -> Path:
    """One shard of random tokens with spans of a hundred of them on average."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        lengths = rng.geometric(1 / MEAN_SPAN, 2 * ITEMS // MEAN_SPAN)
        lengths = lengths[: np.searchsorted(np.cumsum(lengths), ITEMS)]
        tokens = rng.integers(0, 50_000, lengths.sum(), np.uint16)
        columns, spans = {"tokens": "uint16"}, {"concepts": "bytes"}
        with tokenfeed.Writer(path, columns=columns, spans=spans, shard_bytes=1 << 40, sync=False, name="s") as writer:
            writer.append({"tokens": tokens}, lengths=lengths, concepts=[b"p" * PAYLOAD_BYTES] * len(lengths))

    return make_once("ablation", QUICK, make)


class Files:
    """The files of the shard, open."""

    def __init__(self, path: Path) -> None:
        (shard,) = (folder for folder in path.iterdir() if folder.is_dir())
        names = (
            "tokens.npy",
            *(f"concepts.{part}" for part in ("anchors.npy", "starts.npy", "offsets.npy", "payload.bin")),
        )
        self.descriptors = [os.open(shard / name, os.O_RDONLY) for name in names]
        self.num_spans = (os.fstat(self.descriptors[2]).st_size - HEADER) // 8

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def read_plainly(files: Files, indices: list[int], *, positional: bool, combined: bool) -> int:
    """In Python. Returns how many payload bytes were read, as all ways do."""

    def read(file: int, size: int, at: int) -> bytes:
        descriptor = files.descriptors[file]
        if positional:
            return os.pread(descriptor, size, at)
        os.lseek(descriptor, at, os.SEEK_SET)
        return os.read(descriptor, size)

    def number(file: int, index: int) -> int:
        return int.from_bytes(read(file, 8, HEADER + 8 * index), "little")

    rows = np.empty((len(indices), LENGTH), np.uint16)
    total = 0
    for row, index in enumerate(indices):
        begin = index * LENGTH
        rows[row] = np.frombuffer(read(0, 2 * LENGTH, HEADER + 2 * begin), np.uint16)
        span = number(1, begin // ANCHOR)
        touched = []
        while span < files.num_spans and (start := number(2, span)) < begin + LENGTH:
            end = number(2, span + 1) if span + 1 < files.num_spans else ITEMS
            if max(start, begin) < end:
                touched.append(span)
            span += 1
        if combined:
            offsets = np.frombuffer(read(3, 8 * (len(touched) + 1), HEADER + 8 * touched[0]), np.int64)
            payload = read(4, int(offsets[-1] - offsets[0]), int(offsets[0]))
            bounds = (offsets - offsets[0]).tolist()
            total += sum(len(payload[a:b]) for a, b in itertools.pairwise(bounds))
        else:
            for span in touched:
                first, last = number(3, span), number(3, span + 1)
                total += len(read(4, last - first, first))
    return total


@njit(nogil=True, cache=True)
def _fill(descriptor, address, size, at, positional):
    if positional:
        return _pread(descriptor, address, size, at)
    _lseek(descriptor, at, 0)
    return _read(descriptor, address, size)


@njit(nogil=True, cache=True)
def _read_compiled(descriptors, num_spans, indices, rows, numbers, payload, positional, combined):
    total = 0
    for row in range(indices.size):
        begin = indices[row] * LENGTH
        _fill(descriptors[0], rows[row].ctypes.data, 2 * LENGTH, HEADER + 2 * begin, positional)
        _fill(descriptors[1], numbers.ctypes.data, 8, HEADER + 8 * (begin // ANCHOR), positional)
        first = numbers[0]
        count = 0
        while first + count < num_spans:  # starts, a hundred at a time
            some = min(100, num_spans - first - count)
            _fill(descriptors[2], numbers.ctypes.data, 8 * some, HEADER + 8 * (first + count), positional)
            inside = 0
            while inside < some and numbers[inside] < begin + LENGTH:
                if count + inside == 1 and numbers[inside] <= begin:  # what came before it ends before the row
                    first += 1
                    count -= 1
                inside += 1
            count += inside
            if inside < some:
                break
        if combined:
            _fill(descriptors[3], numbers.ctypes.data, 8 * (count + 1), HEADER + 8 * first, positional)
            total += _fill(descriptors[4], payload.ctypes.data, numbers[count] - numbers[0], numbers[0], positional)
        else:
            for span in range(first, first + count):
                _fill(descriptors[3], numbers.ctypes.data, 16, HEADER + 8 * span, positional)
                total += _fill(descriptors[4], payload.ctypes.data, numbers[1] - numbers[0], numbers[0], positional)
    return total


def read_compiled(files: Files, indices: npt.NDArray[np.int64], *, positional: bool, combined: bool) -> int:
    rows = np.empty((len(indices), LENGTH), np.uint16)
    numbers, payload = np.empty(LENGTH + 101, np.int64), np.empty((LENGTH + 1) * PAYLOAD_BYTES, np.uint8)
    descriptors = np.array(files.descriptors, np.int32)
    return int(_read_compiled(descriptors, files.num_spans, indices, rows, numbers, payload, positional, combined))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path = make_store()
    files, view = Files(path), tokenfeed.open(path).windows(LENGTH, extra=0, spans=["concepts"])
    order = tokenfeed.Permutation(len(view))

    def ours(indices: npt.NDArray[np.int64]) -> int:
        _, starts, stops = view.read(indices).spans["concepts"].read_payloads()
        return int((stops - starts).sum())

    ways: dict[str, Callable[[npt.NDArray[np.int64]], int]] = {"tokenfeed": ours}
    for positional, compiled, combined in itertools.product((False, True), repeat=3):
        name = ", ".join(
            (
                "pread" if positional else "seek + read",
                "compiled" if compiled else "Python",
                "payloads together" if combined else "payload by payload",
            )
        )
        how = partial(read_compiled if compiled else read_plainly, files, positional=positional, combined=combined)
        ways[name] = how
    sizes = {name: way(order(np.arange(ROWS))) for name, way in ways.items()}
    assert len(set(sizes.values())) == 1, sizes  # all read the same

    def rate(way: Callable[[npt.NDArray[np.int64]], int], repetition: int) -> float:
        began, batches = perf_counter(), 0
        while perf_counter() - began < (0.1 if options.quick else 1.0):
            way(order((np.arange(ROWS) + ROWS * (997 * repetition + batches)) % len(view)))
            batches += 1
        return batches / (perf_counter() - began)

    contenders = {name: partial(rate, way) for name, way in ways.items()}
    report = Report("what each way of reading is worth: 32 rows of 4,096 tokens, some 41 payloads each")
    results: dict[str, Series] = interleave(contenders, repetitions=3 if options.quick else 7, unit="batches/s")
    slowest = results["seek + read, Python, payload by payload"]
    for name, series in sorted(results.items(), key=lambda item: item[1].median):
        report.compare(name, series, slowest)
    report.show()
    if options.json:
        report.write_json(options.json)
    files.close()


if __name__ == "__main__":
    main()
