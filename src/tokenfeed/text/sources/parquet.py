"""Documents in Parquet files: one column of text, read a row group at a time.

Memory: a row group is decoded a few pages at a time, however large it is. Arrow would by default fetch the whole
compressed column chunk first (132 MB for a row group of 300 MB of text); read through a buffer of 1 MiB, the peak is
16 MB of pages and rows, at the same speed (21 MB where the chunk has a dictionary).
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tokenfeed.errors import ArgumentError, CorruptionError, FormatError, MissingError, ReadError, TruncatedError
from tokenfeed.storage.local import reading

__all__ = ["ParquetText", "RowGroup"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the length of the footer, and the magic
_BUFFER_BYTES = 1 << 20
_MAX_IDLE = 4
_DECODED_ROWS = 128, 1024  # at least and at most, of one step of Arrow

_STRINGS = ("string", "large_string", "string_view")
_BINARIES = ("binary", "large_binary", "binary_view")


class ParquetText:
    """The text column of one Parquet file. Any number of threads may read at once.

    Each has a descriptor of its own while it reads. At most 4 are kept for the next reads; `close` lets go of them, and
    reading opens again (40 to 100 µs).
    """

    def __init__(self, path: Path | str, column: str, *, open_file: Callable[[], IO[bytes]] | None = None) -> None:
        """`open_file` opens a file that is not a local one; `path` then is what messages call it."""
        self.path = path
        self.column = column
        self._open_file = open_file
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._times_closed = 0
        self._num_rows: list[int] | None = None

    def num_groups(self) -> int:
        """How many row groups the footer lists."""
        return len(self._count_rows())

    def has_group(self, group: int) -> bool:
        return group < self.num_groups()

    def read(self, group: int, start: int = 0) -> "RowGroup | None":
        """A row group from row `start` on; None when there is no such group. Decodes nothing yet.

        Rows before `start` are decoded and dropped, at about 600 MB/s.
        """
        num_rows = self._count_rows()
        if group >= len(num_rows):
            return None
        file, lent = self._take()
        return RowGroup(self, file, lent, group, num_rows[group], start)

    def digest(self) -> str:
        """8 bytes, in hex, that stand for the content: a checksum of the footer and of the size of the file.

        Two reads, whatever the size. The footer holds where every page chunk begins, its size and most often its least
        and greatest value; an edit that changes none of these goes unnoticed.
        """
        with reading(str(self.path)), self._open_bytes() as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
            footer_bytes = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
            if tail[4:] != _MAGIC or footer_bytes > size:
                raise self._not_parquet("there is no footer where one should be")
            file.seek(size - footer_bytes)
            footer = file.read(footer_bytes)
        return hashlib.blake2b(footer + size.to_bytes(8, "little"), digest_size=8).hexdigest()

    def close(self) -> None:
        """Close what nobody uses now; what is in use is closed when it is given back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._times_closed += 1
        for file in idle:
            file.close(force=True)

    def _count_rows(self) -> list[int]:
        if self._num_rows is None:
            file, lent = self._take()
            with self.explaining("its footer"):
                self._num_rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            self._give_back(file, lent)
        return self._num_rows

    def _take(self) -> tuple[Any, int]:
        """A ParquetFile that nobody else uses, and what `_give_back` must know."""
        with self._lock:
            lent = self._times_closed
            if self._idle:
                return self._idle.pop(), lent
        return self.open(), lent

    def _give_back(self, file: Any, lent: int) -> None:
        with self._lock:
            if lent == self._times_closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(file)
                return
        file.close(force=True)

    def open(self, *, any_column: bool = False) -> Any:
        """A new ParquetFile, for the caller to close. It has the text column, unless that does not matter."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with reading(str(self.path)):
            if self._open_file is None:
                source = pa.OSFile(os.fsencode(self.path))
            else:
                source = pa.PythonFile(self._open_file(), "r")
        try:
            try:
                file = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            except (pa.ArrowException, OSError, ValueError, LookupError) as error:
                if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                    raise
                raise self._not_parquet(str(error)) from error
            if not any_column:
                self._check_column(file)
        except BaseException:
            source.close()
            raise
        return file

    def _open_bytes(self) -> IO[bytes]:
        return Path(self.path).open("rb") if self._open_file is None else self._open_file()

    def _check_column(self, file: Any) -> None:
        with self.explaining("its schema"):
            schema = file.schema_arrow
        places = schema.get_all_field_indices(self.column)
        if len(places) != 1:
            what = "no column" if not places else f"{len(places)} columns"
            raise MissingError(
                f"{self.path} has {what} {self.column!r}; its columns are {', '.join(schema.names) or 'none'}. "
                "Name the one with the text: text_column=…"
            )
        kind = schema.field(places[0]).type
        kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
        if str(kind) not in _STRINGS + _BINARIES:
            raise FormatError(
                f"{self.path}: column {self.column!r} is {schema.field(places[0]).type}, not text; expected strings, "
                "plain or dictionary-encoded, or bytes that are UTF-8"
            )

    def _not_parquet(self, why: str) -> FormatError:
        with reading(str(self.path)), self._open_bytes() as file:
            head = file.read(len(_MAGIC))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_MAGIC)))
            tail = file.read()
        if size == 0:
            return FormatError(f"{self.path} is empty: 0 bytes are no Parquet file. Fetch or write it again.")
        if head == _MAGIC and tail != _MAGIC:
            return CorruptionError(
                f"{self.path} begins as a Parquet file, but its end is missing: the last of its {size:,} bytes are "
                f"{tail!r}, expected {_MAGIC!r}. It was cut short: fetch or write it again."
            )
        if head == tail == _MAGIC:
            return CorruptionError(f"{self.path}: its footer cannot be understood ({_one_line(why)})")
        return FormatError(f"{self.path} is no Parquet file: it begins with {head!r}, expected {_MAGIC!r}")

    @contextlib.contextmanager
    def explaining(self, where: str) -> Iterator[None]:
        """Turns what Arrow raises about damaged bytes into an error of ours that names the file and the place."""
        import pyarrow as pa

        try:
            with reading(str(self.path)):
                yield
        except ReadError as error:
            if error.errno is not None:  # Arrow says OSError of damaged bytes too, but without a number
                raise
            raise self._damaged(where, error.__cause__ or error) from error
        except (pa.ArrowException, ValueError, LookupError) as error:
            if isinstance(error, MemoryError):
                raise
            raise self._damaged(where, error) from error

    def _damaged(self, where: str, error: BaseException) -> CorruptionError | TruncatedError:
        message = f"{self.path}, {where}: the data is damaged ({_one_line(str(error))})"
        if "end of stream" in str(error) or "Page was smaller" in str(error):
            return TruncatedError(f"{message}. The file ended early: something cut it.", filename=str(self.path))
        return CorruptionError(f"{message}. Fetch or write the file again.")


class RowGroup:
    """One row group, open for one pass over its texts. One thread at a time may use it."""

    def __init__(self, parent: ParquetText, file: Any, lent: int, group: int, num_rows: int, start: int) -> None:
        self.num_rows = num_rows
        """Of the whole row group, those before `start` included."""
        self._parent = parent
        self._file = file
        self._lent = lent
        self._group = group
        self._start = start

    def batches(self, size: int) -> Iterator[tuple[int, list[str | None]]]:
        """(first row, texts) of the rows [0, size), [size, 2·size), … of the row group, less those before `start`.

        Decoding happens as they are asked for, without the GIL (600 MB/s from zstd); the GIL is held while the strings
        are made (1,100 MB/s). May be called once.
        """
        if size < 1:
            raise ArgumentError(f"size is {size}; it must be at least 1")
        parent, file, self._file = self._parent, self._file, None
        if file is None:
            raise ArgumentError("batches() of a row group can be called once; read the row group again")
        try:
            if self._start < self.num_rows:
                yield from self._slices(file, size)
        finally:
            parent._give_back(file, self._lent)

    def _slices(self, file: Any, size: int) -> Iterator[tuple[int, list[str | None]]]:
        least, most = _DECODED_ROWS
        rows_at_once = min(size * max(1, least // size), most)
        first, texts = self._start, list[str | None]()
        row = 0  # of the next Arrow batch; batches may be shorter than asked for, so nothing relies on their size
        for column in self._decode(file, rows_at_once):
            at = min(max(row, self._start), row + len(column))
            while at < row + len(column):
                stop = min(row + len(column), (at // size + 1) * size)
                texts += self._strings(column.slice(at - row, stop - at), at)
                at = stop
                if at % size == 0:
                    yield first, texts
                    first, texts = at, []
            row += len(column)
        if row != self.num_rows:
            raise CorruptionError(
                f"{self._parent.path}, row group {self._group} has {row:,} rows; its footer says {self.num_rows:,}"
            )
        if texts:
            yield first, texts

    def _decode(self, file: Any, rows_at_once: int) -> Iterator[Any]:
        parent, row = self._parent, 0
        with parent.explaining(f"row group {self._group}"):
            batches = file.iter_batches(
                rows_at_once, row_groups=[self._group], columns=[parent.column], use_threads=False
            )
        while True:
            with parent.explaining(f"row group {self._group} after row {row}"):
                batch = next(batches, None)
                if batch is None:
                    return
                column = batch.column(batch.schema.get_field_index(parent.column))
            yield column
            row += len(column)

    def _strings(self, column: Any, first_row: int) -> list[str | None]:
        if str(column.type).startswith("dictionary"):
            with self._parent.explaining(f"row group {self._group} at row {first_row}"):
                column = column.dictionary_decode()
        binary = str(column.type) in _BINARIES
        try:
            # As quick as to_numpy().tolist() and as slicing the buffers by hand, and it says what is not UTF-8.
            texts: list[Any] = column.to_pylist()
            if binary:
                texts = [None if text is None else text.decode() for text in texts]
        except UnicodeDecodeError:
            for row, value in enumerate(column):
                try:
                    _ = value.as_py().decode() if binary and value.is_valid else value.as_py()
                except UnicodeDecodeError as error:
                    raise CorruptionError(
                        f"{self._parent.path}, row group {self._group}, row {first_row + row}: column "
                        f"{self._parent.column!r} is not UTF-8 ({error})"
                    ) from error
            raise
        return texts


def _one_line(text: str) -> str:
    return " ".join(text.split())
