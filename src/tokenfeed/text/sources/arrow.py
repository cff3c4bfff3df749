"""Documents in Arrow files: IPC streams, as Hugging Face `datasets` writes them, and IPC files.

A record batch is a group. Files must be local. Finding the batches reads their metadata; a batch is read as a whole,
and nothing stays open.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError
from tokenfeed.format.foreign.arrow import find_batches
from tokenfeed.storage.local import reading
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
        self._found: tuple[Any, list[int]] | None = None

    def _find(self) -> tuple[Any, list[int]]:
        """The schema, and the byte at which each record batch begins."""
        import pyarrow as pa

        if self._file.is_remote:
            raise ArgumentError(f"{self.name}: Arrow files are read where they lie. Download it, or use Parquet")
        with self._lock:
            if self._found is None:
                size = self._file.stamp()[0]
                try:
                    with reading(self.name), pa.OSFile(self._file.path) as source:
                        is_file = source.read(6) == b"ARROW1"
                        source.seek(0)
                        schema = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).schema
                        names = schema.names
                except (pa.ArrowException, UnicodeDecodeError) as error:
                    raise FormatError(f"{self.name} is no Arrow file that can be read: {error}") from error
                if any(pa.types.is_dictionary(each.type) for each in schema):
                    raise FormatError(f"{self.name}: a column of {names} is a dictionary; write it as Parquet")
                found = find_batches(Path(self._file.path), 8 if is_file else 0, size)
                self._found = schema, [body - len(metadata) - 8 for body, metadata in found]
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
            tokens = [each.name for each in schema if pa.types.is_list(each.type)]
            raise MissingError(
                f"{self.name} has no column {missing[0]!r}; its columns are {', '.join(schema.names) or 'none'}. "
                f"{tokens_advice([name for name in tokens if name == 'input_ids'])}"
            )
        if group >= len(places):
            return None
        try:
            with reading(self.name), pa.OSFile(self._file.path) as source:
                source.seek(places[group])
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
            rows: list[Any] = batch.select(list(columns)).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError, EOFError) as error:
            raise CorruptionError(f"{self.name}, record batch {group} is damaged ({error})") from error
        return rows
