"""Runs one adapter inside its own environment: `python child.py ADAPTER`, one JSON request a line, one answer a line.

An adapter is a module of `adapters/` with

    PACKAGES   distributions whose versions are told
    SETTINGS   how it is configured, in a sentence
    OVERLAP    1 where a row shares its last token with the next one, 0 where rows are cut apart
    write(tokens, folder, job)   puts the tokens into the peer's own format, once
    Feed(folder, job)            iterates over (inputs, targets), int64, one epoch at a time or without end;
                                 state() is what the peer says a checkpoint is (absent where it has none)
    order(n, epoch, count)       the first `count` samples of that epoch's order of n (absent where it cannot be told)

and whatever else a section of the benchmark calls by name.
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokens import EOS, Job, Tokens

_WARM_BATCHES = 64  # taken before the clock starts: what was read ahead while others had their turn
_STEP_SECONDS = 0.01


class Session:
    """One adapter, and the feed it has open."""

    def __init__(self, adapter: Any, imported: float) -> None:
        self.adapter = adapter
        self.imported = imported
        self.feed: Any = None
        self.epoch: Iterator[Any] = iter(())

    def about(self) -> dict[str, Any]:
        versions = {name: importlib.metadata.version(name) for name in self.adapter.PACKAGES}
        return {
            "versions": versions,
            "settings": self.adapter.SETTINGS,
            "overlap": self.adapter.OVERLAP,
            "stateful": hasattr(self.adapter.Feed, "state"),
        }

    def write(self, tokens: str, folder: str, job: dict[str, Any]) -> None:
        self.adapter.write(Tokens(Path(tokens)), Path(folder), Job(**job))

    def open(self, folder: str, job: dict[str, Any], states: list[str] | None = None) -> dict[str, Any]:
        """Open a feed and take its first batch. `states` are files of pickled states."""
        loaded = [pickle.loads(Path(path).read_bytes()) for path in states or ()]
        began = time.perf_counter()
        job = {**job, "state": loaded[0] if loaded else None, "states": tuple(loaded)}
        self.feed = self.adapter.Feed(Path(folder), Job(**job))
        self.epoch = iter(self.feed)
        batch = self._next()
        end = time.perf_counter()
        self.first = batch
        inputs, targets = (np.asarray(part) for part in batch)
        return {
            "seconds": end - began,
            "since_start": time.time() - float(os.environ["PEERS_STARTED"]),
            "shape": inputs.shape,
            "dtype": str(inputs.dtype),
            "shifted": bool((inputs[:, 1:] == targets[:, :-1]).all()),
            "digest": _digest(batch),
        }

    def check(self, tokens: str) -> bool:
        """Whether the rows of the first batch are in the file: around its middle, as far as its document goes."""
        values = Tokens(Path(tokens)).values
        return all(_is_in(row, values) for row in np.asarray(self.first[0])[:3])

    def steady(self, seconds: float, warm: int = _WARM_BATCHES, pause: bool = True) -> dict[str, float]:
        """Batches in so many seconds. `pause`: the clock stands still from an epoch's end until the next is warm."""
        self._skip(warm)
        taken, measured, unmeasured = 0, 0.0, warm
        began = time.perf_counter()
        while measured + time.perf_counter() - began < seconds:
            try:
                next(self.epoch)
                taken += 1
            except StopIteration:
                if pause:
                    measured += time.perf_counter() - began
                self.epoch = iter(self.feed)
                if pause:
                    self._skip(warm)
                    unmeasured += warm
                    began = time.perf_counter()
        measured += time.perf_counter() - began
        return {"batches": taken, "seconds": measured, "all_batches": taken + unmeasured}

    def train(self, seconds: float) -> dict[str, float]:
        """By how much a training step of 10 ms of plain Python gets longer, if it takes a batch first."""
        turns = 10_000
        while (alone := _spin(turns)) < _STEP_SECONDS / 2:
            turns *= 2
        turns = round(turns * _STEP_SECONDS / alone)
        steps = max(5, round(seconds / _STEP_SECONDS))
        alone = sum(_spin(turns) for _ in range(steps))
        self._skip(8)
        began = time.perf_counter()
        for _ in range(steps):
            self._next()
            _spin(turns)
        beside = time.perf_counter() - began
        alone = (alone + sum(_spin(turns) for _ in range(steps))) / 2
        return {"slowdown": beside / alone - 1}

    def advance(self, steps: int) -> None:
        self._skip(steps)

    def save(self, path: str) -> int | None:
        """Write the feed's state to a file. Its size, or None where there is no such thing."""
        if not hasattr(self.feed, "state"):
            return None
        data = pickle.dumps(self.feed.state())
        Path(path).write_bytes(data)
        return len(data)

    def digests(self, count: int) -> list[str]:
        """Of so many batches, which must not run into the next epoch: what begins there is another question."""
        found = [_digest(batch) for batch in islice(self.epoch, count)]
        if len(found) < count:
            raise ValueError(f"the epoch ended after {len(found)} of {count} batches")
        return found

    def rows(self, path: str, steps: int, first: bool) -> int:
        """Write the rows of so many steps, or of those until the epoch ends. `first`: with the batch `open` took."""
        taken = [self.first] if first else []
        while len(taken) < steps:
            try:
                taken.append(next(self.epoch))
            except StopIteration:
                break
        rows = [np.concatenate([np.asarray(i), np.asarray(t)[:, -1:]], 1) for i, t in taken]
        np.save(path, np.concatenate(rows))
        return len(taken)

    def sizes(self, epochs: int, endless: int) -> list[list[int]]:
        """The rows of every batch, epoch by epoch; of a feed without end, those of so many batches."""
        found: list[list[int]] = []
        epoch: Iterator[Any] = chain([self.first], self.epoch)
        while len(found) < epochs and (not found or len(found[-1]) < endless):
            found.append([len(inputs) for inputs, _ in islice(epoch, endless)])
            epoch = iter(self.feed)
        return found

    def order(self, n: int, epochs: int, count: int, path: str) -> dict[str, float] | None:
        """The first `count` samples of some epochs, to a file; seconds and memory they took, once code was loaded."""
        if not hasattr(self.adapter, "order"):
            return None
        self.adapter.order(1000, 0, 10)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
        before = _memory("VmRSS")
        began = time.perf_counter()
        rows = [np.asarray(self.adapter.order(n, epoch, count), np.int64) for epoch in range(epochs)]
        seconds = time.perf_counter() - began
        peak = _memory("VmHWM")
        np.save(path, np.stack(rows))
        return {"seconds": seconds, "megabytes": (peak - before) / 1e6}

    def call(self, name: str, **arguments: Any) -> Any:
        """A function of the adapter's own. Null where it has none of that name."""
        function = getattr(self.adapter, name, None)
        return None if function is None else function(**arguments)

    def close(self) -> None:
        if hasattr(self.feed, "close"):
            self.feed.close()

    def _next(self) -> Any:
        try:
            return next(self.epoch)
        except StopIteration:
            self.epoch = iter(self.feed)
            return next(self.epoch)

    def _skip(self, steps: int) -> None:
        for _ in range(steps):
            self._next()


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def _spin(turns: int) -> float:
    began = time.perf_counter()
    for _ in range(turns):
        pass
    return time.perf_counter() - began


def _digest(batch: Any) -> str:
    return hashlib.sha1(b"".join(np.ascontiguousarray(part, np.int64).tobytes() for part in batch)).hexdigest()[:16]


def _is_in(row: Any, values: Any) -> bool:
    middle = row.size // 2
    limits = np.flatnonzero(row == EOS)
    start = int(limits[limits < middle].max(initial=-1)) + 1
    stop = int(limits[limits >= middle].min(initial=row.size))
    if stop - start < 8:
        return True  # a document too short to tell it from others
    head = row[start : start + 8]
    found = np.flatnonzero(values == head[0])
    return any(np.array_equal(values[at : at + stop - start], row[start:stop]) for at in found)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what peers print goes to the log
    folder = Path(__file__).parent
    sys.path[:0] = [str(folder / "adapters")]
    began = time.perf_counter()
    try:
        session = Session(importlib.import_module(sys.argv[1]), 0.0)
        session.imported = time.perf_counter() - began
        ready: dict[str, Any] = {"ok": session.about()}
    except Exception:  # noqa: BLE001
        ready = {"error": traceback.format_exc()}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(session, request.pop("do"))(**request)}
        except Exception:  # noqa: BLE001
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    with contextlib.suppress(Exception):
        session.close()
    sys.stderr.flush()
    os._exit(0)  # peers' threads and workers need not agree


if __name__ == "__main__":
    main()
