"""`Fetcher`: reads many ranges of remote objects at once; `RemoteFile`: one object as a seekable file, on top of it."""

import asyncio
import io
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

from tokenfeed.errors import ArgumentError, CorruptionError, ReadError, TruncatedError
from tokenfeed.storage.address import clean
from tokenfeed.storage.clients import client_for
from tokenfeed.storage.retries import Counters, Failed, Failure, Kind, Patience, Tries, persist
from tokenfeed.storage.runtime import result_of, runtime

__all__ = ["Fetched", "Fetcher", "ObjectInfo", "Range", "RemoteFile", "fetcher", "get", "info_of", "is_etag"]

CONCURRENCY = 64
LARGEST_READ = 1 << 30
CHUNK_BYTES = 4 << 20
_KEPT_CHUNKS = 3
_KEPT = ("fetcher",)


class ObjectInfo(NamedTuple):
    """Size and version of an object, as its server says."""

    size: int
    version: str | None
    """ETag, or else the time of the last change, or None if the server gives neither."""


class Range(NamedTuple):
    """Bytes [start, stop) of an object, or all of it."""

    uri: str
    start: int = 0
    stop: int | None = None
    """None is for a whole object, of at most `LARGEST_READ` bytes."""
    version: str | None = None
    """`ObjectInfo.version` that the object must still have; None takes any."""


class Fetched(NamedTuple):
    """The answer to a `Range`."""

    data: Any
    """Exactly the bytes asked for, or a buffer of them: `memoryview` and `np.frombuffer` take it without a copy."""
    size: int | None
    """Size of the whole object; None for an empty range, which asks nobody."""
    version: str | None


class Fetcher:
    """Fetches ranges concurrently, first come, first served. Threads may share it.

    At most `concurrency` requests are under way at a time. A range that waits for its next try keeps its place among
    them, so an overloaded server is not asked for more meanwhile.
    """

    def __init__(self, *, concurrency: int = CONCURRENCY, patience: Patience | None = None) -> None:
        """`patience` defaults to what the environment says when a range is submitted."""
        if concurrency < 1:
            raise ArgumentError(f"concurrency is {concurrency}; it must be at least 1")
        self.counters = Counters()
        self._patience = patience
        self._turns = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, wanted: Range) -> "Future[Fetched]":
        """A future of exactly the bytes [start, stop), checked, or of the error. Never blocks.

        An object that has another version now is a CorruptionError, one that ends before `stop` a TruncatedError.
        A future that is cancelled before its turn costs nothing.
        """
        return self.submit_all([wanted])[0]

    def submit_all(self, wanted: Iterable[Range]) -> "list[Future[Fetched]]":
        """As `submit`, for many: the loop is woken once."""
        patience = self._patience or Patience.from_environment()
        futures: list[Future[Fetched]] = []
        entries: list[tuple[Range, Future[Fetched]]] = []
        for one in wanted:
            if one.stop is not None and not 0 <= one.start <= one.stop:
                raise ArgumentError(f"{clean(one.uri)}: bytes [{one.start}, {one.stop}) are not a range")
            futures.append(Future())
            if one.start == one.stop:
                futures[-1].set_result(Fetched(b"", None, None))
            else:
                entries.append((one._replace(uri=clean(one.uri)), futures[-1]))
        runtime().loop.call_soon_threadsafe(self._start, entries, patience)
        return futures

    def _start(self, entries: "list[tuple[Range, Future[Fetched]]]", patience: Patience) -> None:
        for wanted, future in entries:
            task = runtime().loop.create_task(self._serve(wanted, patience, future))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, wanted: Range, patience: Patience, future: "Future[Fetched]") -> None:
        async with self._turns:
            if not future.set_running_or_notify_cancel():
                return
            tries = Tries(wanted.uri, doing="read", patience=patience, counters=self.counters)
            try:
                fetched = await persist(lambda: _get(wanted, patience), tries)
                self.counters.bytes_fetched += len(fetched.data)
                future.set_result(fetched)
            except asyncio.CancelledError:
                future.set_exception(CancelledError())  # the process ends while somebody waits
                raise
            except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
                future.set_exception(error)


def fetcher() -> Fetcher:
    """The fetcher of this process."""
    kept = runtime().kept
    found: Fetcher = kept.get(_KEPT) or kept.setdefault(_KEPT, Fetcher())
    return found


class RemoteFile(io.RawIOBase):
    """Reads chunks of 4 MiB, and requests the next while one is consumed. At most three are in memory.

    After `focus`, chunks lie within the bytes that it names; what is read elsewhere is fetched as it is asked for.
    It is raw: wrap it in io.BufferedReader for small reads. One thread at a time may use it. All bytes are of one
    version of the object: if it is replaced meanwhile, reading raises a CorruptionError.
    """

    def __init__(self, uri: str, info: ObjectInfo, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.name = uri
        self.size, self._version = info
        self._chunk_bytes = chunk_bytes
        self._position = 0
        self._start, self._stop = 0, info.size
        self._chunks: OrderedDict[int, Future[Fetched]] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ArgumentError(f"{self.name} cannot be read from byte {base + offset} on")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or as much of it as is left in the file."""
        if self.closed:
            raise ArgumentError(f"{self.name} is closed")
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < len(view) and self._position < self.size:
            count = len(view) - filled
            if self._start <= self._position < self._stop:
                chunk, start = divmod(self._position - self._start, self._chunk_bytes)
                data = memoryview(self._get(chunk))[start : start + count]
            else:
                data = memoryview(self._get_exactly(min(count, self.size - self._position)))
            view[filled : filled + len(data)] = data
            filled += len(data)
            self._position += len(data)
        return filled

    def focus(self, start: int, stop: int) -> None:
        """Read ahead within bytes [start, stop) alone. All chunks are let go, unless they are of these bytes."""
        if (start, stop) != (self._start, self._stop):
            self._forget()
            self._start, self._stop = start, stop

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        for future in self._chunks.values():
            future.cancel()
        self._chunks.clear()

    def _get_exactly(self, count: int) -> Any:
        stop = min(self._position + count, self._start if self._position < self._start else self.size)
        return result_of(fetcher().submit(Range(self.name, self._position, stop, self._version))).data

    def _get(self, chunk: int) -> Any:
        follows = not self._chunks or chunk - 1 in self._chunks or chunk in self._chunks
        future = self._request(chunk)
        if follows:  # a jump may be one of many, so nothing is read ahead of it
            self._request(chunk + 1)
            self._chunks.move_to_end(chunk)
        while len(self._chunks) > _KEPT_CHUNKS:
            self._chunks.popitem(last=False)[1].cancel()
        try:
            return result_of(future).data
        except BaseException:
            self._chunks.pop(chunk, None)  # the next read tries again
            raise

    def _request(self, chunk: int) -> "Future[Fetched]":
        start = self._start + chunk * self._chunk_bytes
        if chunk not in self._chunks:
            stop = min(self._stop, start + self._chunk_bytes)
            if start >= stop:
                return Future()
            self._chunks[chunk] = fetcher().submit(Range(self.name, start, stop, self._version))
        return self._chunks[chunk]


async def get(
    uri: str, patience: Patience, *, span: "tuple[int, int] | dict[str, int] | None" = None, version: str | None = None
) -> Any:
    """Ask for an object once: obstore's result, whose body is still to come.

    `span` is a range [start, stop), or `{"offset": start}`. An object that has another `version` is a CorruptionError;
    if the version is an ETag, the server compares it first.
    """
    client, address = client_for(uri, patience)
    options: dict[str, Any] = {} if span is None else {"range": span}
    if is_etag(version):
        options["if_match"] = version
    result = await runtime().obstore.get_async(client, address.key, options=options)
    found = info_of(result.meta).version
    if version is not None and found != version:
        raise CorruptionError(
            f"{uri} was replaced while it was being read: its version was {version}, now it is {found}. Open it again."
        )
    return result


async def _get(wanted: Range, patience: Patience) -> Fetched:
    uri, first, stop, version = wanted
    result = await get(uri, patience, span=None if stop is None else (first, stop), version=version)
    size, found = result.meta["size"], result.range
    if stop is None and size > LARGEST_READ:
        raise ReadError(f"{uri} has {size:,} bytes; at most {LARGEST_READ:,} are read as a whole", filename=uri)
    asked = (first, size if stop is None else stop)
    if found[0] == first and found[1] == size < asked[1]:
        raise TruncatedError(
            f"{uri} ends at byte {size:,}; bytes [{first:,}, {stop:,}) were asked for. It is shorter than when it was "
            "opened, or than its manifest says.",
            filename=uri,
        )
    data = await _body(result, asked[1] - first)
    if (found, len(data)) != (asked, asked[1] - first):
        sent = f"the server sent {len(data):,} bytes as [{found[0]:,}, {found[1]:,})"
        raise Failed(Failure(Kind.WRONG_ANSWER, f"bytes [{first:,}, {asked[1]:,}) were asked for, and {sent}"))
    return Fetched(data, *info_of(result.meta))


async def _body(result: Any, size: int) -> Any:
    """The body of an answer. Once `size` bytes have come, no more is read, whatever the server goes on to send."""
    parts: list[Any] = []
    if size > 0:
        async for part in result.stream(min_chunk_size=size):
            parts.append(part)
            if sum(map(len, parts)) >= size:
                break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def is_etag(version: str | None) -> bool:
    """Whether a server can compare it. A weak ETag (`W/…`) would never match."""
    return version is not None and version.startswith('"')


def info_of(meta: Any) -> ObjectInfo:
    """Size and version, from what obstore says of an object."""
    version = meta["e_tag"]
    if version is None and meta["last_modified"].timestamp() > 0:  # 1970 if the server does not say
        version = f"modified {meta['last_modified'].isoformat()}"
    return ObjectInfo(meta["size"], version)
