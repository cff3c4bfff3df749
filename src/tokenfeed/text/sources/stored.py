"""Files of text as they are stored, local or remote: opened, decompressed, told apart. No other module opens them."""

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tokenfeed.errors import CorruptionError, DependencyError, ReadError
from tokenfeed.storage.address import is_remote
from tokenfeed.storage.hub import address_of
from tokenfeed.storage.local import open_binary, open_regular, reading

if TYPE_CHECKING:
    from tokenfeed.storage.fetcher import ObjectInfo

__all__ = ["ByteStream", "StoredFile", "list_folder", "shown"]

_CODECS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}
_DIGEST_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20


def shown(path: str) -> str:
    """A path as messages may show it: an address without user, password and query."""
    return address_of(path) if is_remote(path) else path


def list_folder(address: str) -> list[str]:
    """The names of the objects that lie directly in a remote folder, sorted."""
    from tokenfeed.storage.objects import list_names

    return [name for name, is_folder in list_names(address) if not is_folder]


class StoredFile:
    """One file. All that is opened of a remote one is of one version, the first that was seen."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = shown(path)
        """The path as messages show it."""
        self.is_remote = is_remote(path)
        self.codec = _CODECS.get(os.path.splitext(self.name)[1])  # noqa: PTH122
        self._info: ObjectInfo | None = None

    def open(self) -> io.RawIOBase:
        """The file, open for reading and seeking, not decompressed."""
        if self.is_remote:
            from tokenfeed.storage.fetcher import RemoteFile

            return RemoteFile(self.name, self._remote())
        with reading(self.name):
            return io.FileIO(open_regular(self.path))

    def stream(self) -> io.BufferedReader:
        """The file from front to back, decompressed. Where it is not compressed, it can seek."""
        return io.BufferedReader(ByteStream(self), _BUFFER_BYTES)

    def stamp(self) -> tuple[int, int]:
        """(size, time of the last change); the time of remote files is 0, since their readers notice changes."""
        if self.is_remote:
            return self._remote().size, 0
        with reading(self.name):
            stat = Path(self.path).stat()
        return stat.st_size, stat.st_mtime_ns

    def digest(self, read: Callable[[IO[bytes], int], bytes] | None = None) -> str:
        """8 bytes, in hex, that stand for the content, wherever the file lies. Two small reads, or one request.

        Of the size and the first and last 64 KiB, or of what `read(file, size)` reads instead; of the size and the
        version of a remote file. An edit that keeps all of these goes unnoticed.
        """
        if self.is_remote:
            info = self._remote()
            return hashlib.blake2b(f"{info.size} {info.version or ''}".encode(), digest_size=8).hexdigest()
        with reading(self.name), open_binary(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            data = (read or _read_ends)(file, size)
        return hashlib.blake2b(data + size.to_bytes(8, "little"), digest_size=8).hexdigest()

    def _remote(self) -> "ObjectInfo":
        if self._info is None:
            from tokenfeed.storage.objects import head

            self._info = head(self.name)
        return self._info


def _read_ends(file: IO[bytes], size: int) -> bytes:
    data = file.read(_DIGEST_BYTES)
    file.seek(max(0, size - _DIGEST_BYTES))
    return data + file.read(_DIGEST_BYTES)


class ByteStream(io.RawIOBase):
    """The bytes of a file, decompressed as its name says. One thread may use it."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._raw = file.open()
        self._stream: Any = self._raw
        self._position = 0
        if file.codec is not None:
            try:
                import pyarrow as pa
            except ImportError as error:
                self._raw.close()
                raise DependencyError(f"{file.name}: compressed files need pip install 'tokenfeed[text]'") from error
            if self._raw.seek(0, io.SEEK_END) == 0:
                self._raw.close()
                raise CorruptionError(
                    f"{file.name} is empty: compressed files have some bytes even without content. Fetch or write it "
                    "again."
                )
            self._raw.seek(0)
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), file.codec)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.codec is None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with reading(self._file.name):
            self._position = self._raw.seek(offset, whence)
        return self._position

    def stored_position(self) -> int:
        """How many bytes of the file as it is stored have been read."""
        return self._raw.tell()

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._stream.readinto(buffer)
        except ReadError:
            raise
        except OSError as error:
            if self._file.codec is None or error.errno is not None:  # only the operating system gives a number
                with reading(self._file.name):
                    raise
            raise CorruptionError(
                f"{self._file.name}, after byte {self._position:,} of what is in it: the compressed data is damaged "
                f"({error}). Fetch or write the file again."
            ) from error
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed and self._stream is not self._raw:
            self._stream.close()
        self._raw.close()
        super().close()
