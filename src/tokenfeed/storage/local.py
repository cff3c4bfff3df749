"""Local files: read whole, put in place atomically, or created only if there is none; and how many may be open."""

import contextlib
import errno
import os
import resource
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tokenfeed.errors import ReadError, TokenfeedError, TooLargeError, WriteError, describe_errno

__all__ = [
    *("close_all", "create_bytes", "default_open_files", "open_binary", "open_regular", "read_at", "read_bytes"),
    *("reading", "replace_bytes", "sync_folder", "write_all", "writing"),
]


class reading(contextlib.AbstractContextManager[None]):  # noqa: N801
    """Turns an OSError into a ReadError that names the file."""

    _doing: str = "read"
    _error: type[ReadError | WriteError] = ReadError

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, TokenfeedError):
            what = describe_errno(error.errno) if error.errno else str(error)
            message = f"cannot {self._doing} {self._path}: {what}"
            raise self._error(message, filename=str(self._path), errno=error.errno) from error


class writing(reading):  # noqa: N801
    """Turns an OSError into a WriteError that names the file."""

    _doing, _error = "write", WriteError


def open_regular(path: str | Path) -> int:
    """A descriptor for reading a regular file. Anything else is refused: a FIFO would keep its reader waiting, and a
    device may never end."""
    with reading(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "")
            if not stat.S_ISREG(mode):
                raise OSError(f"it is a {'pipe' if stat.S_ISFIFO(mode) else 'device'}, not a regular file")
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def open_binary(path: str | Path) -> BinaryIO:
    """A regular file, open for reading."""
    descriptor = open_regular(path)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    try:
        with reading(path), open_binary(path) as file:
            return file.read()
    except MemoryError as error:
        raise TooLargeError(f"{path} does not fit memory") from error


def replace_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put a whole file in place: readers see the old bytes or the new ones, even if this process is killed."""
    with _beside(path, data, sync=sync) as temporary, writing(path):
        temporary.replace(path)
    if sync:
        sync_folder(path.parent)


def create_bytes(path: Path, data: bytes, *, sync: bool = True) -> bool:
    """Put a whole file in place unless there is one. Returns whether this call made it."""
    with _beside(path, data, sync=sync) as temporary, writing(path):
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    if sync:
        sync_folder(path.parent)
    return True


@contextlib.contextmanager
def _beside(path: Path, data: bytes, *, sync: bool) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with writing(path), temporary.open("xb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):  # a leftover does no harm, and `path` is as it should be
            temporary.unlink(missing_ok=True)


def read_at(descriptor: int, size: int, offset: int = 0) -> bytes:
    """Bytes [offset, offset + size); fewer only where the file ends. One read may return less than it was asked for."""
    data = b""
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Put bytes at a place. One write may take less than it was given."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def close_all(descriptors: list[int]) -> None:
    """Close files that were read, or of which errors no longer matter; the list is empty then."""
    while descriptors:
        with contextlib.suppress(OSError):  # one that fails does not keep the others open
            os.close(descriptors.pop())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def default_open_files() -> int:
    """A quarter of the files that this process may open, at most 4,096."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(1, min(4096, soft // 4))
