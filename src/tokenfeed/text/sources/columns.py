"""`ColumnText`: documents in columns of Arrow's record batches, whatever files they are in: Parquet or Arrow's own."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

from tokenfeed.errors import CorruptionError, FormatError, MissingError, ReadError, TruncatedError
from tokenfeed.storage.local import reading
from tokenfeed.text.sources.portions import LARGEST_DOCUMENT, Portion, Records, Tally, TextRules, advise
from tokenfeed.text.sources.stored import StoredFile

__all__ = ["ColumnText"]

_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


class ColumnText(ABC):
    """The text column of one file. Any number of threads may read at once; nothing stays open between two passes."""

    def __init__(self, file: StoredFile, column: str, records: Records | None = None) -> None:
        """With `records`, documents are what these make of whole rows, instead of the texts of a column."""
        self.name = file.name
        self.column = column
        self._records = records
        self._file = file

    group_name = "row group"

    @abstractmethod
    def num_groups(self) -> int:
        """How many row groups, or record batches, there are. Reads the metadata of the file the first time."""

    @abstractmethod
    def _sizes(self) -> list[int]:
        """Bytes of every group."""

    @abstractmethod
    def opened(self, keep: Sequence[str] = ()) -> AbstractContextManager[Any]:
        """The file, which has the text column and those to keep."""

    @abstractmethod
    def _decode(self, opened: Any, group: int, rules: TextRules) -> Iterator[tuple[int, int, Any]]:
        """(first row, rows of the group, record batch) of the columns that `rules` ask for, a few rows at a time."""

    def has_group(self, group: int) -> bool:
        return group < self.num_groups()

    def close(self) -> None:  # noqa: B027
        """Nothing stays open."""

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

    def read_slice(self, start: int, stop: int, rules: TextRules) -> Iterator[Portion]:
        """The documents of the groups [start, stop)."""
        with self.opened(rules.keep) as opened:
            tally, size, sizes = Tally(rules), self._file.stamp()[0], self._sizes()
            ends = [0, *accumulate(sizes)] if any(sizes) else range(len(sizes) + 1)
            before = size * ends[start] // ends[-1]
            for group in range(start, stop):
                group_bytes = ends[group + 1] - ends[group]
                for row, num_rows, batch in self._decode(opened, group, rules):
                    done = ends[group] + group_bytes * (row + batch.num_rows) // max(1, num_rows)
                    yield from self._add(tally, batch, row, self.where(group), size * done // ends[-1] - before, rules)
            yield tally.portion(size * ends[stop] // ends[-1] - before)

    def _add(self, tally: Tally, batch: Any, row: int, where: str, reached: int, rules: TextRules) -> Iterator[Portion]:
        """Note the documents of a batch, and hand over what there is enough of."""
        kept = _kept(batch, rules.keep)
        for place, text in enumerate(self.documents_of(batch, where, texts_of)):
            values = kept[place] if kept else {}
            if text is None:
                tally.null(f"{where}, row {row + place}")
            elif isinstance(text, UnicodeDecodeError | FormatError):
                tally.malformed(f"{where}, row {row + place}", self._told(text))
            else:
                tally.add(text, values)
        if tally.is_full:
            yield tally.portion(reached)

    def where(self, group: int) -> str:
        """A group, as messages name it."""
        return f"{self.name}, {self.group_name} {group}"

    def check_columns(self, schema: Any, keep: Sequence[str]) -> None:
        """That there are the text column, and those to keep, of types that can be read."""
        for name in (*([self.column] if self._records is None else []), *keep):
            self._check_column(schema, name)

    def _check_column(self, schema: Any, name: str) -> None:
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            what = "no column" if not places else f"{len(places)} columns"
            tokens = [each.name for each in schema if _is_tokens(each.type)]
            advice = "Name one that is there: keep=…" if name != self.column else advise(schema.names, tokens)
            raise MissingError(
                f"{self.name} has {what} {name!r}; its columns are {', '.join(schema.names) or 'none'}. {advice}"
            )
        kind = schema.field(places[0]).type
        if name == self.column and not _is_text(kind):
            advice = f". {advise((), [name])}" if _is_tokens(kind) else ""
            raise FormatError(
                f"{self.name}: column {name!r} is {kind}, not text; expected strings, plain or dictionary-encoded, or "
                f"bytes that are UTF-8{advice}"
            )
        if name != self.column and not (_is_written_out(kind) or _fits_json(kind)):
            raise FormatError(
                f"{self.name}: column {name!r} is {kind}, which JSON cannot hold. Leave it out of those to keep."
            )

    @contextlib.contextmanager
    def explaining(self, where: str) -> Iterator[None]:
        """Turns what Arrow raises about damaged bytes into an error of ours that names the file and the place."""
        import pyarrow as pa

        try:
            with reading(self.name):
                yield
        except FormatError:
            raise  # told already
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

    def read_columns(self, schema: Any) -> list[str]:
        """The columns that documents are made of."""
        if self._records is None:
            return [self.column]
        names: list[str] = schema.names
        wanted = self._records.columns
        found = names if wanted is None else [name for name in names if name in wanted]
        if not found:
            raise MissingError(
                f"{self.name} has no column that records are made of; it has {', '.join(names) or 'none'}"
            )
        return found

    def documents_of(self, batch: Any, where: str, read: Callable[[Any], list[Any]] | None = None) -> list[Any]:
        """The documents of a batch: what `read`, by default `utf8_of`, says of its column, or what `records` made; a
        FormatError where there is none."""
        with self.explaining(where.removeprefix(f"{self.name}, ")):
            if self._records is None:
                return (read or utf8_of)(_column(batch, self.column))
            rows = batch.to_pylist()
        documents: list[Any] = []
        for fields in rows:
            try:
                documents.append(self._records(without_nulls(fields)))
            except FormatError as error:
                documents.append(error)
        return documents

    def check_document(self, document: Any, where: str, row: int) -> Any:
        """A document of `documents_of`; a FormatError that names its place, where it is none."""
        if isinstance(document, UnicodeDecodeError | FormatError):
            raise FormatError(f"{where}, row {row}: {self._told(document)}") from document
        return document

    def _told(self, error: UnicodeDecodeError | FormatError) -> str:
        if isinstance(error, FormatError):
            return str(error)
        return f"{self.column!r} is not UTF-8 ({error.reason} at byte {error.start:,})"


def utf8_of(column: Any) -> list[Any]:
    """The values of a column as UTF-8 where Arrow has them so, in half the time of strings; else as `texts_of` does."""
    import pyarrow as pa

    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
    if plain is not None and not _may_be_too_long(column):
        try:
            column.validate(full=True)  # without the GIL
            values: list[Any] = column.cast(plain).to_pylist()
            return values
        except pa.ArrowInvalid:
            pass  # not UTF-8
    return texts_of(column)


def texts_of(column: Any) -> list[Any]:
    """The values of a column: strings, or None; an error in the place of each that is no document.

    One call of Arrow makes all strings, as fast as slicing its buffers by hand; only where one of them is too long or
    is not UTF-8 are they looked at one by one.
    """
    import pyarrow as pa

    if not _may_be_too_long(column):
        decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        try:
            texts: list[Any] = decoded.to_pylist()
            is_binary = "binary" in str(decoded.type)
            return [None if text is None else text.decode() for text in texts] if is_binary else texts
        except UnicodeDecodeError:
            pass
    return [_text_of(column, place) for place in range(len(column))]


def _may_be_too_long(column: Any) -> bool:
    """Whether one of the values may be more than a document can be."""
    import pyarrow as pa

    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    return bool(values.nbytes > LARGEST_DOCUMENT)


def _text_of(column: Any, place: int) -> str | UnicodeDecodeError | FormatError | None:
    value = column[place]
    if not value.is_valid:
        return None
    data = (value.value if hasattr(value, "dictionary") else value).as_buffer()
    if data.size > LARGEST_DOCUMENT:
        return FormatError(f"the text has {data.size:,} bytes; the most of a document is {LARGEST_DOCUMENT:,}")
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        return error


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
