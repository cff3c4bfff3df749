"""Objects in S3, Google Cloud Storage, Azure, memory, and on HTTP servers: whole ones here, ranges by the fetcher.

Every function takes an address such as `s3://bucket/key`, waits for its answer, and tries again as `retries.py` says.
Errors are a NotFoundError, ReadError or WriteError. Its `errno` is ENOENT if there is no such object, EACCES if the
credentials do not suffice, ETIMEDOUT if the server was too slow.
"""

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar

from tokenfeed.errors import ArgumentError, NotFoundError, TokenfeedError
from tokenfeed.storage.address import clean, parse
from tokenfeed.storage.clients import client_for
from tokenfeed.storage.fetcher import ObjectInfo, Range, RemoteFile, fetcher, info_of
from tokenfeed.storage.local import reading
from tokenfeed.storage.retries import Failed, Failure, Kind, Patience, Tries, persist
from tokenfeed.storage.runtime import result_of, runtime

__all__ = [
    *("check_can_write", "delete", "exists", "head", "last_change", "list_keys", "list_names", "open_file"),
    *("read", "read_all", "upload", "write"),
]

Result = TypeVar("Result")

_PART_BYTES = 8 << 20
_MOST_PARTS = 9000
_PARTS_AT_ONCE = 4


def head(uri: str) -> ObjectInfo:
    """Size and version of an object. One request, or two for a server that refuses those for headers alone."""
    uri = clean(uri)

    async def ask(library: Any, store: Any, key: str) -> ObjectInfo:
        return info_of(await library.head_async(store, key))

    async def ask_for_a_byte(library: Any, store: Any, key: str) -> ObjectInfo:
        return info_of((await library.get_async(store, key, options={"range": (0, 1)})).meta)

    def is_refused(failure: Failure) -> bool:  # some servers do not know HEAD; an address may be signed for GET alone
        return parse(uri).is_http and failure.status in (401, 403, 405, 501)

    try:
        return _run(ask, uri, doing="look up", expected=is_refused)
    except Failed:
        return _run(ask_for_a_byte, uri, doing="look up")


def last_change(uri: str) -> float:
    """When an object was last written, by the clock of its server, in seconds."""

    async def ask(library: Any, store: Any, key: str) -> float:
        return float((await library.head_async(store, key))["last_modified"].timestamp())

    return _run(ask, clean(uri), doing="look up")


def exists(uri: str) -> bool:
    try:
        head(uri)
    except NotFoundError:
        return False
    return True


def open_file(uri: str) -> RemoteFile:
    """A seekable file that reads an object. One request; a NotFoundError if there is none."""
    return RemoteFile(clean(uri), head(uri))


def read(uri: str) -> bytes:
    """A whole object."""
    return read_all([uri])[0]


def read_all(uris: Sequence[str]) -> list[bytes]:
    """Many small objects in the order given, read at once."""
    futures = fetcher().submit_all(map(Range, uris))
    try:
        return [bytes(result_of(future).data) for future in futures]
    finally:
        for future in futures:
            future.cancel()


def list_names(uri: str) -> list[tuple[str, bool]]:
    """The names of what is directly in a folder, and whether each is a folder. Empty if nothing is there."""

    async def ask(library: Any, store: Any, key: str) -> list[tuple[str, bool]]:
        found = await library.list_with_delimiter_async(store, key or None)
        names = [(path.rpartition("/")[2], True) for path in found["common_prefixes"]]
        names += [(one["path"].rpartition("/")[2], False) for one in found["objects"]]
        return sorted(names)

    return _run(ask, _check_can_list(uri), doing="list")


def list_keys(uri: str, *, enough: int | None = None) -> list[str]:
    """All objects in a folder and below, by their paths from it; `enough` stops early. One request a thousand."""

    async def ask(library: Any, store: Any, key: str) -> list[str]:
        start = len(key) + 1 if key else 0
        keys: list[str] = []
        async for chunk in library.list(store, key or None, chunk_size=1000):
            keys.extend(one["path"][start:] for one in chunk)
            if enough is not None and len(keys) >= enough:
                break
        return sorted(keys)

    return _run(ask, _check_can_list(uri), doing="list")


def write(uri: str, data: bytes, *, create: bool = False) -> bool:
    """Put a whole object in place. With `create`, only if there is none; returns whether this call did it.

    Readers see the old bytes or the new ones. If a server does not know conditional requests, or ignores them, two
    processes that create at the very same time may both be told that they did; the last one's bytes stay.
    """
    uri = check_can_write(uri)

    async def put(library: Any, store: Any, key: str) -> bool:
        await library.put_async(store, key, data, mode="overwrite", use_multipart=False)
        return True

    async def put_new(library: Any, store: Any, key: str) -> bool:
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


def upload(uri: str, file: BinaryIO) -> None:
    """Put a file of any size in place, in parts of 8 MiB or more, four at a time; no more is in memory.

    obstore tries parts again that fail, and the whole is tried three times. Parts that a killed process had uploaded of
    a large file may stay, hidden, until the bucket's rules remove them.
    """
    uri = check_can_write(uri)
    with reading(uri):
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= _PART_BYTES:
            data = file.read()
    if size <= _PART_BYTES:
        write(uri, data)
        return
    patience = Patience.from_environment()
    how = {"chunk_size": max(_PART_BYTES, -(-size // _MOST_PARTS)), "max_concurrency": _PARTS_AT_ONCE}

    async def put() -> None:
        client, address = client_for(uri, patience, retries=True)
        file.seek(0)
        await runtime().obstore.put_async(client, address.key, file, use_multipart=True, **how)

    unlimited = replace(patience, total=1e9)  # `stall` notices when it does not go on
    tries = Tries(uri, doing="write", patience=unlimited, counters=fetcher().counters, most=3)
    runtime().run(persist(put, tries))


def delete(uri: str) -> None:
    """Remove an object. No error if there is none."""

    async def remove(library: Any, store: Any, key: str) -> None:
        await library.delete_async(store, key)

    try:
        _run(remove, check_can_write(uri), doing="delete")
    except TokenfeedError as error:
        if not isinstance(error, OSError) or error.errno != errno.ENOENT:
            raise


def _refuse_http(uri: str, what: str) -> str:
    """The clean address, unless it is on a server that can do less than an object store."""
    uri = clean(uri)
    if parse(uri).is_http:
        raise ArgumentError(f"{uri} cannot be {what}")
    return uri


def _check_can_list(uri: str) -> str:
    return _refuse_http(uri, "listed: servers of http:// and https:// have no lists of what they hold")


def check_can_write(uri: str) -> str:
    """The clean address, if its server takes writes."""
    return _refuse_http(uri, "written to: http:// and https:// are read-only")


def _run(
    ask: Callable[[Any, Any, str], Awaitable[Result]],
    uri: str,
    *,
    doing: str,
    expected: Callable[[Failure], bool] = lambda _: False,
) -> Result:
    """The answer to a question that takes obstore, a store of it, and a key."""
    patience = Patience.from_environment()

    def attempt() -> Awaitable[Result]:
        client, address = client_for(uri, patience)
        return ask(runtime().obstore, client, address.key)

    tries = Tries(uri, doing=doing, patience=patience, counters=fetcher().counters)
    return runtime().run(persist(attempt, tries, expected=expected))
