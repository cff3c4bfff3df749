"""One file from a server to a folder: continued after any interruption, and checked before it gets its name."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenfeed.errors import CorruptionError, DownloadError
from tokenfeed.storage.failures import Failed, Failure, Kind, classify
from tokenfeed.storage.fetcher import get, is_etag
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.retries import Counters, Tries, persist
from tokenfeed.storage.runtime import runtime
from tokenfeed.text.download import hub
from tokenfeed.text.download.datasets import RemoteFile
from tokenfeed.text.download.partial import Partial, Version, claim, is_there

__all__ = ["fetch"]

_PROGRESS_BYTES = 1 << 20
_SLOWEST = 1000  # bytes a second
_LONGEST = 7 * 86_400.0  # seconds for one answer, however large; `Patience.stall` notices when it does not go on
_PARQUET = b"PAR1"

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
    if is_there(path, file.size):
        return False
    async with claim(path, size=file.size, patience=patience.total) as partial:
        if partial is None:
            return False
        tries = Tries(file.url, doing="download", patience=patience, counters=Counters(), limited=False)
        if file.on_hub and file.sha256 is None:
            file = await persist(lambda: asyncio.to_thread(hub.look_up, file), tries)
        transfer = _Transfer(file, partial, patience, tries, report)
        if partial.version.contradicts(transfer.listed):
            partial.restart()
        for last in (False, True):
            if not partial.is_complete:
                await persist(transfer.receive, tries)
            problem = await asyncio.to_thread(_problem, partial)
            if not problem:
                await asyncio.to_thread(partial.commit)
                return True
            partial.restart()
            if last:
                raise DownloadError(f"{file.url}: {problem}, twice. Nothing of it is kept.")
        return False


class _Transfer:
    """The bytes of one file, as far as one answer after the other brings them."""

    def __init__(self, file: RemoteFile, partial: Partial, patience: Patience, tries: Tries, report: Report) -> None:
        self._file = file
        self._partial = partial
        self._patience = replace(patience, total=_LONGEST)
        self._tries = tries
        self._report = report
        self._furthest = partial.size
        self.listed = Version(None, file.size, file.sha256)

    async def receive(self) -> None:
        """One attempt at the bytes that are missing."""
        partial = self._partial
        if not partial.version.is_certain:
            partial.restart()
        result = await self._ask()
        self._refuse(result.attributes)
        version = self._version(result.meta)
        if partial.size == 0:
            partial.begin(version)
        elif result.range[0] != partial.size or version.contradicts(partial.version):
            raise self._start_again("the server sent another part than it was asked for")
        size = version.size or 0
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
        if not partial.is_complete:
            raise Failed(Failure(Kind.BROKEN, f"the connection ended after {partial.size:,} of {size:,} bytes"))

    async def _ask(self) -> Any:
        """The server's answer, whose body begins with the first byte that is missing."""
        start, known = self._partial.size, runtime().obstore.exceptions
        if start == 0:
            return await get(self._file.url, self._patience)
        try:
            return await get(self._file.url, self._patience, span={"offset": start}, version=self._partial.version.etag)
        except CorruptionError:
            raise self._start_again("the file was replaced on the server") from None
        except known.BaseError as error:
            failure = classify(error)
            if failure.kind in (Kind.CHANGED, Kind.NO_RANGES, Kind.WRONG_ANSWER) or failure.status == 416:
                raise self._start_again(failure.what) from None
            raise

    def _start_again(self, why: str) -> Failed:
        """Throw away what has arrived."""
        self._partial.restart()
        self._report(0, None)
        return Failed(Failure(Kind.WRONG_ANSWER, why))

    def _refuse(self, attributes: Any) -> None:
        """Raise if the answer is a web page, or is encoded."""
        kind = attributes.get("Content-Type", "")
        if kind.lower().startswith("text/html") and not self._file.name.endswith((".html", ".htm")):
            raise DownloadError(
                f"{self._file.url}: got a web page instead of a file. Open the address in a browser to see why; it may "
                "ask for a login"
            )
        if attributes.get("Content-Encoding", "identity").lower() not in ("", "identity"):
            raise DownloadError(f"{self._file.url}: the server sends it encoded (gzip or the like), unasked")

    def _version(self, meta: Any) -> Version:
        """What the server says it has; DownloadError if that is not what the list of files says."""
        etag = meta["e_tag"]
        found = Version(etag if is_etag(etag) else None, meta["size"])
        if found.contradicts(self.listed):
            raise DownloadError(
                f"{self._file.url}: the list of files says {self.listed.size:,} bytes, the server {found.size:,}. The "
                "file was changed since it was listed; run the download again"
            )
        return replace(found, sha256=self.listed.sha256)


def _problem(partial: Partial) -> str:
    """What is wrong with a file that has arrived; an empty string if nothing is."""
    expected = partial.version.sha256
    if expected is not None and (actual := partial.sha256()) != expected:
        return f"sha256 is {actual}, expected {expected}"
    if partial.path.suffix == ".parquet":
        first, last = partial.ends(len(_PARQUET))
        if first != _PARQUET:
            return f"not a parquet file: it begins {first!r}, expected {_PARQUET!r}"
        if last != _PARQUET or partial.size < 12:
            return (
                f"not a whole parquet file: it has {partial.size:,} bytes and ends with {last!r}, expected {_PARQUET!r}"
            )
    return ""
