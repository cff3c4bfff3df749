"""Local files: read whole, put in place atomically, or created only if there is none."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tokenfeed.errors import ReadError, WriteError, describe_errno

__all__ = ["create_bytes", "read_bytes", "reading", "replace_bytes", "sync_folder", "writing"]


class reading(contextlib.AbstractContextManager[None]):  # noqa: N801
    """Turns an OSError into a ReadError that names the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, ReadError):
            what = describe_errno(error.errno) if error.errno else str(error)
            raise ReadError(f"cannot read {self._path}: {what}", filename=self._path, errno=error.errno) from error


def read_bytes(path: Path) -> bytes:
    with reading(str(path)):
        return path.read_bytes()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError into a WriteError that names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WriteError):
            raise
        what = describe_errno(error.errno) if error.errno else str(error)
        raise WriteError(f"cannot write {path}: {what}", filename=str(path), errno=error.errno) from error


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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
