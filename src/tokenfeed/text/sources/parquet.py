"""Documents in Parquet files: one column of text, read a few pages at a time.

Memory: a row group is decoded a few pages at a time, however large it is. Arrow would by default fetch the whole
compressed column chunk first (132 MB for a row group of 300 MB of text); read through a buffer of 1 MiB, the peak is
16 MB of pages and rows, at the same speed (21 MB where the chunk has a dictionary). A value lies in one page: one of
200 MB takes 570 MB while it is read (770 compressed by Snappy, 850 by zstd); as JSONL or plain text it takes 20 MB.
"""

import codecs
import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import IO, Any, NamedTuple

from tokenfeed.errors import CorruptionError, DependencyError, FormatError, MissingError, ReadError, TruncatedError
from tokenfeed.storage.fetcher import RemoteFile
from tokenfeed.storage.local import reading
from tokenfeed.text.sources.portions import Portion, Records, Tally, TextRules, tokens_advice
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["ParquetText", "RowGroup"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the length of the footer, and the magic
_BUFFER_BYTES = 1 << 20
_FOOTER_BYTES = 1 << 16  # as much as Arrow reads first, to find the footer
_DECODED_ROWS = 128, 1024  # at least and at most, of one step of Arrow
_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


class _Opened(NamedTuple):
    file: Any
    """Arrow's ParquetFile."""
    raw: io.RawIOBase
    """What it reads, where that is remote."""


class ParquetText:
    """The text column of one Parquet file. Any number of threads may read at once.

    The footer is parsed once; each pass opens the file for itself (40 to 100 µs), and nothing stays open.
    """

    def __init__(self, file: StoredFile, column: str, records: Records | None = None) -> None:
        """With `records`, documents are what these make of whole rows, instead of the texts of a column."""
        self.name = file.name
        self.column = column
        self._records = records
        self._file = file
        self._metadata: Any = None
        self._stamp = 0, 0

    def num_groups(self) -> int:
        """How many row groups the footer lists."""
        if self._metadata is None:
            with self.opened():
                pass
        count: int = self._metadata.num_row_groups
        return count

    def has_group(self, group: int) -> bool:
        return group < self.num_groups()

    def read(self, group: int, start: int = 0) -> "RowGroup | None":
        """A row group from row `start` on; None when there is no such group. Decodes nothing yet.

        Rows before `start` are decoded and dropped, at about 600 MB/s.
        """
        return RowGroup(self, group, self._metadata.row_group(group).num_rows, start) if self.has_group(group) else None

    def cut(self, slice_bytes: int) -> list[int]:
        """Bounds of runs of row groups of at most `slice_bytes`, uncompressed, or of one row group. Reads the footer.

        Row groups of 30, 30, 50 and 10 bytes, slices of 60: 0, 2, 4.
        """
        bounds, in_run, sizes = [0], 0, self._sizes()
        for group, size in enumerate(sizes):
            if group > bounds[-1] and in_run + size > slice_bytes:
                bounds.append(group)
                in_run = 0
            in_run += size
        return [*bounds, len(sizes)] if sizes else [0]

    def _sizes(self) -> list[int]:
        return [self._metadata.row_group(group).total_byte_size for group in range(self.num_groups())]

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of the row groups [start, stop)."""
        with self.opened(rules.keep) as file:
            tally, size, sizes = Tally(rules), self._file.stamp()[0], self._sizes()
            ends = [0, *accumulate(sizes)] if any(sizes) else range(len(sizes) + 1)
            shares = [size * end // ends[-1] - size * ends[start] // ends[-1] for end in ends[start : stop + 1]]
            for group in range(start, stop):
                yield from self._read_group(file, group, tally, rules, *shares[group - start : group - start + 2])
            yield tally.portion(shares[-1])

    def digest(self) -> str:
        return self._file.digest(self._read_footer)

    def close(self) -> None:
        """Nothing stays open."""

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

    def _read_group(
        self, file: "_Opened", group: int, tally: Tally, rules: TextRules, reached: int, reached_after: int
    ) -> Iterator[Portion]:
        metadata = self._metadata.row_group(group)
        columns = (metadata.column(number) for number in range(metadata.num_columns))
        wanted = self.read_columns(file)
        paths = {each.path_in_schema: each.total_uncompressed_size for each in columns}
        text_bytes = sum(size for path, size in paths.items() if path in wanted or path.split(".")[0] in wanted)
        rows_at_once = rules.portion_bytes * metadata.num_rows // max(1, text_bytes)
        rows_at_once = max(1, min(_DECODED_ROWS[1], rows_at_once))
        for row, batch in self.decode(file, group, list(dict.fromkeys((*wanted, *rules.keep))), rows_at_once):
            where = f"{self.name}, row group {group}"
            so_far = reached + (reached_after - reached) * (row + batch.num_rows) // max(1, metadata.num_rows)
            kept = _kept(batch, rules.keep)
            texts = self.documents_of(batch, None if rules.whole else rules.long_bytes, where)
            for place, text in enumerate(texts):
                values = kept[place] if kept else {}
                if text is None:
                    tally.null(f"{where}, row {row + place}")
                elif isinstance(text, UnicodeDecodeError | FormatError):
                    tally.malformed(f"{where}, row {row + place}", self.told(text))
                elif not isinstance(text, memoryview):
                    tally.add(text, values)
                else:
                    pieces = _pieces_of(text, rules.portion_bytes)
                    yield from tally.pieces(((piece, so_far) for piece in pieces), values)
            if tally.is_full:
                yield tally.portion(so_far)

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
            for name in (*([self.column] if self._records is None else []), *keep):
                self._check_column(file, name)
            self._metadata, self._stamp = file.metadata, stamp
            yield _Opened(file, raw)

    def _check_column(self, file: Any, name: str) -> None:
        with self.explaining("its schema"):
            schema = file.schema_arrow
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            what = "no column" if not places else f"{len(places)} columns"
            tokens = [each.name for each in schema if _is_tokens(each.type)]
            advice = "Name one that is there: keep=…" if name != self.column else tokens_advice(tokens)
            raise MissingError(
                f"{self.name} has {what} {name!r}; its columns are {', '.join(schema.names) or 'none'}. {advice}"
            )
        kind = schema.field(places[0]).type
        if name == self.column and not _is_text(kind):
            advice = f". {tokens_advice([name])}" if _is_tokens(kind) else ""
            raise FormatError(
                f"{self.name}: column {name!r} is {kind}, not text; expected strings, plain or dictionary-encoded, or "
                f"bytes that are UTF-8{advice}"
            )
        if name != self.column and not (_is_written_out(kind) or _fits_json(kind)):
            raise FormatError(
                f"{self.name}: column {name!r} is {kind}, which JSON cannot hold. Leave it out of those to keep."
            )

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

    @contextlib.contextmanager
    def explaining(self, where: str) -> Iterator[None]:
        """Turns what Arrow raises about damaged bytes into an error of ours that names the file and the place."""
        import pyarrow as pa

        try:
            with reading(self.name):
                yield
        except (ReadError, pa.ArrowException, ValueError, LookupError) as error:
            # Arrow says OSError of damaged bytes too, but without a number
            if isinstance(error, MemoryError) or (isinstance(error, ReadError) and error.errno is not None):
                raise
            cause = error.__cause__ or error if isinstance(error, ReadError) else error
            message = f"{self.name}, {where}: the data is damaged ({' '.join(str(cause).split())})"
            if "end of stream" in str(cause) or "Page was smaller" in str(cause):
                raise TruncatedError(
                    f"{message}. The file ended early: something cut it.", filename=self.name
                ) from error
            raise CorruptionError(f"{message}. Fetch or write the file again.") from error

    def read_columns(self, opened: "_Opened") -> list[str]:
        """The columns that documents are made of."""
        if self._records is None:
            return [self.column]
        with self.explaining("its schema"):
            names: list[str] = opened.file.schema_arrow.names
        wanted = self._records.columns
        found = names if wanted is None else [name for name in names if name in wanted]
        if not found:
            raise MissingError(
                f"{self.name} has no column that records are made of; it has {', '.join(names) or 'none'}"
            )
        return found

    def documents_of(self, batch: Any, long_bytes: int | None, where: str) -> list[Any]:
        """The documents of a batch: as `texts_of`, or what `records` made; a FormatError where there is none."""
        with self.explaining(where):
            if self._records is None:
                return texts_of(_column(batch, self.column), long_bytes)
            rows = batch.to_pylist()
        documents: list[Any] = []
        for fields in rows:
            try:
                documents.append(self._records(without_nulls(fields)))
            except FormatError as error:
                documents.append(error)
        return documents

    def told(self, error: UnicodeDecodeError | FormatError) -> str:
        """What is wrong with a document, in words."""
        if isinstance(error, FormatError):
            return str(error)
        return f"{self.column!r} is not UTF-8 ({error.reason} at byte {error.start:,})"


class RowGroup:
    """One row group from row `start` on, of `num_rows` in all."""

    def __init__(self, parent: ParquetText, group: int, num_rows: int, start: int) -> None:
        self.num_rows = num_rows
        self._parent = parent
        self._group = group
        self._start = start

    def batches(self, size: int) -> Iterator[tuple[int, list[Any]]]:
        """(first row, texts) of the rows [0, size), [size, 2·size), … of the row group, less those before `start`.

        Decoding happens as they are asked for, without the GIL (600 MB/s from zstd); the GIL is held while the strings
        are made (1,100 MB/s).
        """
        parent, (least, most) = self._parent, _DECODED_ROWS
        if self._start >= self.num_rows:
            return
        first, texts = self._start, list[Any]()
        with parent.opened() as file:
            rows_at_once = min(size * max(1, least // size), most)
            for row, batch in parent.decode(file, self._group, parent.read_columns(file), rows_at_once):
                skipped = max(0, self._start - row)
                texts += self._documents(batch.slice(skipped), row + skipped)
                while len(texts) >= (count := size - first % size):
                    yield first, texts[:count]
                    first, texts = first + count, texts[count:]
        if texts:
            yield first, texts

    def _documents(self, batch: Any, first_row: int) -> list[Any]:
        where = f"row group {self._group}"
        texts = self._parent.documents_of(batch, None, f"{where} at row {first_row}")
        for row, text in enumerate(texts):
            if isinstance(text, UnicodeDecodeError | FormatError):
                raise FormatError(
                    f"{self._parent.name}, {where}, row {first_row + row}: {self._parent.told(text)}"
                ) from text
        return texts


def texts_of(column: Any, long_bytes: int | None) -> list[str | memoryview | UnicodeDecodeError | None]:
    """The values of a column: strings; Arrow's bytes of those longer than `long_bytes`; what is wrong with others.

    One call of Arrow makes all strings, as fast as slicing its buffers by hand; only where one of them is long or is
    not UTF-8 are they looked at one by one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_dictionary = pa.types.is_dictionary(column.type)
    if long_bytes is not None:
        values = column.dictionary if is_dictionary else column
        if (pc.max(pc.binary_length(values)).as_py() or 0) > long_bytes:
            return [_text_of(column, place, long_bytes) for place in range(len(column))]
    decoded = column.dictionary_decode() if is_dictionary else column
    try:
        texts: list[Any] = decoded.to_pylist()
        return [None if text is None else text.decode() for text in texts] if "binary" in str(decoded.type) else texts
    except UnicodeDecodeError:
        return [_text_of(column, place, None) for place in range(len(column))]


def _text_of(column: Any, place: int, long_bytes: int | None) -> str | memoryview | UnicodeDecodeError | None:
    data = _bytes_of(column, place)
    if data is None:
        return None
    try:
        if long_bytes is None or len(data) <= long_bytes:
            return str(data, "utf-8")
        for _ in _pieces_of(data, long_bytes):  # all of it must be right before anything is handed over
            pass
    except UnicodeDecodeError as error:
        return error
    return data


def _bytes_of(column: Any, place: int) -> memoryview | None:
    """The bytes of a value where Arrow has them (`column[place]` would copy them)."""
    import pyarrow as pa

    if not column[place : place + 1].is_valid()[0].as_py():
        return None
    if pa.types.is_dictionary(column.type):
        return _bytes_of(column.dictionary, column.indices[place].as_py())
    if str(column.type).endswith("_view"):
        return memoryview(column[place].as_buffer())
    size = 8 if str(column.type).startswith("large_") else 4
    _, offsets, data = column.buffers()
    at = (column.offset + place) * size
    start, stop = memoryview(offsets)[at : at + 2 * size].cast("B").cast("q" if size == 8 else "i")
    return memoryview(b"") if data is None else memoryview(data)[start:stop]


def _pieces_of(data: memoryview, piece_bytes: int) -> Iterator[str]:
    """UTF-8 as strings of about `piece_bytes` each."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), piece_bytes):
        yield decoder.decode(data[start : start + piece_bytes], start + piece_bytes >= len(data))


def _is_text(kind: Any) -> bool:
    """Whether a column of this type holds text: strings, plain or dictionary-encoded, or bytes."""
    import pyarrow as pa

    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in _TEXTS


def _is_tokens(kind: Any) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _is_written_out(kind: Any) -> bool:
    """Whether values of a type are kept in the way Arrow writes them: 2024-05-01 12:00:00, 1.50."""
    import pyarrow as pa

    return bool((pa.types.is_temporal(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind))


def _fits_json(kind: Any) -> bool:
    """Whether JSON can hold the values of a type."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_struct(kind) or is_a.is_map(kind):
        return all(_fits_json(kind.field(number).type) for number in range(kind.num_fields))
    if any(test(kind) for test in (is_a.is_dictionary, is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list)):
        return _fits_json(kind.value_type)
    simple = (is_a.is_null, is_a.is_boolean, is_a.is_integer, is_a.is_floating, is_a.is_string, is_a.is_large_string)
    return any(test(kind) for test in simple) or str(kind) == "string_view"


def without_nulls(value: Any) -> Any:
    """A value without the nulls that Arrow puts in place of fields that only other rows have."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None or name == "content"}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _kept(batch: Any, keep: Sequence[str]) -> list[dict[str, Any]]:
    """The values to keep of every row."""
    import pyarrow as pa

    columns = [_column(batch, name) for name in keep]
    values = [(each.cast(pa.string()) if _is_written_out(each.type) else each).to_pylist() for each in columns]
    return [dict(zip(keep, row, strict=True)) for row in zip(*values, strict=True)]
