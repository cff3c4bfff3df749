"""Objects in S3, Google Cloud Storage, Azure, memory, and on HTTP servers: whole ones here, ranges by the fetcher.

Every function takes an address such as `s3://bucket/key`, waits for its answer, and tries again as `retries.py` says.
Errors are a ReadError or WriteError. Its `errno` is ENOENT if there is no such object, EACCES if the credentials do not
suffice, ETIMEDOUT if the server was too slow.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tokenfeed.errors import ArgumentError, ReadError, TokenfeedError
from tokenfeed.storage.address import clean, is_remote, parse
from tokenfeed.storage.clients import client_for
from tokenfeed.storage.failures import Failed, Failure, Kind
from tokenfeed.storage.fetcher import Fetcher, ObjectInfo, Range, fetcher, get, info_of
from tokenfeed.storage.local import read_bytes, reading
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.remote_file import RemoteFile
from tokenfeed.storage.retries import Tries, persist
from tokenfeed.storage.runtime import runtime

__all__ = [
    "Fetcher",
    "ObjectInfo",
    "Patience",
    "Range",
    "RemoteFile",
    "check_can_write",
    "delete",
    "exists",
    "fetcher",
    "head",
    "is_remote",
    "list_keys",
    "list_names",
    "open_file",
    "read",
    "read_all",
    "upload",
    "write",
]

Result = TypeVar("Result")

LARGEST_READ = 1 << 30
_PART_BYTES = 8 << 20
_MOST_PARTS = 9000
_PARTS_AT_ONCE = 4
_READS_AT_ONCE = 32


def head(uri: str) -> ObjectInfo:
    """Size and version of an object. One request, or two for a server that refuses those for headers alone."""
    uri = clean(uri)

    async def ask(store: Any, key: str) -> ObjectInfo:
        return info_of(await runtime().obstore.head_async(store, key))

    async def ask_for_a_byte(store: Any, key: str) -> ObjectInfo:
        return info_of((await runtime().obstore.get_async(store, key, options={"range": (0, 1)})).meta)

    def is_refused(failure: Failure) -> bool:  # some servers do not know HEAD; an address may be signed for GET alone
        return parse(uri).is_http and failure.status in (401, 403, 405, 501)

    try:
        return _run(ask, uri, doing="look up", expected=is_refused)
    except Failed:
        return _run(ask_for_a_byte, uri, doing="look up")


def exists(uri: str) -> bool:
    """Whether there is such an object."""
    try:
        head(uri)
    except ReadError as error:
        if not _is_missing(error):
            raise
        return False
    return True


def read(uri: str, *, limit: int = LARGEST_READ) -> bytes:
    """A whole object of at most `limit` bytes."""
    return runtime().run(_read(clean(uri), limit, Patience.from_environment()))


def read_all(uris: Sequence[str], *, limit: int = LARGEST_READ) -> list[bytes]:
    """Many small objects in the order given, 32 at a time."""
    patience = Patience.from_environment()

    async def work() -> list[bytes]:
        turns = asyncio.Semaphore(_READS_AT_ONCE)

        async def one(uri: str) -> bytes:
            async with turns:
                return await _read(uri, limit, patience)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(clean(uri))) for uri in uris]
        return [task.result() for task in tasks]

    try:
        return runtime().run(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _read(uri: str, limit: int, patience: Patience) -> bytes:
    async def ask() -> bytes:
        result = await get(uri, patience)
        size = result.meta["size"]
        if size > limit:
            raise ReadError(f"{uri} has {size:,} bytes; at most {limit:,} are read as a whole", filename=uri)
        data = bytes(await result.bytes_async())
        if len(data) != size:
            raise Failed(Failure(Kind.WRONG_ANSWER, f"{size:,} bytes were announced, and {len(data):,} came"))
        return data

    counters = fetcher().counters
    data = await persist(ask, Tries(uri, doing="read", patience=patience, counters=counters))
    counters.bytes_fetched += len(data)
    return data


def list_names(uri: str) -> list[tuple[str, bool]]:
    """The names of what is directly in a folder, and whether each is a folder. Empty if nothing is there."""
    uri = clean(uri)

    async def ask(store: Any, key: str) -> list[tuple[str, bool]]:
        found = await runtime().obstore.list_with_delimiter_async(store, key or None)
        names = [(path.rpartition("/")[2], True) for path in found["common_prefixes"]]
        names += [(one["path"].rpartition("/")[2], False) for one in found["objects"]]
        return sorted(names)

    check_can_list(uri)
    return _run(ask, uri, doing="list")


def list_keys(uri: str) -> list[str]:
    """All objects in a folder and below, by their paths from it. One request for every thousand."""
    uri = clean(uri)

    async def ask(store: Any, key: str) -> list[str]:
        start = len(key) + 1 if key else 0
        stream = runtime().obstore.list(store, key or None, chunk_size=1000)
        return sorted([one["path"][start:] async for chunk in stream for one in chunk])

    check_can_list(uri)
    return _run(ask, uri, doing="list")


def write(uri: str, data: bytes, *, create: bool = False) -> bool:
    """Put a whole object in place. With `create`, only if there is none; returns whether this call did it.

    Readers see the old bytes or the new ones. If a server does not know conditional requests, or ignores them, two
    processes that create at the very same time may both be told that they did; the last one's bytes stay.
    """
    uri = clean(uri)
    check_can_write(uri)

    async def put(store: Any, key: str) -> bool:
        await runtime().obstore.put_async(store, key, data, mode="overwrite", use_multipart=False)
        return True

    async def put_new(store: Any, key: str) -> bool:
        library = runtime().obstore
        try:
            await library.put_async(store, key, data, mode="create", use_multipart=False)
        except (library.exceptions.AlreadyExistsError, library.exceptions.PreconditionError):
            # An earlier try of this very call may have succeeded unheard. If nothing is there, two wrote at once (409),
            # which is tried again.
            try:
                result = await library.get_async(store, key)
            except FileNotFoundError:
                raise Failed(Failure(Kind.EXISTS, "another process is writing it (409)", 409)) from None
            return result.meta["size"] == len(data) and bytes(await result.bytes_async()) == data
        return True

    if create:
        if exists(uri):
            return False
        try:
            return _run(put_new, uri, doing="write", expected=lambda failure: failure.kind is Kind.UNSUPPORTED)
        except Failed:
            pass
    return _run(put, uri, doing="write")


def upload(uri: str, path: str | os.PathLike[str]) -> None:
    """Put a local file of any size in place, in parts of 8 MiB or more, four at a time; no more is in memory.

    obstore tries parts again that fail, and the whole is tried three times. Parts that a killed process had uploaded of
    a large file may stay, hidden, until the bucket's rules remove them.
    """
    uri = clean(uri)
    check_can_write(uri)
    with reading(str(path)):
        size = Path(path).stat().st_size
    if size <= _PART_BYTES:
        write(uri, read_bytes(Path(path)))
        return
    patience = Patience.from_environment()
    client, address = client_for(uri, patience, retries=True)

    async def put() -> None:
        await runtime().obstore.put_async(
            client,
            address.key,
            Path(path),
            use_multipart=True,
            chunk_size=max(_PART_BYTES, -(-size // _MOST_PARTS)),
            max_concurrency=_PARTS_AT_ONCE,
        )

    unlimited = replace(patience, total=1e9)  # `stall` notices when it does not go on
    tries = Tries(uri, doing="write", patience=unlimited, counters=fetcher().counters, most=3)
    runtime().run(persist(put, tries))


def delete(uri: str) -> None:
    """Remove an object. No error if there is none."""
    uri = clean(uri)
    check_can_write(uri)

    async def remove(store: Any, key: str) -> None:
        await runtime().obstore.delete_async(store, key)

    try:
        _run(remove, uri, doing="delete")
    except TokenfeedError as error:
        if not _is_missing(error):
            raise


def open_file(uri: str) -> RemoteFile:
    """A seekable file that reads an object. One request; a ReadError if there is none."""
    uri = clean(uri)
    return RemoteFile(uri, head(uri))


def _is_missing(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOENT


def check_can_list(uri: str) -> None:
    if parse(uri).is_http:
        raise ArgumentError(f"{uri} cannot be listed: servers of http:// and https:// have no lists of what they hold")


def check_can_write(uri: str) -> None:
    if parse(uri).is_http:
        raise ArgumentError(f"{uri} cannot be written to: http:// and https:// are read-only")


def _run(
    ask: Callable[[Any, str], Awaitable[Result]],
    uri: str,
    *,
    doing: str,
    expected: Callable[[Failure], bool] | None = None,
) -> Result:
    """The answer to a question that takes an obstore store and a key."""
    patience = Patience.from_environment()
    client, address = client_for(uri, patience)
    tries = Tries(uri, doing=doing, patience=patience, counters=fetcher().counters)
    return runtime().run(persist(lambda: ask(client, address.key), tries, expected=expected))
