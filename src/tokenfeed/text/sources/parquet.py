"""Documents in Parquet files: one column of text, read a few pages at a time.

Memory: a row group is decoded a few pages at a time, however large it is. Arrow would by default fetch the whole
compressed column chunk first (132 MB for a row group of 300 MB of text); read through a buffer of 1 MiB, the peak is
16 MB of pages and rows, at the same speed (21 MB where the chunk has a dictionary). A value lies in one page: one of
200 MB takes 570 MB while it is read (770 compressed by Snappy, 850 by zstd).
"""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

from tokenfeed.errors import CorruptionError, DependencyError, FormatError
from tokenfeed.storage.fetcher import RemoteFile
from tokenfeed.storage.local import reading
from tokenfeed.text.sources.columns import ColumnText
from tokenfeed.text.sources.portions import Records, TextRules
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["ParquetText", "RowGroup"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the length of the footer, and the magic
_BUFFER_BYTES = 1 << 20
_FOOTER_BYTES = 1 << 16  # as much as Arrow reads first, to find the footer
_DECODED_ROWS = 128, 1024  # at least and at most, of one step of Arrow


class _Opened(NamedTuple):
    file: Any
    """Arrow's ParquetFile."""
    schema: Any
    raw: io.RawIOBase
    """What it reads, where that is remote."""


class ParquetText(ColumnText):
    """One Parquet file. The footer is parsed once; each pass opens the file for itself (40 to 100 µs)."""

    def __init__(self, file: StoredFile, column: str, records: Records | None = None) -> None:
        super().__init__(file, column, records)
        self._metadata: Any = None
        self._stamp = 0, 0

    def num_groups(self) -> int:
        if self._metadata is None:
            with self.opened():
                pass
        count: int = self._metadata.num_row_groups
        return count

    def read(self, group: int, start: int = 0) -> "RowGroup | None":
        """A row group from row `start` on; None when there is no such group. Decodes nothing yet.

        Rows before `start` are decoded and dropped, at about 600 MB/s.
        """
        return RowGroup(self, group, self._metadata.row_group(group).num_rows, start) if self.has_group(group) else None

    def _sizes(self) -> list[int]:
        return [self._metadata.row_group(group).total_byte_size for group in range(self.num_groups())]

    def digest(self) -> str:
        return self._file.digest(self._read_footer)

    def decode(
        self, opened: "_Opened", group: int, columns: Sequence[str], rows_at_once: int
    ) -> Iterator[tuple[int, Any]]:
        """(first row, record batch) of a row group. Batches may be shorter than asked for.

        Of a remote file, the bytes of the column are fetched and no others, where there is one column.
        """
        row, num_rows = 0, self._metadata.row_group(group).num_rows
        if isinstance(opened.raw, RemoteFile):
            opened.raw.focus(*self._span_of(group, columns, opened.raw.size))
        with self.explaining(f"row group {group}"):
            batches = opened.file.iter_batches(
                rows_at_once, row_groups=[group], columns=list(columns), use_threads=False
            )
        while True:
            with self.explaining(f"row group {group} after row {row}"):
                batch = next(batches, None)
            if batch is None:
                break
            yield row, batch
            row += batch.num_rows
        if row != num_rows:
            raise CorruptionError(f"{self.name}, row group {group} has {row:,} rows; its footer says {num_rows:,}")

    def _span_of(self, group: int, columns: Sequence[str], size: int) -> tuple[int, int]:
        """The bytes [start, stop) that hold a column of a row group; all of the file for several columns."""
        metadata = self._metadata.row_group(group)
        chunks = (metadata.column(number) for number in range(metadata.num_columns))
        (found, *others) = [each for each in chunks if each.path_in_schema.partition(".")[0] in columns]
        start = min(found.data_page_offset, found.dictionary_page_offset or found.data_page_offset)
        stop = start + found.total_compressed_size
        return (start, stop) if not others and 0 <= start < stop <= size else (0, size)

    def _decode(self, opened: "_Opened", group: int, rules: TextRules) -> Iterator[tuple[int, int, Any]]:
        metadata = self._metadata.row_group(group)
        columns = (metadata.column(number) for number in range(metadata.num_columns))
        wanted = self.read_columns(opened.schema)
        paths = {each.path_in_schema: each.total_uncompressed_size for each in columns}
        text_bytes = sum(size for path, size in paths.items() if path in wanted or path.split(".")[0] in wanted)
        rows_at_once = rules.portion_bytes * metadata.num_rows // max(1, text_bytes)
        rows_at_once = max(1, min(_DECODED_ROWS[1], rows_at_once))
        for row, batch in self.decode(opened, group, list(dict.fromkeys((*wanted, *rules.keep))), rows_at_once):
            yield row, metadata.num_rows, batch

    @contextlib.contextmanager
    def opened(self, keep: Sequence[str] = ()) -> Iterator["_Opened"]:
        """A ParquetFile that has the text column and those to keep."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise DependencyError(f"{self.name}: reading Parquet needs pip install 'tokenfeed[text]'") from error

        with reading(self.name):
            raw = self._file.open()
            if not self._file.is_remote:
                raw.close()  # refuses what is no regular file; Arrow would wait for a pipe
                source = pa.OSFile(os.fsencode(self._file.path))
            else:
                if self._metadata is None and isinstance(raw, RemoteFile):
                    raw.focus(max(0, raw.size - _FOOTER_BYTES), raw.size)
                source = pa.PythonFile(raw, "r")
        with contextlib.closing(source):
            stamp = self._file.stamp()  # once it is open, so that what is read is the file whose footer is known
            if self._metadata is not None and stamp != self._stamp:
                raise CorruptionError(
                    f"{self.name} has changed since it was first read. Start again with files that do not change."
                )
            try:
                file = pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            except (pa.ArrowException, OSError, ValueError, LookupError) as error:
                if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                    raise
                raise self._not_parquet(str(error)) from error
            with self.explaining("its schema"):
                schema = file.schema_arrow
            self.check_columns(schema, keep)
            self._metadata, self._stamp = file.metadata, stamp
            yield _Opened(file, schema, raw)

    def _read_footer(self, file: IO[bytes], size: int) -> bytes:
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        footer_bytes = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
        if tail[4:] != _MAGIC or footer_bytes > size:
            raise self._not_parquet("there is no footer where one should be")
        file.seek(size - footer_bytes)
        return file.read(footer_bytes)

    def _not_parquet(self, why: str) -> FormatError:
        with reading(self.name), self._file.stream() as file:
            head = file.read(len(_MAGIC))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_MAGIC)))
            tail = file.read()
        if size == 0:
            return FormatError(f"{self.name} is empty: 0 bytes are no Parquet file. Fetch or write it again.")
        if head != _MAGIC:
            return FormatError(f"{self.name} is no Parquet file: it begins with {head!r}, expected {_MAGIC!r}")
        if tail == _MAGIC:
            return CorruptionError(f"{self.name}: its footer cannot be understood ({' '.join(why.split())})")
        return CorruptionError(
            f"{self.name} begins as a Parquet file, but its end is missing: the last of its {size:,} bytes are "
            f"{tail!r}, expected {_MAGIC!r}. It was cut short: fetch or write it again."
        )


class RowGroup:
    """One row group from row `start` on, of `num_rows` in all."""

    def __init__(self, parent: ParquetText, group: int, num_rows: int, start: int) -> None:
        self.num_rows = num_rows
        self._parent = parent
        self._group = group
        self._start = start

    def batches(self, size: int) -> Iterator[tuple[int, list[Any]]]:
        """(first row, texts) of the rows [0, size), [size, 2·size), … of the row group, less those before `start`.

        Decoding happens as they are asked for, without the GIL (900 MB/s from zstd); the GIL is held while texts are
        copied (5,000 MB/s).
        """
        parent, (least, most) = self._parent, _DECODED_ROWS
        if self._start >= self.num_rows:
            return
        first, texts, where = self._start, list[Any](), parent.where(self._group)
        with parent.opened() as file:
            rows_at_once = min(size * max(1, least // size), most)
            for row, batch in parent.decode(file, self._group, parent.read_columns(file.schema), rows_at_once):
                skipped = max(0, self._start - row)
                found = parent.documents_of(batch.slice(skipped), f"{where} at row {row + skipped}")
                texts += [parent.check_document(text, where, place) for place, text in enumerate(found, row + skipped)]
                while len(texts) >= (count := size - first % size):
                    yield first, texts[:count]
                    first, texts = first + count, texts[count:]
        if texts:
            yield first, texts
