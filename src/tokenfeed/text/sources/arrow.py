"""Documents in Arrow files: IPC streams, as Hugging Face `datasets` writes them, and IPC files, compressed or not.

A file is a row of messages: 0xFFFFFFFF, i32 size of the metadata, metadata (a flatbuffer), body. A record batch is a
group. Finding the batches reads the metadata of each; a batch is read as a whole. Of a remote file, each of these is a
request.
"""

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenfeed.errors import CorruptionError, DependencyError, FormatError, TooLargeError
from tokenfeed.storage.fetcher import RemoteFile
from tokenfeed.text.sources.columns import ColumnText
from tokenfeed.text.sources.portions import MemoryGroup, Records, TextRules
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["ArrowText"]

_MAGIC = b"ARROW1"
_CONTINUED = b"\xff\xff\xff\xff"
_BATCH = 3  # type of the header of a message
_HEAD_BYTES = 1 << 12


class ArrowText(ColumnText):
    """One Arrow file."""

    group_name = "record batch"

    def __init__(self, file: StoredFile, column: str, records: Records | None = None) -> None:
        super().__init__(file, column, records)
        self._lock = threading.Lock()
        self._found: tuple[Any, list[tuple[int, int]]] | None = None

    def _find(self) -> tuple[Any, list[tuple[int, int]]]:
        """The schema, and the bytes [start, stop) of each record batch."""
        with self._lock:
            if self._found is None:
                with self._reading(0, 0, "its metadata") as source:

                    def read(at: int, num_bytes: int) -> bytes:
                        source.seek(at)
                        return bytes(source.read(num_bytes))

                    first, size = _first_byte(read(0, 8)), self._file.stamp()[0]
                    schema = _read_schema(self.name, source, first, size)
                    self._found = schema, list(_find_batches(self.name, read, first, size))
            return self._found

    def num_groups(self) -> int:
        return len(self._find()[1])

    def _sizes(self) -> list[int]:
        return [stop - start for start, stop in self._find()[1]]

    def digest(self) -> str:
        return self._file.digest()

    def read(self, group: int, start: int = 0) -> MemoryGroup[tuple[int, Any]] | None:
        """A record batch from row `start` on, read here; None when there is no such batch."""
        with self.opened() as schema:
            if not self.has_group(group):
                return None
            batch, where = self._read_batch(group, self.read_columns(schema)), self.where(group)
        rows = list(enumerate(self.documents_of(batch, where)))
        return MemoryGroup(rows, lambda row: self.check_document(row[1], where, row[0]), start)

    @contextlib.contextmanager
    def opened(self, keep: Sequence[str] = ()) -> Iterator[Any]:
        """The schema."""
        import pyarrow as pa

        schema, _ = self._find()
        if any(pa.types.is_dictionary(each.type) for each in schema):
            raise FormatError(f"{self.name}: a column of {schema.names} is a dictionary; write it as Parquet")
        self.check_columns(schema, keep)
        yield schema

    def _decode(self, opened: Any, group: int, rules: TextRules) -> Iterator[tuple[int, int, Any]]:
        batch = self._read_batch(group, list(dict.fromkeys((*self.read_columns(opened), *rules.keep))))
        yield 0, batch.num_rows, batch

    def _read_batch(self, group: int, columns: Sequence[str]) -> Any:
        import pyarrow as pa

        schema, places = self._find()
        with self._reading(*places[group], f"{self.group_name} {group}") as source:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema).select(list(columns))
            batch.validate(full=True)  # Arrow would read whatever offsets say
            return batch

    @contextlib.contextmanager
    def _reading(self, start: int, stop: int, what: str) -> Iterator[Any]:
        """The file for Arrow to read, from a byte on. Of a remote one, [start, stop) is fetched ahead, and no more."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise DependencyError(f"{self.name}: reading Arrow needs pip install 'tokenfeed[text]'") from error

        try:
            with self.explaining(what), self._file.open() as raw:
                if isinstance(raw, RemoteFile):
                    raw.focus(start, stop)
                with pa.PythonFile(raw, "r") as source:
                    source.seek(start)
                    yield source
        except MemoryError as error:
            raise TooLargeError(f"{self.name}, {what} is damaged, or does not fit into memory ({error})") from error


def _first_byte(head: bytes) -> int:
    """Where the messages begin of a file with this head: an IPC file is a stream between two magics, with a footer."""
    return 8 if head.startswith(_MAGIC) else 0


def _read_schema(path: object, source: Any, at: int, size: int) -> Any:
    """The schema of the stream that begins at a byte of a file of pyarrow."""
    import pyarrow as pa

    source.seek(at)
    lead = source.read(8)
    if lead[:4] != _CONTINUED or not 0 < int.from_bytes(lead[4:], "little", signed=True) <= size - at - 8:
        raise FormatError(f"{path} is no Arrow file that can be read: there is no schema at byte {at}")
    source.seek(at)
    return pa.ipc.open_stream(source).schema


def _find_batches(path: object, read: Callable[[int, int], bytes], at: int, size: int) -> Iterator[tuple[int, int]]:
    """Bytes [start, stop) of every record batch from a byte on, by its metadata alone.

    One call of `read(byte_start, num_bytes)` for each, if its metadata is short.
    """
    while at + 8 <= size:
        lead = read(at, min(_HEAD_BYTES, size - at))
        length = int.from_bytes(lead[4:8], "little", signed=True)
        if lead[:4] != _CONTINUED or length < 0 or at + 8 + length > size:
            raise CorruptionError(f"{path}: no message of Arrow at byte {at:,}, or one that is longer than the file")
        if length == 0:
            return
        metadata = lead[8 : 8 + length] if 8 + length <= len(lead) else read(at + 8, length)
        try:
            kind, body_bytes = _field(metadata, 1, "<B"), _field(metadata, 3, "<q")
        except (struct.error, IndexError) as error:
            raise CorruptionError(f"{path}: the message at byte {at:,} is damaged ({error})") from error
        start, at = at, at + 8 + length + body_bytes
        if body_bytes < 0 or at > size:
            raise CorruptionError(
                f"{path}: the message at byte {start:,} has {body_bytes:,} bytes; the file ends before"
            )
        if kind == _BATCH:
            yield start, at


def _field(data: bytes, number: int, code: str) -> int:
    """A number of the root table of a flatbuffer; 0 where it has its default."""
    (root,) = struct.unpack_from("<I", data)
    table = root - struct.unpack_from("<i", data, root)[0]
    if table < 0:
        raise IndexError("a table outside the message")
    (size,) = struct.unpack_from("<H", data, table)
    (offset,) = struct.unpack_from("<H", data, table + 4 + 2 * number) if 6 + 2 * number <= size else (0,)
    return int(struct.unpack_from(code, data, root + offset)[0]) if offset else 0
