"""Range requests by urllib3, for servers whose right answers obstore refuses.

Some (`rclone serve s3`, lakeFS) give the range that was asked for, say so in Content-Range, and call it 200 instead of
206. They are asked again by a signed address; an answer without the right Content-Range is refused here too.
"""

import asyncio
import queue
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from tokenfeed.storage.address import Address, secret_of
from tokenfeed.storage.clients import Client
from tokenfeed.storage.failures import Failure, Kind
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.requests import Failed
from tokenfeed.storage.runtime import runtime

__all__ = ["Answer", "get_range"]

_THREADS = 64
_SIGNED_FOR = timedelta(minutes=15)
_MOST_SIGNED = 10_000
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Answer(NamedTuple):
    data: bytes
    start: int
    stop: int
    size: int | None
    version: str | None


async def get_range(
    client: Client, address: Address, uri: str, *, start: int, stop: int, version: str | None, patience: Patience
) -> Answer:
    """Bytes [start, stop) of an object."""
    url = await _signed(client, address, uri)
    headers = {"Range": f"bytes={start}-{stop - 1}"}
    if version is not None:
        headers["If-Match"] = version
    return await _threads().run(lambda: _get(url, headers, patience))


def _get(url: str, headers: dict[str, str], patience: Patience) -> Answer:
    import urllib3

    timeout = urllib3.Timeout(connect=patience.connect, read=patience.stall)
    try:
        answer = _pool().request("GET", url, headers=headers, timeout=timeout, retries=False, preload_content=False)
        try:
            return _check(answer, answer.headers)
        except BaseException:
            answer.close()  # there may be a gigabyte under way
            raise
        finally:
            answer.release_conn()
    except urllib3.exceptions.NewConnectionError:
        raise Failed(Failure(Kind.UNREACHABLE, "the server cannot be reached")) from None
    except urllib3.exceptions.TimeoutError:
        raise Failed(Failure(Kind.TIMEOUT, "the server stalled")) from None
    except (urllib3.exceptions.HTTPError, OSError):
        raise Failed(Failure(Kind.BROKEN, "the connection broke")) from None


def _check(answer: Any, headers: Any) -> Answer:
    if answer.status not in (200, 206):
        kind = Kind.CHANGED if answer.status == 412 else Kind.STATUS
        raise Failed(Failure(kind, f"the server answered {answer.status}", answer.status))
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if not found:
        raise Failed(Failure(Kind.NO_RANGES, "the server answers with the whole object where a part was asked for"))
    size = None if found[3] == "*" else int(found[3])
    return Answer(answer.read(), int(found[1]), int(found[2]) + 1, size, _version(headers))


def _version(headers: Any) -> str | None:
    """As `fetcher.info_of` has it."""
    if "ETag" in headers or "Last-Modified" not in headers:
        version: str | None = headers.get("ETag")
        return version
    try:
        return f"modified {parsedate_to_datetime(headers['Last-Modified']).isoformat()}"
    except ValueError:
        return None


async def _signed(client: Client, address: Address, uri: str) -> str:
    """An address by which anybody may read the object for a while."""
    if address.is_http:
        secret = secret_of(uri)
        login, query = f"{secret.login}@" if secret.login else "", f"?{secret.query}" if secret.query else ""
        return f"{address.scheme}://{login}{address.host}/{quote(address.key)}{query}"
    until, url = client.signed.get(address.key, (0.0, ""))
    if until < time.monotonic():
        url = await runtime().obstore.sign_async(client.store, "GET", address.key, _SIGNED_FOR)
        if len(client.signed) >= _MOST_SIGNED:
            client.signed.clear()
        client.signed[address.key] = time.monotonic() + _SIGNED_FOR.total_seconds() / 2, url
    return url


def _pool() -> Any:
    import urllib3

    kept = runtime().kept
    return kept.get("urllib3") or kept.setdefault("urllib3", urllib3.PoolManager(maxsize=_THREADS))


def _threads() -> "_Threads":
    kept = runtime().kept
    found: _Threads = kept.get("threads") or kept.setdefault("threads", _Threads())
    return found


class _Threads:
    """Daemon threads, made as they are needed: an exit of the interpreter does not wait for a slow server."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    async def run(self, function: Callable[[], Answer]) -> Answer:
        """Called on the event loop alone, which is why nothing here is locked."""
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._busy > self._count and self._count < _THREADS:
            self._count += 1
            threading.Thread(target=self._serve, name="tokenfeed-http", daemon=True).start()
        self._work.put((future, function))
        try:
            answer: Answer = await future
            return answer
        finally:
            self._busy -= 1

    def _serve(self) -> None:
        while True:
            future, function = self._work.get()
            try:
                result, error = function(), None
            except BaseException as caught:  # noqa: BLE001 (it is raised where it is waited for)
                result, error = None, caught
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop has ended with the process
                return


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
