"""Objects in S3, Google Cloud Storage, Azure, memory, and on HTTP servers: whole ones here, ranges by the fetcher.

Every function takes an address such as `s3://bucket/key`, waits for its answer, and tries again as `requests.py` says.
Errors are a ReadError or WriteError whose `errno` is ENOENT where there is no such object, EACCES where credentials do
not suffice, ETIMEDOUT where the server was too slow.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tokenfeed.errors import ArgumentError, ReadError, TokenfeedError
from tokenfeed.storage.address import Address, clean, is_remote, parse
from tokenfeed.storage.clients import Client, client_for
from tokenfeed.storage.failures import Failure, Kind
from tokenfeed.storage.fetcher import Fetcher, ObjectInfo, Range, fetcher, info_of
from tokenfeed.storage.local import read_bytes, reading
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.remote_file import RemoteFile
from tokenfeed.storage.requests import Failed, persist
from tokenfeed.storage.runtime import runtime

__all__ = [
    "Fetcher",
    "ObjectInfo",
    "Patience",
    "Range",
    "RemoteFile",
    "check_can_write",
    "delete",
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
    """Size and version of an object. One request; a second where a server answers those for headers alone by no."""
    uri = clean(uri)

    async def ask(client: Client, address: Address) -> ObjectInfo:
        return info_of(await runtime().obstore.head_async(client.store, address.key))

    async def ask_for_a_byte(client: Client, address: Address) -> ObjectInfo:
        options = {"range": (0, 1)}
        return info_of((await runtime().obstore.get_async(client.store, address.key, options=options)).meta)

    def is_refused(failure: Failure) -> bool:  # by servers that do not know HEAD; addresses may be signed for GET alone
        return parse(uri).is_http and failure.status in (401, 403, 405, 501)

    try:
        return _run(ask, uri, doing="look up", expected=is_refused)
    except Failed:
        return _run(ask_for_a_byte, uri, doing="look up")


def read(uri: str, *, limit: int = LARGEST_READ) -> bytes:
    """A whole object of at most `limit` bytes."""
    return runtime().run(_read(clean(uri), limit, Patience.from_environment()))


def read_all(uris: Sequence[str], *, limit: int = LARGEST_READ) -> list[bytes]:
    """Many small objects, 32 at a time; in their order."""
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
    async def ask(client: Client, address: Address) -> bytes:
        result = await runtime().obstore.get_async(client.store, address.key)
        size = result.meta["size"]
        if size > limit:
            raise ReadError(f"{uri} has {size:,} bytes; at most {limit:,} are read as a whole", filename=uri)
        data = bytes(await result.bytes_async())
        if len(data) != size:
            raise Failed(Failure(Kind.WRONG_ANSWER, f"{size:,} bytes were announced, and {len(data):,} came"))
        return data

    data = await _persist(ask, uri, patience, doing="read")
    fetcher().counters.add(bytes_fetched=len(data))
    return data


def list_names(uri: str) -> list[tuple[str, bool]]:
    """What lies directly in a folder, by name; and whether each is a folder. Nothing there is an empty list."""
    uri = clean(uri)

    async def ask(client: Client, address: Address) -> list[tuple[str, bool]]:
        found = await runtime().obstore.list_with_delimiter_async(client.store, address.key or None)
        names = [(path.rpartition("/")[2], True) for path in found["common_prefixes"]]
        names += [(one["path"].rpartition("/")[2], False) for one in found["objects"]]
        return sorted(names)

    check_can_list(uri)
    return _run(ask, uri, doing="list")


def list_keys(uri: str) -> list[str]:
    """All objects in a folder and below, by their paths from it. One request for every thousand."""
    uri = clean(uri)

    async def ask(client: Client, address: Address) -> list[str]:
        start = len(address.key) + 1 if address.key else 0
        stream = runtime().obstore.list(client.store, address.key or None, chunk_size=1000)
        return sorted([one["path"][start:] async for chunk in stream for one in chunk])

    check_can_list(uri)
    return _run(ask, uri, doing="list")


def write(uri: str, data: bytes, *, create: bool = False) -> bool:
    """Put a whole object in place. With `create`, only where there is none; returns whether it was this call that did.

    Whoever reads sees the old bytes or the new ones. Where a server does not know conditional requests, or ignores them
    as `rclone serve s3` does, two that create at the very same time may both be told that it was they; the last one's
    bytes stay.
    """
    uri = clean(uri)
    check_can_write(uri)

    async def put(client: Client, address: Address, mode: str = "overwrite") -> bool:
        await runtime().obstore.put_async(client.store, address.key, data, mode=mode, use_multipart=False)
        return True

    if create:
        if _exists(uri):
            return False
        try:
            return _run(partial(put, mode="create"), uri, doing="write", expected=_is_told)
        except Failed as error:
            if error.failure.kind is not Kind.UNSUPPORTED:
                return read(uri) == data  # an earlier try of this very call may have succeeded unheard
    return _run(put, uri, doing="write")


def upload(uri: str, path: str | os.PathLike[str]) -> None:
    """Put a local file in place, of any size: in parts of 8 MiB or more, four at a time, which are all that is read.

    Parts that fail are tried again by obstore, and the whole three times. What a killed process had uploaded of a large
    file may stay, hidden, until the bucket's rules remove it.
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
    library = runtime().obstore

    async def put() -> None:
        await library.put_async(
            client.store,
            address.key,
            Path(path),
            use_multipart=True,
            chunk_size=max(_PART_BYTES, -(-size // _MOST_PARTS)),
            max_concurrency=_PARTS_AT_ONCE,
        )

    unlimited = replace(patience, total=1e9)  # it is as large as it is; that it goes on is what `stall` is for
    counters = fetcher().counters
    runtime().run(persist(put, uri, doing="write", patience=unlimited, counters=counters, most_tries=3))


def delete(uri: str) -> None:
    """Remove an object; that there is none is no error."""
    uri = clean(uri)
    check_can_write(uri)

    async def remove(client: Client, address: Address) -> None:
        await runtime().obstore.delete_async(client.store, address.key)

    try:
        _run(remove, uri, doing="delete")
    except TokenfeedError as error:
        if not _is_missing(error):
            raise


def open_file(uri: str) -> RemoteFile:
    """A seekable file that reads an object. One request; a ReadError where there is none."""
    uri = clean(uri)
    return RemoteFile(uri, head(uri))


def _exists(uri: str) -> bool:
    try:
        head(uri)
    except ReadError as error:
        if not _is_missing(error):
            raise
        return False
    return True


def _is_missing(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOENT


def _is_told(failure: Failure) -> bool:
    """Whether the server has said that it will not create."""
    return failure.kind in (Kind.EXISTS, Kind.CHANGED, Kind.UNSUPPORTED)


def check_can_list(uri: str) -> None:
    if parse(uri).is_http:
        raise ArgumentError(f"{uri} cannot be listed: servers of http:// and https:// have no lists of what they hold")


def check_can_write(uri: str) -> None:
    if parse(uri).is_http:
        raise ArgumentError(f"{uri} cannot be written to: http:// and https:// are read-only")


def _run(
    ask: Callable[[Client, Address], Awaitable[Result]],
    uri: str,
    *,
    doing: str,
    expected: Callable[[Failure], bool] | None = None,
) -> Result:
    return runtime().run(_persist(ask, uri, Patience.from_environment(), doing=doing, expected=expected))


async def _persist(
    ask: Callable[[Client, Address], Awaitable[Result]],
    uri: str,
    patience: Patience,
    *,
    doing: str,
    expected: Callable[[Failure], bool] | None = None,
) -> Result:
    client, address = client_for(uri, patience)
    return await persist(
        partial(ask, client, address),
        uri,
        doing=doing,
        patience=patience,
        counters=fetcher().counters,
        expected=expected,
    )
