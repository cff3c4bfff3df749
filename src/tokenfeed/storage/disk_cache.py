"""Blocks of remote files on a local disk: a sparse copy of each file, and beside it a checksum for every block.

    <folder>/<identity>/data    block b at byte b · block_bytes, holes where nothing was fetched
    <folder>/<identity>/sums    8 bytes for each block: its checksum, or 0 if there is none

A block exists once its checksum does. Every read compares the two, so damage by a kill, a power cut or a failing disk
is noticed, and the block fetched again. Two processes that write one block write the same bytes. So any number of them
share a folder without a lock.

When the folder is full, data of other stores that nobody used for ten minutes is removed, the oldest first; a process
that still reads it keeps its open files. Then nothing more is kept. With a random order that is best: every block is
needed once an epoch, so a block that came first is as good as one that came last.
"""

import contextlib
import math
import os
import shutil
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tokenfeed.kernels import blocks
from tokenfeed.kernels.checksum import checksum
from tokenfeed.storage.files import Part
from tokenfeed.storage.local import close_all, default_open_files, write_all, writing
from tokenfeed.types import Bools, Bytes, Ints

__all__ = ["DiskCache"]

_IN_USE_SECONDS = 600
_TOUCH_SECONDS = 60
_MEASURE_SHARE = 64  # measure again after writing this share of the limit: others write too
_MEASURE_BYTES = 64 << 20
_RETRY_SECONDS = 60


_Entry = list[int]
"""File descriptors of data and sums."""


class DiskCache:
    """Blocks of any number of files under one folder. Threads may share it.

    The first files that are used stay open, up to a quarter of what the process may open; others are opened for each
    use. So a handle in use is never closed.
    """

    def __init__(self, folder: Path, limit: int, block_bytes: int) -> None:
        self._folder = folder.expanduser()
        self._limit = limit
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._max_entries = default_open_files() // 2
        self._used: dict[str, float] = {}  # when this process last noted on disk that it uses a file
        self._num_bytes = self._unmeasured = 0  # in the folder when last measured, and written since
        self._full_since: float | None = None
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._measure()
        weakref.finalize(self, _forget, self._entries)

    @property
    def is_full(self) -> bool:
        return self._full_since is not None

    def load(self, wanted: Ints, files: Mapping[int, Part]) -> tuple[Bools, Bools, Bytes]:
        """(good, damaged, data): which blocks were there and whole, which were damaged, and the whole ones end to end.

        `files` has the file of every key. Blocks that are not in the page cache are read at once, not in turn.
        """
        size = self._block_bytes
        numbers, block = wanted >> blocks.BLOCK_BITS, wanted & ((1 << blocks.BLOCK_BITS) - 1)
        handles = np.full((2, wanted.size), -1, np.int64)
        sizes = np.empty(wanted.size, np.int64)
        data = np.empty(wanted.size * size, np.uint8)
        with contextlib.ExitStack() as stack:
            for number in np.unique(numbers).tolist():
                these = numbers == number
                sizes[these] = np.minimum(size, files[number].file_bytes - block[these] * size)
                entry = self._open(files[number], stack)
                if entry is not None:
                    handles[0, these], handles[1, these] = entry
            good, damaged = blocks.load_blocks(wanted, sizes, handles[0], handles[1], size, data)
        return good, damaged, data.reshape(-1, size)[good].reshape(-1)

    def store(self, file: Part, first_block: int, data: Bytes) -> None:
        """Keep consecutive blocks, if there is room. Never raises: without a cache, reading is slower but not wrong."""
        if not self._has_room(data.size):
            return
        try:
            with contextlib.ExitStack() as stack:
                entry = self._open(file, stack)
                if entry is not None:
                    write_all(entry[0], data.data, first_block * self._block_bytes)
                    sums = np.maximum(blocks.checksum_blocks(data, self._block_bytes), 1)  # 0 is for none
                    write_all(entry[1], sums.data, first_block * sums.itemsize)
        except OSError:  # no space, a quota, a disk that fails
            self._full_since = time.monotonic()

    def _has_room(self, num_bytes: int) -> bool:
        now = time.monotonic()
        if self._full_since is not None and now - self._full_since < _RETRY_SECONDS:
            return False
        with self._lock:
            self._num_bytes += num_bytes
            self._unmeasured += num_bytes
            if self._unmeasured > min(_MEASURE_BYTES, self._limit // _MEASURE_SHARE):
                self._measure(num_bytes)
            if self._num_bytes > self._limit:
                self._make_room(self._num_bytes - self._limit)
                self._measure(num_bytes)
            self._full_since = now if self._num_bytes > self._limit else None
        return self._full_since is None

    def _measure(self, more: int = 0) -> None:
        """Measure the folder, whoever wrote to it, and count what will be written now."""
        self._num_bytes = sum(map(_disk_bytes, _folders(self._folder))) + more
        self._unmeasured = 0

    def _make_room(self, num_bytes: int) -> None:
        """Remove data that nobody has used for a while, the oldest first, until so much is free."""
        now = time.time()
        idle = []
        for folder in _folders(self._folder):
            with contextlib.suppress(OSError):
                used = folder.stat().st_mtime
                if folder.name not in self._used and now - used > _IN_USE_SECONDS:
                    idle.append((used, folder))
        for _, folder in sorted(idle):
            if num_bytes <= 0:
                return
            num_bytes -= _disk_bytes(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def _open(self, file: Part, stack: contextlib.ExitStack) -> _Entry | None:
        """The two files of a remote file, created if missing, open at least as long as `stack`; None if that fails."""
        name = f"{checksum((file.identity or f'{file.path} {file.file_bytes}').encode())}-{self._block_bytes}"
        try:
            with self._lock:
                self._touch(name)
                entry = self._entries.get(name)
                if entry is None:
                    entry = _open_entry(self._folder / name)
                    if len(self._entries) < self._max_entries:
                        self._entries[name] = entry
                    else:
                        stack.callback(close_all, entry)
        except OSError:
            self._full_since = time.monotonic()
            return None
        return entry

    def _touch(self, name: str) -> None:
        """Note on disk, once a minute, that the files of this name are in use."""
        now = time.monotonic()
        if now - self._used.get(name, -math.inf) >= _TOUCH_SECONDS:
            self._used[name] = now
            folder = self._folder / name
            folder.mkdir(exist_ok=True)
            os.utime(folder)


def _open_entry(folder: Path) -> _Entry:
    entry: _Entry = []
    try:
        for name in ("data", "sums"):
            entry.append(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
    except OSError:
        close_all(entry)
        raise
    return entry


def _forget(entries: dict[str, _Entry]) -> None:
    while entries:
        close_all(entries.popitem()[1])


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir()]
    return []


def _disk_bytes(folder: Path) -> int:
    total = 0
    for name in ("data", "sums"):
        with contextlib.suppress(OSError):
            total += (folder / name).stat().st_blocks * 512
    return total
