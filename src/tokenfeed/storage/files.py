"""Numbered files, opened on first use and read by kernels (`kernels/posix.py` describes the table).

The first `max_open_files` files that are touched stay open for as long as the table lives. Every further file is opened
and closed around each read. Under a global shuffle all files are equally likely to be next, so no eviction policy would
do better; and because a record, once made, never changes, threads share the table without a lock.
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
from tokenfeed.kernels import checked, extents, posix
from tokenfeed.kernels.jit import address_of
from tokenfeed.storage.address import is_remote
from tokenfeed.storage.local import close_all, default_open_files, open_regular, read_at, reading
from tokenfeed.storage.remote import Remote
from tokenfeed.types import Array

if TYPE_CHECKING:
    from tokenfeed.storage.blocks import BlockCache

__all__ = ["Backend", "Extents", "FileTable", "Part"]

Backend = Literal["pread", "mmap"]

_KEPT_BYTES = 64 << 20


class Extents(NamedTuple):
    """The pieces of a file that hold its items (`kernels/extents.py`)."""

    firsts: Array
    """First byte of each piece, as if they were one after the other; and the end."""
    places: Array
    """Byte of the file at which each piece begins."""


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
    """Name for the content of a remote file; its address and size are used where this is empty."""
    sums: "Part | None" = None
    """File of block checksums that every read is compared with (`kernels/checked.py`)."""
    first_sum: int = 0
    """Number of the checksum of its first block."""
    bits: int = 0
    """Bits of one number of a column that is packed; 0 for any other file."""
    extents: Extents | None = None
    """Pieces of a file whose items do not lie in one piece."""

    @property
    def num_bytes(self) -> int:
        """Size of its items."""
        return self.file_bytes - self.byte_start if self.extents is None else int(self.extents.firsts[-1])


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
        max_open_files: int | None = None,
        remote: Remote | None = None,
    ) -> None:
        """`remote` says how remote files are read; without it there must be none."""
        if backend not in ("pread", "mmap"):
            raise ArgumentError(f"backend is {backend!r}; it must be 'pread' or 'mmap'")
        if max_open_files is not None and max_open_files < 0:
            raise ArgumentError(f"max_open_files is {max_open_files}; it must be at least 0")
        self.rows = np.zeros(num_files, posix.FILE)
        self._describe = describe
        self._backend = backend
        self._room = default_open_files() if max_open_files is None else max_open_files
        self._bytes_kept = 0
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._kept_alive: list[object] = []
        weakref.finalize(self, close_all, self._descriptors)
        _ALL.add(self)
        self._plain = self.rows[:0]  # the files that are checked, as they lie, then their files of sums
        self._sums: list[Part] = []
        self._sums_numbers: dict[str, int] = {}
        self._checks: dict[int, Array] = {}
        self.blocks: BlockCache | None = None
        if remote is not None:
            from tokenfeed.storage import blocks  # the client of servers takes 60 ms to import

            sums = self._sums

            def describe_remote(number: int) -> Part:
                part = describe(number) if number < num_files else sums[number - num_files]
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
            elif part.sums is not None:
                self._open_checked(number, part, part.sums)
            elif part.extents is not None:
                self._open_extents(number, part, part.extents)
            else:
                self._open_part(row, part)

    def _about(self, kind: Any, read: Any, number: int, **fields: int) -> Any:
        """The record by which a kernel reads a file through another table, of the files as they lie."""
        if len(self._plain) == 0:
            self._plain = np.zeros(2 * len(self.rows), posix.FILE)
        table = {"files": self._plain.ctypes.data, "num_files": len(self._plain)}
        return posix.record(kind, read=address_of(read), data=number, **table, **fields)

    def _open_extents(self, number: int, part: Part, pieces: Extents) -> None:
        """A file that is read in pieces."""
        places = {name: self._keep(np.ascontiguousarray(each, np.int64)) for name, each in pieces._asdict().items()}
        about = self._about(extents.EXTENTS, extents.read_extents, number, count=pieces.places.size, **places)
        self._open_part(self._plain[number], part)
        _publish(self.rows[number], reader=self._keep(about), size=part.num_bytes)

    def _open_checked(self, number: int, part: Part, sums: Part) -> None:
        """A file that is kept in memory is checked now, any other whenever it is read."""
        check = self._about(checked.CHECK, checked.read_checked, number, first_sum=part.first_sum)
        check["sums"] = self._open_sums(sums)
        self._checks[number] = check
        row, plain = self.rows[number], self._plain[number]
        if not self._open_part(plain, part):
            _publish(row, reader=check.ctypes.data, size=part.file_bytes, start=part.byte_start, bits=part.bits)
            return
        status = checked.read_whole(check, part.file_bytes)
        if status != posix.OK:
            self._plain[number] = 0
            raise self.failure(status, number)
        self.rows[number] = plain

    def _open_sums(self, sums: Part) -> int:
        """The number of a file of sums, which several files share."""
        if sums.path not in self._sums_numbers:
            number = len(self.rows) + len(self._sums)
            self._open_part(self._plain[number], sums)
            self._sums.append(sums)
            self._sums_numbers[sums.path] = number
        return self._sums_numbers[sums.path]

    def call(self, kernel: Callable[..., Any], *arguments: Any) -> Any:
        """Call a kernel that reads these files. If blocks of remote files are missing, they are fetched, and the
        kernel is called again; blocks that arrived damaged are fetched once more."""
        cache = self.blocks
        if cache is None:
            return kernel(*arguments)
        tried: set[tuple[int, int]] = set()
        while True:
            with cache.counting() as discount:
                answer = kernel(*arguments)
                missing = cache.take_missing()
                if answer[0] != posix.OK:
                    discount()
            if answer[0] == posix.MISSING:
                cache.load(missing)
            elif answer[0] == posix.DAMAGED and self._plain["reader"][answer[1]] != 0:
                place = answer[1], int(self._checks[answer[1]]["damaged_block"][0])
                if place in tried:
                    return answer
                tried.add(place)
                cache.reload(self._ranges_of_block(*place))
            else:
                return answer

    def _ranges_of_block(self, number: int, block: int) -> list[tuple[int, int, int]]:
        """(file, start, stop) of the bytes that a block of a remote file is checked by: its own, and its sum."""
        check, size = self._checks[number][0], checked.CHECKED_BYTES
        stop = min((block + 1) * size, int(self.rows["size"][number]))
        sums = int(check["sums"])
        start = int(self._plain["start"][sums]) - 1 + (int(check["first_sum"]) + block) * checked.SUM_BYTES
        return [(number, block * size, stop), (sums, start, start + checked.SUM_BYTES)]

    def announce(self, kernel: Callable[..., Any], *arguments: Any, block_bytes: int = 0) -> Any:
        """Call a kernel that notes what it would read, and begin to fetch what is missing, in blocks of that size."""
        assert self.blocks is not None
        with self.blocks.guard:
            answer = kernel(*arguments)
            missing = self.blocks.take_missing()
        self.blocks.announce(missing, block_bytes)
        return answer

    def _open_part(self, row: Any, part: Part) -> bool:
        """Make a file readable as it lies. Returns whether it was read into memory.

        A remote one sends no request: every answer of the server, the first one too, is compared with the description.
        """
        if is_remote(part.path):
            assert self.blocks is not None
            self.blocks.check_size(part)
            _publish(row, reader=self.blocks.address, size=part.file_bytes, start=part.byte_start, bits=part.bits)
            return False
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
        _publish(row, size=part.file_bytes, start=part.byte_start, bits=part.bits, **place)
        return is_kept

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
        if status == posix.DAMAGED:
            check, size = self._checks[number][0], checked.CHECKED_BYTES
            block, sums = int(check["damaged_block"]), self._sums[int(check["sums"]) - len(self.rows)]
            return CorruptionError(
                f"{name} is damaged in block {block:,}, bytes [{block * size:,}, {(block + 1) * size:,}): they are not "
                f"what {sums.path} has the checksum of. Nothing of them was delivered. `tokenfeed verify` says what "
                "else is damaged; restore the file from a copy, or write it again."
            )
        return ReadError(f"cannot read {name}: {describe_errno(status)}", filename=name, errno=status)


def _publish(row: Any, *, start: int = 0, bits: int = 0, handle: int = posix.TRANSIENT, **fields: int) -> None:
    """Fill in the record of a file, the handle last: kernels that other threads run may look at it at any time."""
    for name, value in fields.items():
        row[name] = value
    row["start"] = start + 1
    row["bits"] = posix.PLAIN + bits
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
    if size != part.file_bytes:
        raise CorruptionError(f"{part.path} has {size:,} bytes; its manifest says {part.file_bytes:,}")
    if header != part.header:
        raise CorruptionError(
            f"{part.path} does not begin as its manifest says: expected {part.header!r}, found {header!r}"
        )
