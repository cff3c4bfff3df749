"""Documents of Parquet files, a few rows at a time; long values are cut out of Arrow's memory, not made one string.

Arrow decodes pages as a whole, and a value lies in one: one of 200 MB takes 570 MB while it is read (770 compressed by
Snappy, 850 by zstd). As JSONL or as a text file it would take 20 MB.
"""

import codecs
from collections.abc import Iterator
from typing import IO, Any, cast

from tokenfeed.errors import CorruptionError, FormatError, MissingError
from tokenfeed.preparation.inputs import InputFile, Slice
from tokenfeed.preparation.reading_chunks import Chunk, Reading, Tally, in_pieces
from tokenfeed.preparation.reading_files import open_input, shown
from tokenfeed.storage.address import is_remote
from tokenfeed.text.sources.parquet import ParquetText

__all__ = ["group_bytes", "read_parquet"]

_MOST_ROWS = 1024


def group_bytes(file: InputFile) -> list[int]:
    """The uncompressed bytes of every row group, as the footer says. Opens the file."""
    parquet = _Parquet(file, None)
    try:
        return parquet.group_bytes
    finally:
        parquet.close()


def read_parquet(file: InputFile, part: Slice, how: Reading) -> Iterator[Chunk]:
    """The documents of the row groups of a slice."""
    parquet = _Parquet(file, how)
    try:
        before = parquet.share(part.start)
        tally = Tally(how)
        for group in range(part.start, part.stop):
            yield from _read_group(parquet, group, tally, before)
        yield tally.chunk([], [], parquet.share(part.stop) - before)
    finally:
        parquet.close()


class _Parquet:
    """A Parquet file, open for reading some of its columns."""

    def __init__(self, file: InputFile, how: Reading | None) -> None:
        self.name = shown(file.path)
        self.how = how or Reading()
        self._size = file.size
        opener = (lambda: cast(IO[bytes], open_input(file.path))) if is_remote(file.path) else None
        self.text = ParquetText(self.name, self.how.text_column, open_file=opener)
        self.file = self.text.open(any_column=how is None)
        try:
            with self.text.explaining("its footer"):
                metadata = self.file.metadata
                groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
                self.group_bytes: list[int] = [group.total_byte_size for group in groups]
                self.group_rows: list[int] = [group.num_rows for group in groups]
                self.schema = self.file.schema_arrow
            self._check_kept()
        except BaseException:
            self.close()
            raise

    def share(self, group: int) -> int:
        """How many bytes of the file lie before a row group, more or less."""
        total = sum(self.group_bytes)
        return self._size * sum(self.group_bytes[:group]) // total if total else self._size * group

    def batches(self, group: int) -> Iterator[Any]:
        """Record batches of a row group, each of about as much text as a chunk shall have."""
        columns = [self.how.text_column, *self.how.keep]
        with self.text.explaining(f"row group {group}"):
            rows = self._rows_at_once(group)
            batches = self.file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
        row = 0
        while True:
            with self.text.explaining(f"row group {group} after row {row}"):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch
            row += batch.num_rows
        if row != self.group_rows[group]:
            raise CorruptionError(
                f"{self.name}, row group {group} has {row:,} rows; its footer says {self.group_rows[group]:,}"
            )

    def close(self) -> None:
        self.file.close(force=True)

    def _rows_at_once(self, group: int) -> int:
        metadata, text = self.file.metadata.row_group(group), self.how.text_column
        columns = (metadata.column(number) for number in range(metadata.num_columns))
        size: int = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == text)
        return max(1, min(_MOST_ROWS, self.how.chunk_bytes * self.group_rows[group] // max(1, size)))

    def _check_kept(self) -> None:
        for name in self.how.keep:
            places = self.schema.get_all_field_indices(name)
            if len(places) != 1:
                what = "no column" if not places else f"{len(places)} columns"
                raise MissingError(
                    f"{self.name} has {what} {name!r}; its columns are {', '.join(self.schema.names) or 'none'}. "
                    "Name one that is there: keep=…"
                )
            kind = self.schema.field(places[0]).type
            if not (_is_written_out(kind) or _fits_json(kind)):
                raise FormatError(
                    f"{self.name}: column {name!r} is {kind}, which JSON cannot hold. Leave it out of those to keep."
                )


def _read_group(parquet: _Parquet, group: int, tally: Tally, before: int) -> Iterator[Chunk]:
    how, row = parquet.how, 0
    start, stop = parquet.share(group), parquet.share(group + 1)
    texts, kept, num_bytes = list[str](), list[dict[str, Any] | None](), 0
    for batch in parquet.batches(group):
        column = batch.column(batch.schema.get_field_index(how.text_column))
        values = _kept(batch, how)
        where = f"{parquet.name}, row group {group}"
        reached = start - before + (stop - start) * (row + batch.num_rows) // max(1, parquet.group_rows[group])
        strings = _strings(column, how, parquet.text, where)
        for place in range(batch.num_rows):
            text = strings[place] if strings is not None else _string(column, place, how)
            if isinstance(text, str):
                texts.append(text)
                kept.append(values[place] if values else {})
                num_bytes += len(text)
            elif text is None:
                tally.null(f"{where}, row {row + place}", f"{how.text_column!r} is null")
            elif isinstance(text, UnicodeDecodeError):
                what = f"{how.text_column!r} is not UTF-8 ({text.reason} at byte {text.start:,})"
                tally.malformed(f"{where}, row {row + place}", what, cause=text)
            else:
                if texts:
                    yield tally.chunk(texts, kept, reached)
                    texts, kept, num_bytes = [], [], 0
                for piece, begins, ends in in_pieces(_pieces(text, how.chunk_bytes)):
                    values_here = (values[place] if values else {}) if begins else None
                    yield tally.chunk([piece], [values_here], reached, part=(begins, ends))
        row += batch.num_rows
        if num_bytes >= how.chunk_bytes:
            yield tally.chunk(texts, kept, reached)
            texts, kept, num_bytes = [], [], 0
    yield tally.chunk(texts, kept, stop - before)


def _kept(batch: Any, how: Reading) -> list[dict[str, Any]]:
    """The values to keep of every row."""
    import pyarrow as pa

    columns = []
    for name in how.keep:
        column = batch.column(batch.schema.get_field_index(name))
        columns.append((column.cast(pa.string()) if _is_written_out(column.type) else column).to_pylist())
    return [dict(zip(how.keep, values, strict=True)) for values in zip(*columns, strict=True)]


def _strings(column: Any, how: Reading, text: ParquetText, where: str) -> list[str | None] | None:
    """The values as strings, by one call; None where one of them is long or is no text, and all need a look."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_dictionary = pa.types.is_dictionary(column.type)
    values = column.dictionary if is_dictionary else column
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest > how.long_bytes and not how.whole:
        return None
    with text.explaining(where):
        column = column.dictionary_decode() if is_dictionary else column
    try:
        strings: list[Any] = column.to_pylist()
        return [None if one is None else one if isinstance(one, str) else one.decode() for one in strings]
    except UnicodeDecodeError:
        return None


def _string(column: Any, place: int, how: Reading) -> str | memoryview | UnicodeDecodeError | None:
    """A value: as a string, as the bytes of a long one, as what is wrong with it, or None where it is null."""
    data = _bytes(column, place)
    if data is None:
        return None
    try:
        if len(data) <= how.long_bytes or how.whole:
            return str(data, "utf-8")
        for _ in _pieces(data, how.chunk_bytes):  # once to see that all of it is well, since nothing can be taken back
            pass
    except UnicodeDecodeError as error:
        return error
    return data


def _bytes(column: Any, place: int) -> memoryview | None:
    """The bytes of a value where Arrow has them (`column[place]` would copy them)."""
    import pyarrow as pa

    if not column[place : place + 1].is_valid()[0].as_py():
        return None
    if pa.types.is_dictionary(column.type):
        return _bytes(column.dictionary, column.indices[place].as_py())
    if str(column.type).endswith("_view"):
        return memoryview(column[place].as_buffer())
    size = 8 if str(column.type).startswith("large_") else 4
    _, offsets, data = column.buffers()
    at = (column.offset + place) * size
    start, stop = memoryview(offsets)[at : at + 2 * size].cast("B").cast("q" if size == 8 else "i")
    return memoryview(b"") if data is None else memoryview(data)[start:stop]


def _pieces(data: memoryview, piece_bytes: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), piece_bytes):
        yield decoder.decode(data[start : start + piece_bytes], start + piece_bytes >= len(data))


def _is_written_out(kind: Any) -> bool:
    """Whether values of a type are kept in the way Arrow writes them: 2024-05-01 12:00:00, 1.50."""
    import pyarrow as pa

    return bool((pa.types.is_temporal(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind))


def _fits_json(kind: Any) -> bool:
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_struct(kind) or is_a.is_map(kind):
        return all(_fits_json(kind.field(number).type) for number in range(kind.num_fields))
    if is_a.is_dictionary(kind) or hasattr(kind, "value_type"):
        return _fits_json(kind.value_type)
    simple = (is_a.is_null, is_a.is_boolean, is_a.is_integer, is_a.is_floating, is_a.is_string, is_a.is_large_string)
    return any(test(kind) for test in simple) or str(kind) == "string_view"
