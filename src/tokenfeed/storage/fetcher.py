"""`Fetcher`: many ranges of remote objects at once. Everything that reads remote data is built on it."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

from tokenfeed.errors import ArgumentError, CorruptionError, TruncatedError
from tokenfeed.storage import plain_http
from tokenfeed.storage.address import Address, clean
from tokenfeed.storage.clients import Client, client_for
from tokenfeed.storage.failures import Failure, Kind, classify
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.requests import Counters, Failed, persist
from tokenfeed.storage.runtime import runtime

__all__ = ["Fetched", "Fetcher", "ObjectInfo", "Range", "fetcher", "info_of"]

CONCURRENCY = 64

Buffer = Any
"""Bytes, or what has their buffer: `memoryview(…)` and `np.frombuffer(…)` take it without a copy."""


class ObjectInfo(NamedTuple):
    """What a server says of an object."""

    size: int
    version: str | None
    """Its ETag; when it was modified, where there is none; None where the server says neither."""


class Range(NamedTuple):
    """Bytes [start, stop) of an object."""

    uri: str
    start: int
    stop: int
    version: str | None = None
    """What `ObjectInfo.version` must still be; None takes any."""


class Fetched(NamedTuple):
    """What came of a range."""

    data: Buffer
    """Exactly the bytes that were asked for."""
    size: int | None
    """Of the whole object; None where the server did not say."""
    version: str | None
    """As in `ObjectInfo`."""


class Fetcher:
    """Fetches ranges concurrently, first come, first served. Threads may share it.

    At most `concurrency` requests are under way at a time. A range that is waited for to be tried again keeps its
    place among them: a server that is overloaded is not asked for more meanwhile.
    """

    def __init__(self, *, concurrency: int = CONCURRENCY, patience: Patience | None = None) -> None:
        """`patience` is by default what the environment says when a range is submitted."""
        if concurrency < 1:
            raise ArgumentError(f"concurrency is {concurrency}; it must be at least 1")
        self.counters = Counters()
        self._concurrency = concurrency
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Range, Patience, Future[Fetched]]] = deque()
        self._is_called = False
        self._num_running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, wanted: Range) -> "Future[Fetched]":
        """A future of exactly the bytes [start, stop), checked; or of the error. Never blocks.

        An object that has another version by now is a CorruptionError, one that ends before `stop` a TruncatedError.
        A future that is cancelled before its turn costs nothing.
        """
        return self.submit_all([wanted])[0]

    def submit_all(self, wanted: Iterable[Range]) -> "list[Future[Fetched]]":
        """As `submit`, for many: the loop is woken once."""
        patience = self._patience or Patience.from_environment()
        futures: list[Future[Fetched]] = []
        entries = []
        for one in wanted:
            if not 0 <= one.start <= one.stop:
                raise ArgumentError(f"{clean(one.uri)}: bytes [{one.start}, {one.stop}) are no range")
            future: Future[Fetched] = Future()
            futures.append(future)
            if one.start == one.stop:
                future.set_result(Fetched(b"", None, None))
            else:
                entries.append((one._replace(uri=clean(one.uri)), patience, future))
        loop = runtime().loop
        with self._lock:
            self._waiting.extend(entries)
            call = bool(self._waiting) and not self._is_called
            self._is_called |= call
        if call:
            loop.call_soon_threadsafe(self._start)
        return futures

    def _start(self) -> None:
        """On the loop: begin with what waits, as far as there is room."""
        with self._lock:
            self._is_called = False
        while self._num_running < self._concurrency:
            with self._lock:
                if not self._waiting:
                    return
                wanted, patience, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                self._num_running += 1
                task = runtime().loop.create_task(self._serve(wanted, patience, future))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, wanted: Range, patience: Patience, future: "Future[Fetched]") -> None:
        try:
            fetched = await persist(
                lambda: _get(wanted, patience), wanted.uri, doing="read", patience=patience, counters=self.counters
            )
            self.counters.add(bytes_fetched=len(fetched.data))
            future.set_result(fetched)
        except asyncio.CancelledError:
            future.set_exception(CancelledError())  # the process ends while somebody waits
            raise
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            future.set_exception(error)
        finally:
            self._num_running -= 1
            self._start()


def fetcher() -> Fetcher:
    """The one of this process."""
    kept = runtime().kept
    found: Fetcher = kept.get("fetcher") or kept.setdefault("fetcher", Fetcher())
    return found


async def _get(wanted: Range, patience: Patience) -> Fetched:
    client, address = client_for(wanted.uri, patience)
    if client.calls_ranges_whole:
        return await _get_plainly(wanted, client, address, patience)
    library = runtime().obstore
    options: dict[str, Any] = {"range": (wanted.start, wanted.stop)}
    if _is_etag(wanted.version):
        options["if_match"] = wanted.version
    try:
        result = await library.get_async(client.store, address.key, options=options)
    except library.exceptions.BaseError as error:
        if classify(error).kind is not Kind.NO_RANGES:
            raise
        fetched = await _get_plainly(wanted, client, address, patience)
        client.calls_ranges_whole = True
        return fetched
    _check_version(wanted.uri, wanted.version, info_of(result.meta).version)
    data = await result.bytes_async()
    start, stop = result.range
    _check_range(wanted, start, stop, len(data), result.meta["size"])
    return Fetched(data, *info_of(result.meta))


async def _get_plainly(wanted: Range, client: Client, address: Address, patience: Patience) -> Fetched:
    uri, start, stop, version = wanted
    sent = version if _is_etag(version) else None
    answer = await plain_http.get_range(client, address, uri, start=start, stop=stop, version=sent, patience=patience)
    _check_version(uri, version, answer.version)
    _check_range(wanted, answer.start, answer.stop, len(answer.data), answer.size)
    return Fetched(answer.data, answer.size, answer.version)


def _is_etag(version: str | None) -> bool:
    """Whether it can be sent for the server to compare. A weak one (`W/…`) would never match."""
    return version is not None and version.startswith('"')


def info_of(meta: Any) -> ObjectInfo:
    """From what obstore says of an object."""
    version = meta["e_tag"]
    if version is None and meta["last_modified"].timestamp() > 0:  # where the server does not say, it is 1970
        version = f"modified {meta['last_modified'].isoformat()}"
    return ObjectInfo(meta["size"], version)


def _check_version(uri: str, expected: str | None, found: str | None) -> None:
    if expected is not None and found != expected:
        raise CorruptionError(
            f"{uri} was replaced while it was being read: its version was {expected}, now it is {found}. Open it again."
        )


def _check_range(wanted: Range, start: int, stop: int, num_bytes: int, size: int | None) -> None:
    if (start, stop, num_bytes) == (wanted.start, wanted.stop, wanted.stop - wanted.start):
        return
    if start == wanted.start and stop < wanted.stop and size in (None, stop):
        raise TruncatedError(
            f"{wanted.uri} ends at byte {stop:,}; bytes [{wanted.start:,}, {wanted.stop:,}) were asked for. It is "
            "shorter than it was when it was opened, or than its manifest says.",
            filename=wanted.uri,
        )
    asked = f"bytes [{wanted.start:,}, {wanted.stop:,}) were asked for"
    sent = f"the server sent {num_bytes:,} bytes as [{start:,}, {stop:,})"
    raise Failed(Failure(Kind.WRONG_ANSWER, f"{asked}, and {sent}"))
