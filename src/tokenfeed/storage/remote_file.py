"""A remote object as a seekable file, read one chunk ahead of its reader."""

import io
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.fetcher import Fetched, ObjectInfo, Range, fetcher
from tokenfeed.storage.runtime import result_of

__all__ = ["RemoteFile"]

CHUNK_BYTES = 4 << 20
_KEPT_CHUNKS = 3


class RemoteFile(io.RawIOBase):
    """Reads chunks of 4 MiB, and requests the next while one is consumed. At most three are in memory.

    It is raw: wrap it in io.BufferedReader for small reads. One thread at a time may use it. All bytes are of one
    version of the object: if it is replaced meanwhile, reading raises a CorruptionError.
    """

    def __init__(self, uri: str, info: ObjectInfo, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        if chunk_bytes < 1:
            raise ArgumentError(f"chunk_bytes is {chunk_bytes}; it must be at least 1")
        self.name = uri
        self.size = info.size
        self._version = info.version
        self._chunk_bytes = chunk_bytes
        self._position = 0
        self._chunks: OrderedDict[int, Future[Fetched]] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ArgumentError(f"{self.name} cannot be read from byte {base + offset} on")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill as much of the buffer as one chunk has."""
        self._check_open()
        view = memoryview(buffer).cast("B")
        if self._position >= self.size or not view:
            return 0
        chunk, start = divmod(self._position, self._chunk_bytes)
        data = memoryview(self._get(chunk))[start : start + len(view)]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def pread(self, count: int, position: int) -> bytes:
        """Bytes [position, position + count), or fewer at the end."""
        self.seek(position)
        parts = []
        while count > 0 and (part := self.read(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        for future in self._chunks.values():
            future.cancel()
        self._chunks.clear()
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ArgumentError(f"{self.name} is closed")

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
        start = chunk * self._chunk_bytes
        if chunk not in self._chunks:
            stop = min(self.size, start + self._chunk_bytes)
            if start >= stop:
                return Future()
            self._chunks[chunk] = fetcher().submit(Range(self.name, start, stop, self._version))
        return self._chunks[chunk]
