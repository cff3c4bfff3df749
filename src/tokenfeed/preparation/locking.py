"""Who works on a store. Locks of the kernel: gone with the process that holds them, however it ends."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tokenfeed.errors import StateError
from tokenfeed.storage.local import writing

__all__ = ["alone", "beside_others"]

_PATIENCE_SECONDS = 10.0
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator["Hold"]:
    """Held by one run, and by nobody else until it lets its own workers in; waits for those of a killed run to end."""
    with _opened(path) as hold:
        hold.take(exclusive=True)
        yield hold


@contextlib.contextmanager
def beside_others(path: Path | None) -> Iterator["Hold"]:
    """Held together with others who do the same: workers of one run, or runs that do parts of it."""
    with _opened(path) as hold:
        hold.take(exclusive=False)
        yield hold


class Hold:
    """An open lock file; or none, which holds nothing."""

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self._descriptor = descriptor
        self._path = path

    def let_workers_in(self) -> None:
        """From being alone to being beside others."""
        self.take(exclusive=False)

    def is_alone(self) -> bool:
        """Whether nobody else holds it; if so, nobody else can."""
        import fcntl

        if self._path is None:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def take(self, *, exclusive: bool) -> None:
        import fcntl

        if self._path is None:
            return
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StateError(
                        f"another run is preparing {self._path.parents[1]} (it holds {self._path}). Wait for it, or "
                        "stop it: what it has done is kept."
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    with writing(self._path):
                        raise
                return  # a file system without locks
            else:
                return


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[Hold]:
    if path is None:
        yield Hold(-1, None)
        return
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield Hold(descriptor, path)
    finally:
        with contextlib.suppress(OSError):  # nothing was written to it
            os.close(descriptor)
