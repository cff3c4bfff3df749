"""Files that lie elsewhere, read block by block: in memory, then a cache on disk, then the server."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorruptionError
from tokenfeed.kernels import blocks
from tokenfeed.kernels.jit import address_of
from tokenfeed.kernels.posix import record
from tokenfeed.storage.disk_cache import DiskCache
from tokenfeed.storage.fetcher import Fetched, Range, fetcher
from tokenfeed.storage.remote import Remote, RemoteStats

__all__ = ["BlockCache", "Described"]

Ints = npt.NDArray[np.int64]

_LANDING_THREADS = 2
_LOG_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class Described:
    """A remote file, as its store describes it."""

    uri: str
    num_bytes: int
    identity: str
    """Stands for its content, wherever it lies."""


class _Run:
    """Consecutive blocks of one file that are on their way."""

    __slots__ = ("file", "first", "landed", "stop")

    def __init__(self, file: int, first: int, stop: int) -> None:
        self.file, self.first, self.stop = file, first, stop
        self.landed: Future[None] = Future()

    @property
    def keys(self) -> Ints:
        return (self.file << blocks.BLOCK_BITS) + np.arange(self.first, self.stop)


class BlockCache:
    """The blocks of a store's remote files that are in memory, and how more of them get there. Threads may share it.

    A kernel may look into it only while `guard` is held, and what it missed must be taken before `guard` is let go.
    """

    def __init__(self, describe: Callable[[int], Described], how: Remote) -> None:
        self.guard = threading.Lock()
        self._describe = describe
        self._how = how
        self._disk = None if how.cache is None else DiskCache(Path(how.cache), how.cache_bytes, how.block_bytes)
        self._header = np.zeros(1, blocks.CACHE)
        self._log = np.zeros(_LOG_SIZE + 1, np.int64)
        self._under_way: dict[int, _Run] = {}
        self._versions: dict[int, str | None] = {}
        self._counts = dict.fromkeys(
            ("requests", "bytes_asked", "bytes_fetched", "cache_hits", "cache_misses", "cache_damaged", "waits"), 0
        )
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._resize(how.memory_bytes // how.block_bytes)

    @property
    def address(self) -> int:
        """For the file table. It never changes."""
        return self._header.ctypes.data

    @property
    def largest_file(self) -> int:
        """In bytes: 4 PiB with blocks of 4 KiB."""
        return self._how.block_bytes << blocks.BLOCK_BITS

    @property
    def capacity(self) -> int:
        """In bytes."""
        return int(self._header["num_slots"][0]) * self._how.block_bytes

    def stats(self) -> RemoteStats:
        full = self._disk is not None and self._disk.is_full
        return RemoteStats(**self._counts, retries=fetcher().counters.retries, cache_is_full=full)

    def take_missing(self) -> Ints:
        """The keys of blocks that kernels missed since the last time. Call it with `guard` held."""
        missing = np.unique(self._log[1 : 1 + self._log[0]])
        self._log[0] = 0
        return missing

    def load(self, wanted: Ints) -> None:
        """Return once these blocks have been put into memory. Raises what the server, or a check, said."""
        with self.guard:
            if 4 * wanted.size > self._header["num_slots"][0]:
                self._resize(4 * wanted.size)
        runs = self._begin(wanted)
        if any(not run.landed.done() for run in runs):
            self._counts["waits"] += 1
        for run in runs:
            run.landed.result()

    def reload(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Fetch bytes [start, stop) of files from their server once more, whatever memory and disk have of them."""
        size = self._how.block_bytes
        runs = [_Run(file, start // size, -(-stop // size)) for file, start, stop in ranges]
        with self.guard:
            for run in runs:
                blocks.drop_blocks(self._header, run.keys)
            self._counts["requests"] += len(runs)
        self._request(runs)
        for run in runs:
            run.landed.result()

    def announce(self, wanted: Ints) -> None:
        """Begin to load blocks, without waiting. What goes wrong is told to whoever needs them."""
        most = self.capacity // self._how.block_bytes // 4
        self._begin(wanted[:most])

    def _begin(self, wanted: Ints) -> list[_Run]:
        """Have blocks on their way, those that are not in memory; what they are on their way in."""
        with self.guard:
            if self._pool is not None and self._pool[0] != os.getpid():  # nobody works on it in a forked process
                self._under_way.clear()
            absent = blocks.missing_blocks(self._header, wanted)
            new = np.array([key for key in absent.tolist() if key not in self._under_way], np.int64)
            self._counts["bytes_asked"] += absent.size * self._how.block_bytes
        new = self._load_from_disk(new)
        with self.guard:
            new = np.array([key for key in new.tolist() if key not in self._under_way], np.int64)
            runs = self._cut(new)
            for run in runs:
                self._under_way.update(dict.fromkeys(run.keys.tolist(), run))
            self._counts["requests"] += len(runs)
            needed = {self._under_way[key] for key in absent.tolist() if key in self._under_way}
        self._request(runs)
        return list(needed)

    def _load_from_disk(self, wanted: Ints) -> Ints:
        """Put blocks that are on disk into memory; those that are not."""
        if self._disk is None or wanted.size == 0:
            return wanted
        files = wanted >> blocks.BLOCK_BITS
        described = {file: self._describe(file) for file in np.unique(files).tolist()}
        good, damaged, data = self._disk.load(wanted, described)
        with self.guard:
            blocks.put_blocks(self._header, wanted[good], data)
            self._counts["cache_hits"] += int(good.sum())
            self._counts["cache_misses"] += int((~good).sum())
            self._counts["cache_damaged"] += int(damaged.sum())
        return wanted[~good]

    def _cut(self, keys: Ints) -> list[_Run]:
        """Runs that cover these blocks, sorted, and the small gaps between them."""
        most, gap = self._how.request_bytes // self._how.block_bytes, self._how.gap_bytes // self._how.block_bytes
        runs: list[_Run] = []
        for key in keys.tolist():
            file, block = key >> blocks.BLOCK_BITS, key & ((1 << blocks.BLOCK_BITS) - 1)
            last = runs[-1] if runs else None
            if last is not None and last.file == file and block - last.stop <= gap and block - last.first < most:
                last.stop = block + 1
            else:
                runs.append(_Run(file, block, block + 1))
        return runs

    def _request(self, runs: Iterable[_Run]) -> None:
        runs, ranges, size = list(runs), [], self._how.block_bytes
        for run in runs:
            described = self._describe(run.file)
            stop = min(run.stop * size, described.num_bytes)
            ranges.append(Range(described.uri, run.first * size, stop, self._versions.get(run.file)))
        for run, answer in zip(runs, fetcher().submit_all(ranges), strict=True):
            answer.add_done_callback(partial(self._receive, run))

    def _receive(self, run: _Run, answer: "Future[Fetched]") -> None:
        with contextlib.suppress(RuntimeError):  # at exit there is no room for it any more, and nobody waits
            self._landing.submit(self._land, run, answer)

    @property
    def _landing(self) -> ThreadPoolExecutor:
        """Threads that put away what comes in, so that the one that talks to servers need not."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(_LANDING_THREADS, thread_name_prefix="tokenfeed-blocks")
        return self._pool[1]

    def _land(self, run: _Run, answer: "Future[Fetched]") -> None:
        """Put blocks that have come into memory, then on disk."""
        data, error = np.empty(0, np.uint8), None
        try:
            fetched = answer.result()
            self._check(run, fetched)
            data = np.frombuffer(fetched.data, np.uint8)
        except Exception as problem:  # noqa: BLE001 (it is raised where it is waited for)
            error = problem
        with self.guard:
            if error is None:
                blocks.put_blocks(self._header, run.keys, data)
                self._counts["bytes_fetched"] += data.size
            for key in run.keys.tolist():
                if self._under_way.get(key) is run:
                    del self._under_way[key]
        if error is not None:
            run.landed.set_exception(error)
            return
        run.landed.set_result(None)
        if self._disk is not None:
            self._disk.store(self._describe(run.file), run.first, data)

    def _check(self, run: _Run, fetched: Fetched) -> None:
        """That the object is the one that the manifest described, and the same as at the first answer."""
        described = self._describe(run.file)
        if fetched.size not in (None, described.num_bytes):
            raise CorruptionError(
                f"{described.uri} has {fetched.size:,} bytes; its manifest says {described.num_bytes:,}"
            )
        known = self._versions.setdefault(run.file, fetched.version)
        if known != fetched.version:
            raise CorruptionError(
                f"{described.uri} was replaced while it was being read: its version was {known}, now it is "
                f"{fetched.version}. Open it again."
            )

    def close(self) -> None:
        """Wait until all that has come is on disk. It can be used again."""
        if self._pool is not None and self._pool[0] == os.getpid():
            self._pool[1].shutdown()
        self._pool = None

    def _resize(self, num_blocks: int) -> None:
        """Room for so many blocks; what was in it is fetched again where it is needed."""
        slots = max(64, num_blocks)
        index_size = 1 << (2 * slots - 1).bit_length()
        self._slots = np.empty(slots * self._how.block_bytes, np.uint8)
        self._keys = np.full(slots, blocks.EMPTY, np.int64)
        self._index = np.full(index_size, blocks.EMPTY, np.int64)
        self._header[:] = record(
            blocks.CACHE,
            read=address_of(blocks.read_through),
            block_bytes=self._how.block_bytes,
            num_slots=slots,
            slots=self._slots.ctypes.data,
            keys=self._keys.ctypes.data,
            index=self._index.ctypes.data,
            index_size=index_size,
            log=self._log.ctypes.data,
            log_size=_LOG_SIZE,
        )
