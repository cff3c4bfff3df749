"""Remote files, read block by block: from memory, else from a cache on disk, else from the server."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from tokenfeed.errors import CorruptionError
from tokenfeed.kernels import blocks
from tokenfeed.kernels.jit import address_of
from tokenfeed.kernels.posix import record
from tokenfeed.storage.disk_cache import DiskCache
from tokenfeed.storage.fetcher import Fetched, Range, fetcher
from tokenfeed.storage.files import Part, check_size
from tokenfeed.storage.remote import MEMORY_BYTES, Remote, RemoteStats
from tokenfeed.storage.runtime import check_not_forked, result_of
from tokenfeed.types import Ints

__all__ = ["BlockCache"]

_LANDING_THREADS = 2
_LOG_SIZE = 1 << 16
_LARGEST_SLOT, _SMALLEST_SLOT = 512, 64
_SHARE = 8
"""A slot is at most this part of a row, so about this part of a row is fetched in vain."""


class _Run:
    """Consecutive slots of one file that are on their way."""

    __slots__ = ("file", "first", "landed", "stop")

    def __init__(self, file: int, first: int, stop: int) -> None:
        self.file, self.first, self.stop = file, first, stop
        self.landed: Future[None] = Future()

    @property
    def keys(self) -> Ints:
        return (self.file << blocks.BLOCK_BITS) + np.arange(self.first, self.stop)


class BlockCache:
    """The parts of a store's remote files that are in memory, and how more of them get there. Threads may share it.

    Memory is cut into small slots: it holds what it counts, however short files and rows are. What is fetched is the
    slots that are needed; or blocks of many slots, where neighbours will be needed soon.

    A kernel may look into it only while `guard` is held, and what it missed must be taken before `guard` is released.
    """

    def __init__(self, describe: Callable[[int], Part], how: Remote) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._describe = describe
        self._how = how
        self._disk = None if how.cache is None else DiskCache(Path(how.cache), how.cache_bytes, _LARGEST_SLOT)
        self._header = np.zeros(1, blocks.CACHE)
        self._log = np.zeros(_LOG_SIZE + 1, np.int64)
        self._under_way: dict[int, _Run] = {}
        self._versions: dict[int, str | None] = {}
        self._counts = dict.fromkeys(
            ("requests", "bytes_asked", "bytes_fetched", "cache_hits", "cache_misses", "cache_damaged", "waits"), 0
        )
        self._pool: ThreadPoolExecutor | None = None
        self._slot_bytes = _LARGEST_SLOT
        self._is_used = False
        self._resize((MEMORY_BYTES if how.memory_bytes is None else how.memory_bytes) // self._slot_bytes)

    @property
    def guard(self) -> threading.Lock:
        """The lock of the blocks. ForkError in a forked process: what loads blocks is missing there, and a thread that
        was not carried over may hold the lock."""
        check_not_forked(self._process)
        return self._guard

    @property
    def address(self) -> int:
        """The address of the header, for the file table. It never changes."""
        return self._header.ctypes.data

    @property
    def memory_bytes(self) -> int:
        """Size of the memory for slots."""
        return self._slots.size

    def expect_rows(self, row_bytes: int) -> None:
        """Make slots small enough for rows of so many bytes. Does nothing once something was read: keys tell slots."""
        fitting = 1 << max(0, (row_bytes // _SHARE).bit_length() - 1)
        with self.guard:
            if fitting < self._slot_bytes and not self._is_used and self._disk is None:  # on disk they have one size
                num_bytes, self._slot_bytes = self.memory_bytes, max(_SMALLEST_SLOT, fitting)
                self._resize(num_bytes // self._slot_bytes)

    def keep(self, num_bytes: int) -> None:
        """Make memory for so many bytes, unless `Remote` says how much there is, or has a disk for what leaves it.

        At most a quarter of the machine's: `stats` warns if that is not enough.
        """
        num_bytes = min(num_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
        with self.guard:
            if self._how.memory_bytes is None and self._disk is None and num_bytes > self.memory_bytes:
                self._resize(num_bytes // self._slot_bytes)

    def check_size(self, part: Part) -> None:
        """Raise for a file of more than 64 TiB (with slots of 64 bytes): its slots would have the keys of another."""
        largest = _SMALLEST_SLOT << blocks.BLOCK_BITS
        if part.file_bytes > largest:
            raise CorruptionError(f"{part.path} should have {part.file_bytes:,} bytes; at most {largest:,} can be read")

    def stats(self) -> RemoteStats:
        full = self._disk is not None and self._disk.is_full
        held = int((self._keys != blocks.EMPTY).sum()) * self._slot_bytes
        memory = {"bytes_used": int(self._header["copied"][0]), "bytes_held": held}
        return RemoteStats(**self._counts, **memory, retries=fetcher().counters.retries, cache_is_full=full)

    def take_missing(self) -> Ints:
        """Keys of the slots that kernels missed since the last call. Call it with `guard` held.

        Where a kernel missed more than could be noted, there are none: it will note more when it is called again.
        """
        count = int(self._log[0])
        missing = np.unique(self._log[1 : 1 + count])
        self._is_used |= count > 0
        self._log[0] = 0
        if count == self._log.size - 1:
            self._log = np.zeros(4 * count + 1, np.int64)
            self._header["log"], self._header["log_size"] = self._log.ctypes.data, 4 * count
            return missing[:0]
        return missing

    @contextlib.contextmanager
    def counting(self) -> Iterator[Callable[[], None]]:
        """`guard`, with a function that counts what was copied in it as not used: it will be copied again."""
        with self.guard:
            before = int(self._header["copied"][0])
            yield lambda: self._header["copied"].fill(before)

    def load(self, wanted: Ints) -> None:
        """Return when these slots have been put into memory. Raises the error of the server, or of a check."""
        with self.guard:
            each = max(1, (self._how.block_bytes or 0) // self._slot_bytes)
            if 4 * wanted.size * each > self._header["num_slots"][0]:
                needed = 4 * sum(run.stop - run.first for run in self._cut(wanted, each))
                if needed > self._header["num_slots"][0]:
                    self._resize(needed)
        runs = self._begin(wanted, self._how.block_bytes or 0)
        if any(not run.landed.done() for run in runs):
            self._counts["waits"] += 1
        for run in runs:
            result_of(run.landed)

    def announce(self, wanted: Ints, block_bytes: int) -> None:
        """Begin to load slots, without waiting, in blocks of so many bytes unless `Remote` says otherwise. Errors are
        raised where the slots are needed."""
        self._begin(wanted[: self._header["num_slots"][0] // 4], self._how.block_bytes or block_bytes)

    def _begin(self, wanted: Ints, block_bytes: int) -> list[_Run]:
        """Request the slots that are not in memory; returns the runs that bring them."""
        with self.guard:
            absent = blocks.missing_blocks(self._header, wanted)
            new = np.array([key for key in absent.tolist() if key not in self._under_way], np.int64)
            self._counts["bytes_asked"] += absent.size * self._slot_bytes
        new = self._load_from_disk(new)
        with self.guard:
            new = np.array([key for key in new.tolist() if key not in self._under_way], np.int64)
            runs = self._cut(new, max(1, block_bytes // self._slot_bytes))
            for run in runs:
                self._under_way.update(dict.fromkeys(run.keys.tolist(), run))
            self._counts["requests"] += len(runs)
            needed = {self._under_way[key] for key in absent.tolist() if key in self._under_way}
        self._request(runs)
        return list(needed)

    def _load_from_disk(self, wanted: Ints) -> Ints:
        """Put blocks that are on disk into memory; returns the others."""
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

    def _cut(self, keys: Ints, each: int) -> list[_Run]:
        """Runs of whole blocks, of `each` slots, that cover these sorted slots and the small gaps between them."""
        most, given = self._how.request_bytes // self._slot_bytes, self._how.gap_bytes
        gap = _SHARE if given is None else given // self._slot_bytes
        runs: list[_Run] = []
        ends = {}
        for key in keys.tolist():
            file, slot = key >> blocks.BLOCK_BITS, key & ((1 << blocks.BLOCK_BITS) - 1)
            last = runs[-1] if runs else None
            if last is not None and last.file == file and slot < last.stop:
                continue
            if file not in ends:
                ends[file] = -(-self._describe(file).file_bytes // self._slot_bytes)
            first = slot // each * each
            stop = min(first + each, ends[file])
            if last is not None and last.file == file and first - last.stop <= gap and stop - last.first <= most:
                last.stop = stop
            else:
                runs.append(_Run(file, first, stop))
        return runs

    def _request(self, runs: Iterable[_Run]) -> None:
        runs, ranges, size = list(runs), [], self._slot_bytes
        for run in runs:
            described = self._describe(run.file)
            stop = min(run.stop * size, described.file_bytes)
            ranges.append(Range(described.path, run.first * size, stop, self._versions.get(run.file)))
        for run, answer in zip(runs, fetcher().submit_all(ranges), strict=True):
            answer.add_done_callback(partial(self._receive, run))

    def _receive(self, run: _Run, answer: "Future[Fetched]") -> None:
        """Leave an answer to other threads: this is the one that talks to servers."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_LANDING_THREADS, thread_name_prefix="tokenfeed-blocks")
        with contextlib.suppress(RuntimeError):  # at exit it takes no more work, and nobody waits
            self._pool.submit(self._land, run, answer)

    def _land(self, run: _Run, answer: "Future[Fetched]") -> None:
        """Put blocks that arrived into memory, then on disk."""
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
        """Raise unless the object is the one in the manifest, and the same as at the first answer."""
        described = self._describe(run.file)
        if fetched.size is not None:
            check_size(described, fetched.size)
        known = self._versions.setdefault(run.file, fetched.version)
        if known != fetched.version:
            raise CorruptionError(
                f"{described.path} was replaced while it was being read: its version was {known}, now it is "
                f"{fetched.version}. Open it again."
            )

    def close(self) -> None:
        """Wait until everything that arrived is on disk. The cache can be used again."""
        if self._pool is not None and os.getpid() == self._process:
            self._pool.shutdown()
        self._pool = None

    def _resize(self, num_slots: int) -> None:
        """Make so many slots. What is in memory is dropped, and fetched again if needed."""
        slots = max(64, num_slots)
        index_size = 1 << (2 * slots - 1).bit_length()
        self._slots = np.empty(slots * self._slot_bytes, np.uint8)
        self._keys = np.full(slots, blocks.EMPTY, np.int64)
        self._index = np.full(index_size, blocks.EMPTY, np.int64)
        self._header[:] = record(
            blocks.CACHE,
            read=address_of(blocks.read_through),
            block_bytes=self._slot_bytes,
            num_slots=slots,
            slots=self._slots.ctypes.data,
            keys=self._keys.ctypes.data,
            index=self._index.ctypes.data,
            index_size=index_size,
            log=self._log.ctypes.data,
            log_size=self._log.size - 1,
            copied=self._header["copied"][0],
        )
