"""The C loops of `loops.c`, compiled when they are needed and called without the GIL; and dropping files from cache."""

import ctypes
import gc
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ROWS", "Loops", "drop_from_cache", "map_file"]

ROWS = 32
_SOURCE = Path(__file__).with_name("loops.c")
_LIBRARY = Path(__file__).parent / ".build" / "loops.so"


class Loops:
    """C loops over windows of `window_bytes` bytes of some files, which it keeps open and mapped."""

    def __init__(self, paths: list[str], window_bytes: int, *, max_threads: int = 16) -> None:
        self._run = _compile().run_loop
        self._window_bytes = window_bytes
        self.rows = np.zeros((max_threads * ROWS, window_bytes), np.uint8)
        self._descriptors = np.array([os.open(path, os.O_RDONLY) for path in paths], np.int64)
        for fd in self._descriptors:
            os.posix_fadvise(int(fd), 0, 0, os.POSIX_FADV_RANDOM)  # as the store does: no read-ahead for either
        self._paths = paths
        self._maps: list[npt.NDArray[np.uint8]] = []

    def pread(self, files: Any, offsets: Any, *, threads: int = 1) -> float:
        """Windows per second of a pread loop."""
        return self._windows_per_second(False, self._descriptors, files, offsets, threads)

    def mapped(self, files: Any, offsets: Any, *, threads: int = 1) -> float:
        """Windows per second of an mmap + memcpy loop."""
        if not self._maps:
            self._maps = [map_file(path) for path in self._paths]
        addresses = np.array([view.ctypes.data for view in self._maps], np.int64)
        return self._windows_per_second(True, addresses, files, offsets, threads)

    def _windows_per_second(self, mapped: bool, sources: Any, files: Any, offsets: Any, threads: int) -> float:
        assert files.dtype == np.int32
        assert offsets.dtype == np.int64
        assert files.flags.c_contiguous
        assert offsets.flags.c_contiguous
        seconds = self._run(
            ctypes.c_int(mapped),
            ctypes.c_void_p(sources.ctypes.data),
            ctypes.c_void_p(files.ctypes.data),
            ctypes.c_void_p(offsets.ctypes.data),
            ctypes.c_int64(offsets.size),
            ctypes.c_int64(self._window_bytes),
            ctypes.c_int(threads),
            ctypes.c_void_p(self.rows.ctypes.data),
        )
        if seconds <= 0:
            raise OSError("the C loop could not read what the store can")
        return float(offsets.size / seconds)

    def close(self) -> None:
        self._maps.clear()
        for fd in self._descriptors:
            os.close(int(fd))


def _compile() -> ctypes.CDLL:
    gcc = shutil.which("gcc")
    if gcc is None:
        sys.exit(
            "gcc is needed: the store is measured against C loops (bench/loops.c), and there is no C compiler here"
        )
    if not _LIBRARY.exists() or _LIBRARY.stat().st_mtime < _SOURCE.stat().st_mtime:
        _LIBRARY.parent.mkdir(exist_ok=True)
        command = [gcc, "-O3", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", str(_SOURCE), "-o", str(_LIBRARY)]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"gcc could not compile {_SOURCE}")
    library = ctypes.CDLL(str(_LIBRARY))
    library.run_loop.restype = ctypes.c_double
    return library


def map_file(path: str) -> npt.NDArray[np.uint8]:
    """The bytes of a file, mapped as the store maps them."""
    with Path(path).open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, np.uint8)


def drop_from_cache(paths: list[str]) -> float:
    """Drop files from the page cache. Returns the share of their pages that is still there (mapped ones stay)."""
    gc.collect()  # closes the mappings of stores that nothing refers to any more
    resident = total = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)  # only clean pages can be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        view = map_file(path)
        pages = np.zeros(-(-view.size // mmap.PAGESIZE), np.uint8)
        if libc.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(view.size), ctypes.c_void_p(pages.ctypes.data)
        ):
            raise OSError(ctypes.get_errno(), "mincore")
        resident += int((pages & 1).sum())
        total += pages.size
    return resident / total
