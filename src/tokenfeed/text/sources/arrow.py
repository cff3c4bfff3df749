"""Documents in Arrow files: IPC streams, as Hugging Face `datasets` writes them, and IPC files, compressed or not.

A record batch is a group. Finding the batches reads the metadata of each; a batch is read as a whole. Of a remote file,
each of these is a request.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tokenfeed.errors import DependencyError, FormatError, TooLargeError
from tokenfeed.format.foreign.arrow import find_batches, first_byte, read_schema
from tokenfeed.storage.fetcher import RemoteFile
from tokenfeed.text.sources.columns import ColumnText
from tokenfeed.text.sources.portions import MemoryGroup, Records, TextRules
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["ArrowText"]


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

                    first, size = first_byte(read(0, 8)), self._file.stamp()[0]
                    schema = read_schema(self.name, source, first, size)
                    self._found = schema, list(find_batches(self.name, read, first, size))
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
