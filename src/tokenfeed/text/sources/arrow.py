"""Documents in Arrow files: IPC streams, as Hugging Face `datasets` writes them, and IPC files, compressed or not.

A record batch is a group. Finding the batches reads the metadata of each; a batch is read as a whole, and nothing stays
open. Of a remote file, each of these is a request.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tokenfeed.errors import CorruptionError, FormatError, MissingError, ReadError, TooLargeError
from tokenfeed.format.foreign.arrow import find_batches, first_byte, read_schema
from tokenfeed.storage.fetcher import RemoteFile
from tokenfeed.text.sources.portions import tokens_advice
from tokenfeed.text.sources.rows import RowText
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["ArrowText"]


class ArrowText(RowText):
    """The text column of one Arrow file."""

    def __init__(self, file: StoredFile, column: str) -> None:
        super().__init__(file.name, column)
        self._file = file
        self._lock = threading.Lock()
        self._found: tuple[Any, list[tuple[int, int]]] | None = None

    def _find(self) -> tuple[Any, list[tuple[int, int]]]:
        """The schema, and the bytes [start, stop) of each record batch."""
        import pyarrow as pa

        with self._lock:
            if self._found is None:
                with self._opened(0, 0, "it is no Arrow file that can be read", FormatError) as source:

                    def read(at: int, num_bytes: int) -> bytes:
                        source.seek(at)
                        return bytes(source.read(num_bytes))

                    first = first_byte(read(0, 8))
                    schema = read_schema(self.name, source, first, self.size())
                    names = schema.names
                    found = list(find_batches(self.name, read, first, self.size()))
                if any(pa.types.is_dictionary(each.type) for each in schema):
                    raise FormatError(f"{self.name}: a column of {names} is a dictionary; write it as Parquet")
                self._found = schema, found
            return self._found

    def size(self) -> int:
        return self._file.stamp()[0]

    def num_groups(self) -> int:
        return len(self._find()[1])

    def has_group(self, group: int) -> bool:
        return group < self.num_groups()

    def digest(self) -> str:
        return self._file.digest()

    def rows(self, group: int, columns: Sequence[str]) -> Sequence[Any] | None:
        import pyarrow as pa

        schema, places = self._find()
        if missing := [name for name in columns if name not in schema.names]:
            tokens = [each.name for each in schema if pa.types.is_list(each.type) and each.name == "input_ids"]
            raise MissingError(
                f"{self.name} has no column {missing[0]!r}; its columns are {', '.join(schema.names) or 'none'}. "
                f"{tokens_advice(tokens)}"
            )
        if group >= len(places):
            return None
        with self._opened(*places[group], f"record batch {group} is damaged") as source:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema).select(list(columns))
            batch.validate(full=True)  # Arrow would read whatever offsets say
            rows: list[Any] = batch.to_pylist()
        return rows

    @contextlib.contextmanager
    def _opened(self, start: int, stop: int, problem: str, kind: type[FormatError] = CorruptionError) -> Iterator[Any]:
        """The file for Arrow to read, from a byte on. Of a remote one, [start, stop) is fetched ahead, and no more."""
        import pyarrow as pa

        try:
            with self._file.open() as raw:
                if isinstance(raw, RemoteFile):
                    raw.focus(start, stop)
                with pa.PythonFile(raw, "r") as source:
                    source.seek(start)
                    yield source
        except MemoryError as error:
            raise TooLargeError(f"{self.name}: {problem}, or does not fit into memory ({error})") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
            if isinstance(error, ReadError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise kind(f"{self.name}: {problem} ({' '.join(str(error).split())})") from error
