"""The bytes of an input file, wherever it lies, decompressed if need be."""

import io
import os
from typing import Any, cast

from tokenfeed.errors import CorruptionError, ReadError
from tokenfeed.storage.address import clean, is_remote
from tokenfeed.storage.local import reading

__all__ = ["CODECS", "Source", "open_input", "shown"]

CODECS = {".gz": "gzip", ".zst": "zstd"}


def shown(path: str) -> str:
    """A path as messages may show it: an address without user, password and query."""
    return clean(path) if is_remote(path) else path


def open_input(path: str) -> io.RawIOBase:
    """A file, local or remote, open for reading and seeking. The only place that opens inputs."""
    if is_remote(path):
        from tokenfeed.storage.objects import open_file

        return open_file(path)
    with reading(path):
        return cast(io.RawIOBase, open(path, "rb", buffering=0))  # noqa: PTH123


class Source:
    """The bytes of a file from front to back, decompressed as its name says. One thread may use it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.codec = CODECS.get(os.path.splitext(shown(path))[1])  # noqa: PTH122
        self.position = 0
        """How many bytes have been read, of those that come out of decompression."""
        self._raw = open_input(path)
        stream: Any = self._raw
        if self.codec is not None:
            import pyarrow as pa

            if self._raw.seek(0, io.SEEK_END) == 0:
                self._raw.close()
                raise CorruptionError(
                    f"{shown(path)} is empty: not even a compressed nothing has 0 bytes. Fetch or write it again."
                )
            self._raw.seek(0)
            stream = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), self.codec)
        self._stream = stream

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, num_bytes: int) -> bytes:
        """The next bytes: as many as asked for, fewer only at the end of the file."""
        parts: list[bytes] = []
        missing = num_bytes
        while missing > 0:
            part = self._read(missing)
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.position += len(data)
        return data

    def seek(self, position: int) -> None:
        """Go to a byte of a file that is not compressed."""
        with reading(shown(self._path)):
            self._raw.seek(position)
        self.position = position

    def reopened(self) -> "Source":
        """The same file, from its beginning."""
        return Source(self._path)

    def stored_position(self) -> int:
        """How many bytes of the file as it is stored have been read."""
        return self._raw.tell() if self.codec is not None else self.position

    def close(self) -> None:
        """Let go of the file."""
        if self._stream is not self._raw:
            self._stream.close()
        self._raw.close()

    def _read(self, num_bytes: int) -> bytes:
        try:
            data: bytes = self._stream.read(num_bytes)
            return data
        except ReadError:
            raise
        except OSError as error:
            if self.codec is None or error.errno is not None:  # only the operating system gives a number
                with reading(shown(self._path)):
                    raise
            raise CorruptionError(
                f"{shown(self._path)}, after byte {self.position:,} of what is in it: the compressed data is damaged "
                f"({error}). Fetch or write the file again."
            ) from error
