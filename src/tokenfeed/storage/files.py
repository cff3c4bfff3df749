"""Numbered files, opened on first use and read by kernels (`kernels/posix.py` describes the table).

The first files that are touched stay open for as long as the table lives, up to a quarter of what the process may open.
Every further file is opened and closed around each read. Under a global shuffle all files are equally likely to be
next, so no eviction policy would do better; and because a record, once made, never changes, threads share the table
without a lock.
"""

import contextlib
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tokenfeed.errors import ArgumentError, CorruptionError, ReadError, TruncatedError, describe_errno
from tokenfeed.kernels import posix
from tokenfeed.storage.address import is_remote
from tokenfeed.storage.local import close_all, default_open_files, open_regular, read_at, reading
from tokenfeed.storage.remote import Remote
from tokenfeed.types import Array

if TYPE_CHECKING:
    from tokenfeed.storage.blocks import BlockCache

__all__ = ["Backend", "FileTable", "Part", "check_size"]

Backend = Literal["pread", "mmap"]

_KEPT_BYTES = 64 << 20


class Part(NamedTuple):
    """The items of one column or span file, and what its file must look like."""

    path: str
    file_bytes: int
    byte_start: int = 0
    """Byte at which the items begin."""
    header: bytes = b""
    """Bytes the file must begin with."""
    kept: float = 0.0
    """Share of the memory for kept files up to which this one is read once and kept: for small files needed often."""
    identity: str = ""
    """Name for the content of a file of a store; that of a remote file is its address and size where this is empty."""
    sums: "Part | None" = None
    """File of the checksums of its blocks, for `verify`."""
    first_sum: int = 0
    """Number of the checksum of its first block."""


class FileTable:
    """Files 0 … num_files − 1, each described by `describe(number)`: a file, or an array that stands for one.

    Nothing is opened, and `describe` is not called, before a kernel asks for a file. Kernels take `rows`, an array of
    `posix.FILE`.
    """

    def __init__(
        self,
        num_files: int,
        describe: Callable[[int], Part | Array],
        *,
        backend: Backend = "pread",
        remote: Remote | None = None,
    ) -> None:
        """`remote` says how remote files are read; without it there must be none."""
        if backend not in ("pread", "mmap"):
            raise ArgumentError(f"backend is {backend!r}; it must be 'pread' or 'mmap'")
        self.rows = np.zeros(num_files, posix.FILE)
        self._describe = describe
        self._backend = backend
        self._room = default_open_files()
        self._bytes_kept = 0
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._kept_alive: list[object] = []
        weakref.finalize(self, close_all, self._descriptors)
        _ALL.add(self)
        self.blocks: BlockCache | None = None
        if remote is not None:
            from tokenfeed.storage import blocks  # the client of servers takes 60 ms to import

            def describe_remote(number: int) -> Part:
                part = describe(number)
                assert isinstance(part, Part)
                return part

            self.blocks = blocks.BlockCache(describe_remote, remote)

    def name(self, number: int) -> str:
        """The path of a file, for messages."""
        part = self._describe(number)
        return part.path if isinstance(part, Part) else "a table in memory"

    def open(self, number: int) -> None:
        """Make a file readable by kernels, after checking that it is what it should be. Idempotent, thread-safe."""
        with self._lock:
            row = self.rows[number]
            if row["handle"] != 0:
                return
            part = self._describe(number)
            if not isinstance(part, Part):
                array = np.ascontiguousarray(part, np.int64)
                _publish(row, address=self._keep(array), size=array.nbytes)
            else:
                self._open_part(row, part)

    def call(self, kernel: Callable[..., Any], *arguments: Any) -> Any:
        """Call a kernel that reads these files; again, once blocks of remote files that it missed are fetched."""
        cache = self.blocks
        if cache is None:
            return kernel(*arguments)
        while True:
            with cache.counting() as discount:
                answer = kernel(*arguments)
                missing = cache.take_missing()
                if answer[0] != posix.OK:
                    discount()
            if answer[0] != posix.MISSING:
                return answer
            cache.load(missing)

    def announce(self, kernel: Callable[..., Any], *arguments: Any, block_bytes: int = 0) -> Any:
        """Call a kernel that notes what it would read, and begin to fetch what is missing, in blocks of that size."""
        assert self.blocks is not None
        with self.blocks.guard:
            answer = kernel(*arguments)
            missing = self.blocks.take_missing()
        self.blocks.announce(missing, block_bytes)
        return answer

    def _open_part(self, row: Any, part: Part) -> None:
        """Fill in the record of a file.

        A remote one sends no request: every answer of the server, the first one too, is compared with the description.
        """
        if is_remote(part.path):
            assert self.blocks is not None
            self.blocks.check_size(part)
            _publish(row, reader=self.blocks.address, size=part.file_bytes, start=part.byte_start)
            return
        is_kept = part.kept > 0 and self._bytes_kept + part.file_bytes <= part.kept * _KEPT_BYTES
        fd = open_regular(part.path)
        stays_open = False
        place = {}
        try:
            _check(fd, part)
            if is_kept:
                with reading(part.path):
                    data = read_at(fd, part.file_bytes)
                if len(data) < part.file_bytes:
                    raise TruncatedError(f"{part.path} ended while it was being read", filename=part.path)
                self._bytes_kept += part.file_bytes
                place["address"] = self._keep(np.frombuffer(data, np.uint8))
            elif self._room == 0:
                place["path"] = self._keep(np.frombuffer(os.fsencode(part.path) + b"\0", np.uint8))
            elif self._backend == "mmap" and part.file_bytes > 0:
                with reading(part.path):
                    mapping = mmap.mmap(fd, part.file_bytes, prot=mmap.PROT_READ)
                mapping.madvise(mmap.MADV_RANDOM)
                place["address"] = self._keep(np.frombuffer(mapping, np.uint8))
                self._room -= 1
            else:
                if sys.platform == "linux":
                    with contextlib.suppress(OSError):  # only a hint, and some file systems refuse it
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                place["handle"] = fd + 1
                self._descriptors.append(fd)
                self._room -= 1
                stays_open = True
        finally:
            if not stays_open:
                close_all([fd])
        _publish(row, size=part.file_bytes, start=part.byte_start, **place)

    def _keep(self, array: Array) -> int:
        """The address of an array, which lives from now on as long as the table does."""
        self._kept_alive.append(array)
        return array.ctypes.data

    def failure(self, status: int, number: int) -> Exception:
        """The error for a kernel's negative answer about a file."""
        name, size = self.name(number), int(self.rows["size"][number])
        if status == posix.END_OF_FILE:
            return TruncatedError(
                f"{name} ended while it was being read: it is now shorter than the {size:,} bytes it had when it was "
                "opened. Something truncated or replaced it.",
                filename=name,
            )
        return ReadError(f"cannot read {name}: {describe_errno(status)}", filename=name, errno=status)


def _publish(row: Any, *, start: int = 0, handle: int = posix.TRANSIENT, **fields: int) -> None:
    """Fill in the record of a file, the handle last: kernels that other threads run may look at it at any time."""
    for name, value in fields.items():
        row[name] = value
    row["start"] = start + 1
    row["handle"] = handle


_ALL: "weakref.WeakSet[FileTable]" = weakref.WeakSet()


def _renew_locks() -> None:
    """After a fork: a thread that the child does not have may have been opening a file."""
    for table in _ALL:
        table._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def _check(fd: int, part: Part) -> None:
    with reading(part.path):
        size, header = os.fstat(fd).st_size, read_at(fd, len(part.header))
    check_size(part, size)
    if header != part.header:
        raise CorruptionError(f"{part.path} begins with {header!r}, expected {part.header!r}{_advice(part)}")


def check_size(part: Part, size: int) -> None:
    """Raise a CorruptionError unless the file has the size that it should have."""
    if size != part.file_bytes:
        raise CorruptionError(f"{part.path} has {size:,} bytes, expected {part.file_bytes:,}{_advice(part)}")


def _advice(part: Part) -> str:
    return ". `tokenfeed verify` names every damaged file of the store" if part.identity else ""
