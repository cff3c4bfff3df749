"""One file from a server to a folder: continued after any interruption, and checked before it gets its name.

`NAME.tmp` has the bytes that have arrived so far. Beside it, `NAME.tmp.json` says which version of the file they belong
to, so that a later process can ask for the rest of just that version. The writer holds a lock (flock) on `NAME.tmp`,
which the kernel releases however the process ends. A second process waits, and finds the file in place. Bytes of two
versions never mix: the file is emptied before the note of another version is written, and the note is written before
the first byte.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenfeed.errors import CorruptionError, DownloadError
from tokenfeed.storage.fetcher import get, is_etag
from tokenfeed.storage.local import reading, sync_folder, writing
from tokenfeed.storage.retries import Counters, Failed, Failure, Kind, Patience, Tries, classify, persist
from tokenfeed.storage.runtime import runtime
from tokenfeed.text.download.datasets import RemoteFile, look_up

__all__ = ["fetch"]

_PROGRESS_BYTES = 1 << 20
_SLOWEST = 1000  # bytes a second
_LONGEST = 7 * 86_400.0  # seconds for one answer, however large; `Patience.stall` notices when it does not go on
_PARQUET = b"PAR1"
_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # Lustre mounted without -o flock, some FUSE file systems

Report = Callable[[int, int | None], None]
"""Called with the bytes of the file that are there, and with its size (None: not known)."""


async def fetch(file: RemoteFile, folder: Path, patience: Patience, report: Report) -> bool:
    """Bring a file into a folder. Returns whether this call did; False if it was there already.

    The name appears when all bytes are on disk and checked: the size against every size that is known, the SHA-256 if
    the list of files or the hub gave one, and the magic bytes at both ends of a parquet file.

    A file that broke off is continued where it stopped, by this call or by a later one after a kill −9, if the server
    confirms that it still has the same version (ETag), or if a SHA-256 will tell in the end. Else it starts again.
    It is given up after `patience.total` seconds in which it did not come 1 MiB further than ever before. Wrong bytes
    are fetched a second time, once. After that, and for an answer that will not change (404, 403, a web page),
    DownloadError is raised; WriteError if the disk cannot be written to.
    """
    path = folder / file.name
    if _is_there(path, file.size):
        return False
    async with _claim(path, size=file.size, patience=patience.total) as partial:
        if partial is None:
            return False
        tries = Tries(file.url, doing="download", patience=patience, counters=Counters(), limited=False)
        if file.on_hub and file.sha256 is None:
            file = await persist(lambda: asyncio.to_thread(look_up, file), tries)
        transfer = _Transfer(file, partial, patience, tries, report)
        if partial.version.contradicts(transfer.listed):
            partial.restart()
        for _ in range(2):
            if partial.size != partial.version.size:
                await persist(transfer.receive, tries)
            problem = await asyncio.to_thread(partial.find_problem)
            if not problem:
                await asyncio.to_thread(partial.commit)
                return True
            partial.restart()
        raise DownloadError(f"{file.url}: {problem}, twice. Nothing of it is kept.")


class _Transfer:
    """The bytes of one file, as far as one answer after the other brings them."""

    def __init__(self, file: RemoteFile, partial: "_Partial", patience: Patience, tries: Tries, report: Report) -> None:
        self._file, self._partial, self._tries, self._report = file, partial, tries, report
        self._patience = replace(patience, total=_LONGEST)
        self._furthest = partial.size
        self.listed = _Version(None, file.size, file.sha256)

    async def receive(self) -> None:
        """One attempt at the bytes that are missing."""
        partial = self._partial
        if not partial.version.is_certain:
            partial.restart()
        result = await self._ask()
        version = self._check(result)
        if partial.size == 0:
            partial.begin(version)
        elif result.range[0] != partial.size or version.contradicts(partial.version):
            raise self._start_again("the server sent another part than it was asked for")
        size = version.size or 0
        partial.check_room(size)
        self._report(partial.size, size)
        since, before = time.monotonic(), partial.size
        async for chunk in result.stream(min_chunk_size=1):
            if partial.size + len(chunk) > size:
                raise self._start_again(f"more than the {size:,} bytes that were announced came")
            partial.append(chunk)
            self._report(partial.size, size)
            if partial.size >= self._furthest + _PROGRESS_BYTES:
                self._furthest = partial.size
                self._tries.restart()
            if (elapsed := time.monotonic() - since) > self._patience.stall:
                if partial.size - before < _SLOWEST * elapsed:
                    what = f"only {partial.size - before:,} bytes came in {elapsed:.1f} s"
                    raise Failed(Failure(Kind.TIMEOUT, what))
                since, before = time.monotonic(), partial.size
        if partial.size != partial.version.size:
            raise Failed(Failure(Kind.BROKEN, f"the connection ended after {partial.size:,} of {size:,} bytes"))

    async def _ask(self) -> Any:
        """The server's answer, whose body begins with the first byte that is missing."""
        start = self._partial.size
        if start == 0:
            return await get(self._file.url, self._patience)
        try:
            return await get(self._file.url, self._patience, span={"offset": start}, version=self._partial.version.etag)
        except CorruptionError:
            raise self._start_again("the file was replaced on the server") from None
        except runtime().obstore.exceptions.BaseError as error:
            failure = classify(error)
            if failure.kind in (Kind.CHANGED, Kind.NO_RANGES, Kind.WRONG_ANSWER) or failure.status == 416:
                raise self._start_again(failure.what) from None
            raise

    def _start_again(self, why: str) -> Failed:
        self._partial.restart()
        self._report(0, None)
        return Failed(Failure(Kind.WRONG_ANSWER, why))

    def _check(self, result: Any) -> "_Version":
        """The version that the server has; DownloadError if it sends something else than the file that is listed."""
        url, attributes, etag = self._file.url, result.attributes, result.meta["e_tag"]
        kind = attributes.get("Content-Type", "")
        if kind.lower().startswith("text/html") and not self._file.name.endswith((".html", ".htm")):
            raise DownloadError(
                f"{url}: got a web page instead of a file. Open the address in a browser to see why; it may ask for a "
                "login"
            )
        if attributes.get("Content-Encoding", "identity").lower() not in ("", "identity"):
            raise DownloadError(f"{url}: the server sends it encoded (gzip or the like), unasked")
        found = _Version(etag if is_etag(etag) else None, result.meta["size"])
        if found.contradicts(self.listed):
            raise DownloadError(
                f"{url}: the list of files says {self.listed.size:,} bytes, the server {found.size:,}. The file was "
                "changed since it was listed; run the download again"
            )
        return replace(found, sha256=self.listed.sha256)


@dataclass(frozen=True)
class _Version:
    """What is known of the bytes that a server has under an address."""

    etag: str | None = None
    """Strong ETag: equal means equal byte for byte."""
    size: int | None = None
    sha256: str | None = None

    @property
    def is_certain(self) -> bool:
        """Whether its bytes can be told from those of any other version, so that a part can be completed later."""
        return self.etag is not None or self.sha256 is not None

    def contradicts(self, other: "_Version") -> bool:
        """Whether something that is known of both differs."""
        both = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return any(None not in (mine, theirs) and mine != theirs for mine, theirs in both)


class _Partial:
    """The bytes so far, locked against other writers. Every method raises WriteError if the disk will not have it."""

    def __init__(self, path: Path, temporary: Path, fd: int, *, resumable: bool) -> None:
        self._path, self._temporary, self._note = path, temporary, _note(temporary)
        self._fd = fd
        self._resumable = resumable
        self._in_place = False
        self.size = os.fstat(fd).st_size
        self.version = _read_note(self._note)
        too_long = self.version.size is not None and self.size > self.version.size
        if too_long or (self.size and not self.version.is_certain):
            self.restart()

    def restart(self) -> None:
        """Throw away what has arrived."""
        with writing(self._temporary):
            os.ftruncate(self._fd, 0)
            self._note.unlink(missing_ok=True)
        self.size = 0
        self.version = _Version()

    def begin(self, version: _Version) -> None:
        """Note which version the next bytes belong to."""
        self.restart()
        self.version = version
        if version.is_certain and self._resumable:
            with writing(self._note):
                self._note.write_bytes(json.dumps(asdict(version)).encode())

    def check_room(self, size: int) -> None:
        """Raise a DownloadError if the disk cannot hold so many bytes in all, before it is full of them."""
        with writing(self._temporary):
            free = shutil.disk_usage(self._temporary.parent).free
        if size - self.size > free:
            raise DownloadError(f"{self._path}: the server announces {size:,} bytes, and {free:,} are free on the disk")

    def append(self, chunk: "bytes | memoryview") -> None:
        with writing(self._temporary):
            view = memoryview(chunk)
            while view:
                written = os.pwrite(self._fd, view, self.size)
                self.size += written
                view = view[written:]

    def find_problem(self) -> str:
        """What is wrong with a file that has arrived; an empty string if nothing is. Reads it mostly from the cache."""
        with reading(str(self._temporary)), self._temporary.open("rb", buffering=0) as file:
            expected = self.version.sha256
            if expected is not None and (actual := hashlib.file_digest(file, "sha256").hexdigest()) != expected:
                return f"sha256 is {actual}, expected {expected}"
            length = len(_PARQUET)
            first, last = os.pread(self._fd, length, 0), os.pread(self._fd, length, max(0, self.size - length))
        if self._path.suffix == ".parquet":
            if first != _PARQUET:
                return f"not a parquet file: it begins {first!r}, expected {_PARQUET!r}"
            if last != _PARQUET or self.size < 12:
                ending = f"it has {self.size:,} bytes and ends with {last!r}, expected {_PARQUET!r}"
                return f"not a whole parquet file: {ending}"
        return ""

    def commit(self) -> None:
        """Put the file in place, whole and on disk: anyone who sees the name sees all bytes."""
        with writing(self._path):
            os.fsync(self._fd)
            self._temporary.replace(self._path)
            self._note.unlink(missing_ok=True)
        self._in_place = True
        sync_folder(self._path.parent)

    def close(self) -> None:
        """Release the lock. A part that cannot be continued is removed."""
        if not self._in_place and not (self._resumable and self.size and self.version.is_certain):
            self._temporary.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
        os.close(self._fd)


@contextlib.asynccontextmanager
async def _claim(path: Path, *, size: int | None, patience: float) -> AsyncIterator[_Partial | None]:
    """The part of a file that is there, for this process alone; None if the file arrived while another process had it.

    Waits while another process downloads it, as long as that one's file grows at least once in `patience` seconds. On a
    file system without locks the part has a name of its own, and later processes do not continue it.
    """
    temporary, seen, since = _temporary(path), -1, time.monotonic()
    while (fd := _open_locked(temporary)) is None:
        grown = temporary.stat().st_size if temporary.exists() else -1
        if grown != seen:
            seen, since = grown, time.monotonic()
        elif time.monotonic() - since > patience:
            raise DownloadError(
                f"{temporary}: another process holds it and has added nothing for {patience:g} s. "
                "End that process, or choose another folder."
            )
        await asyncio.sleep(_POLL_SECONDS)
    if fd >= 0 and _is_there(path, size):
        temporary.unlink(missing_ok=True)
        os.close(fd)
        yield None
        return
    resumable = fd >= 0
    if not resumable:
        temporary.unlink(missing_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        fd = _open(temporary, os.O_EXCL)
    with contextlib.closing(_Partial(path, temporary, fd, resumable=resumable)) as partial:
        yield partial


def _open_locked(temporary: Path) -> int | None:
    """A descriptor with the lock; None while another process has it, −1 on a file system that knows no locks."""
    fd = _open(temporary)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), temporary.stat()):
            return fd  # else it was put in place, or removed, between opening and locking
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(fd)
        if error.errno in _NO_LOCKS:
            return -1
        raise
    os.close(fd)
    return None


def _open(path: Path, flags: int = 0) -> int:
    with writing(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)


def _is_there(path: Path, size: int | None) -> bool:
    """Whether a file has arrived: it exists, with the right size if that is known. Two system calls."""
    if not path.exists() or size not in (None, path.stat().st_size):
        return False
    if not _temporary(path).exists():  # a process may have been killed right after it put the file in place
        _note(_temporary(path)).unlink(missing_ok=True)
    return True


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _note(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.json")


def _read_note(note: Path) -> _Version:
    """The version in the note; an empty one if the note is missing, torn or strange."""
    try:
        version = _Version(**json.loads(note.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return _Version()
    texts = isinstance(version.etag, str | None) and isinstance(version.sha256, str | None)
    return version if texts and isinstance(version.size, int | None) else _Version()
