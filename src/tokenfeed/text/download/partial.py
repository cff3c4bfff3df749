"""`NAME.tmp`: the bytes of a file that have arrived so far.

Beside it, `NAME.tmp.json` says which version of the file they belong to, so that a later process can ask for the rest
of just that version. The writer holds a lock (flock) on `NAME.tmp`, which the kernel releases however the process ends.
A second process waits, and finds the file in place. Bytes of two versions never mix: the file is emptied before the
note of another version is written, and the note is written before the first byte.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenfeed.errors import DownloadError
from tokenfeed.storage.local import reading, sync_folder, writing

__all__ = ["Partial", "Version", "claim", "is_there"]

_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # Lustre mounted without -o flock, some FUSE file systems


@dataclass(frozen=True)
class Version:
    """What is known of the bytes that a server has under an address."""

    etag: str | None = None
    """Strong ETag: equal means equal byte for byte."""
    size: int | None = None
    sha256: str | None = None
    """Checksum in hexadecimal."""

    @property
    def is_certain(self) -> bool:
        """Whether its bytes can be told from those of any other version, so that a part can be completed later."""
        return self.etag is not None or self.sha256 is not None

    def contradicts(self, other: "Version") -> bool:
        """Whether something that is known of both differs."""
        mine, theirs = asdict(self), asdict(other)
        return any(None not in (mine[name], theirs[name]) and mine[name] != theirs[name] for name in mine)


def is_there(path: Path, size: int | None) -> bool:
    """Whether a file has arrived: it exists, with the right size if that is known. Two system calls."""
    try:
        actual = path.stat().st_size
    except FileNotFoundError:
        return False
    if size not in (None, actual):
        return False
    note = _note(_temporary(path))
    if note.exists() and not _temporary(path).exists():  # a process was killed right after it put the file in place
        note.unlink(missing_ok=True)
    return True


class Partial:
    """The bytes so far, locked against other writers. Every method raises WriteError if the disk will not have it."""

    def __init__(self, path: Path, temporary: Path, fd: int, *, resumable: bool) -> None:
        self.path = path
        self._temporary = temporary
        self._fd = fd
        self._resumable = resumable
        self._in_place = False
        self.size = os.fstat(fd).st_size
        self.version = _read_note(temporary)
        if self.version.size is not None and self.size > self.version.size:
            self.restart()
        if not self.version.is_certain and self.size:
            self.restart()

    @property
    def is_complete(self) -> bool:
        return self.size == self.version.size

    def restart(self) -> None:
        """Throw away what has arrived."""
        with writing(self._temporary):
            os.ftruncate(self._fd, 0)
            _note(self._temporary).unlink(missing_ok=True)
        self.size = 0
        self.version = Version()

    def begin(self, version: Version) -> None:
        """Note which version the next bytes belong to."""
        assert self.size == 0
        self.version = version
        note = _note(self._temporary)
        with writing(note):
            if version.is_certain and self._resumable:
                note.write_bytes(json.dumps(asdict(version)).encode())
            else:
                note.unlink(missing_ok=True)

    def append(self, chunk: "bytes | memoryview") -> None:
        with writing(self._temporary):
            view = memoryview(chunk)
            while view:
                written = os.pwrite(self._fd, view, self.size)
                self.size += written
                view = view[written:]

    def sha256(self) -> str:
        """The checksum of all bytes. Reads them once, mostly from the page cache."""
        with reading(str(self._temporary)), self._temporary.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def ends(self, length: int) -> tuple[bytes, bytes]:
        """The first and the last bytes."""
        with reading(str(self._temporary)):
            return os.pread(self._fd, length, 0), os.pread(self._fd, length, max(0, self.size - length))

    def commit(self) -> None:
        """Put the file in place, whole and on disk: anyone who sees the name sees all bytes."""
        with writing(self.path):
            os.fsync(self._fd)
            self._temporary.replace(self.path)
            _note(self._temporary).unlink(missing_ok=True)
        self._in_place = True
        sync_folder(self.path.parent)

    def close(self) -> None:
        """Release the lock. A part that cannot be continued is removed."""
        if not self._in_place and not (self._resumable and self.size and self.version.is_certain):
            self._temporary.unlink(missing_ok=True)
            _note(self._temporary).unlink(missing_ok=True)
        os.close(self._fd)


@contextlib.asynccontextmanager
async def claim(path: Path, *, size: int | None, patience: float) -> AsyncIterator[Partial | None]:
    """The part of a file that is there, for this process alone; None if the file arrived while another process had it.

    Waits while another process downloads it, as long as that one's file grows at least once in `patience` seconds. On a
    file system without locks the part has a name of its own, and later processes do not continue it.
    """
    partial = await _wait(path, size, patience)
    try:
        yield partial
    finally:
        if partial is not None:
            partial.close()


async def _wait(path: Path, size: int | None, patience: float) -> Partial | None:
    temporary, seen, since = _temporary(path), -1, time.monotonic()
    while True:
        with writing(temporary):
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        claimed = False
        try:
            locked = _lock(fd)
            if locked is None:
                temporary.unlink(missing_ok=True)
                return _unlocked(path)
            if locked and _is_at(fd, temporary):  # else it was put in place, or removed, between opening and locking
                if is_there(path, size):
                    temporary.unlink(missing_ok=True)
                    return None
                partial = Partial(path, temporary, fd, resumable=True)
                claimed = True
                return partial
            grown = os.fstat(fd).st_size
        finally:
            if not claimed:
                os.close(fd)
        if grown != seen:
            seen, since = grown, time.monotonic()
        elif time.monotonic() - since > patience:
            raise DownloadError(
                f"{temporary}: another process holds it and has added nothing for {patience:g} s. "
                "End that process, or choose another folder."
            )
        if not locked:
            await asyncio.sleep(_POLL_SECONDS)


def _lock(fd: int) -> bool | None:
    """Whether this process has the lock now; None if the file system knows no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _unlocked(path: Path) -> Partial:
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    with writing(temporary):
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return Partial(path, temporary, fd, resumable=False)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _note(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.json")


def _read_note(temporary: Path) -> Version:
    """The version in the note; an empty one if the note is missing, torn or strange."""
    try:
        fields = json.loads(_note(temporary).read_bytes())
        version = Version(fields["etag"], fields["size"], fields["sha256"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return Version()
    texts = isinstance(version.etag, str | None) and isinstance(version.sha256, str | None)
    return version if texts and isinstance(version.size, int | None) else Version()
