"""`FileLock`: a lock on a local file or folder that the kernel takes back when its process ends, however it ends."""

import contextlib
import errno
import fcntl
import os
import time
import weakref
from pathlib import Path

from tokenfeed.errors import WriteError
from tokenfeed.storage.local import close_all, writing

__all__ = ["FileLock"]

_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems without locks; NFS has none for folders."""
_POLL_SECONDS = 0.02


class FileLock:
    """Held alone, or together with others who share it. A file that is not there is made; a folder must exist.

    Where the file system has no locks, everyone gets it at once, and `is_known` is False.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_known = True
        self._descriptors: list[int] = []  # one at most; a list, so that what is collected can still be closed
        weakref.finalize(self, close_all, self._descriptors)

    @property
    def descriptor(self) -> int:
        """Of the file, open for reading and writing, while it is held."""
        return self._descriptors[0]

    def take(self, *, exclusive: bool, patience: float = 0.0) -> bool:
        """Hold it alone, or shared. False if others do not allow that within `patience` seconds: then it is not held.

        Also changes how it is held; if that fails, nothing is held any more.
        """
        deadline = time.monotonic() + patience
        while True:
            if not self._descriptors:
                self._open()
            try:
                fcntl.flock(self.descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                self.is_known = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self.release()
                    return False
                time.sleep(_POLL_SECONDS)
                continue
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    self.release()
                    with writing(self.path):
                        raise
                self.is_known = False
            try:
                if self.is_current():
                    return True
            except WriteError:
                self.release()
                raise
            self.release()  # it was removed or replaced before it was locked: lock what is there now

    def _open(self) -> None:
        with writing(self.path):
            flags = os.O_RDONLY if self.path.is_dir() else os.O_RDWR | os.O_CREAT
            self._descriptors.append(os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666))

    def is_current(self) -> bool:
        """Whether what is locked is still what lies at the path."""
        try:
            with writing(self.path):
                return bool(self._descriptors) and os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except WriteError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return False

    def release(self, *, remove: bool = False) -> None:
        """Let go of it. `remove` removes the file first, which only one that holds it alone may do."""
        if remove:
            with contextlib.suppress(OSError):
                if self.is_current():
                    self.path.unlink()
        close_all(self._descriptors)

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
